"""Norms within a sum and of it that b applies otherwise are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.norm_in_sum import NormInSum
from embgrad.comparison.hypotheses.site import CHANGES, Changed, Explanation, Site
from embgrad.comparison.hypotheses.terms import OtherTerm
from tests.unit.comparison.hypotheses.modules import IDS, best, in_pass, module_site

RANDOM = np.random.default_rng(0)
SIZE = 6
STREAM, ADDED = RANDOM.normal(size=(2, *IDS.shape, SIZE))
GAINS = dict(zip(("first", "second", "third"), 1 + 0.4 * RANDOM.normal(size=(3, SIZE)), strict=True))


def norm(x: np.ndarray, name: str, *, epsilon: float = 1e-5, centred: bool = False, offset: float = 0.0) -> np.ndarray:
    """Return the norm of each vector with a gain, a root-mean-square norm if it is not centred."""
    x = x - x.mean(-1, keepdims=True) if centred else x
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * (GAINS[name] + offset))


def site(inner: str, outer: str, **further: Any) -> Site:
    """Return a site at a norm of a residual and a norm, which b applies with other gains."""
    a = STREAM + norm(ADDED, "first")
    before = {"second:input": a, "first": norm(ADDED, "first"), "first:input": ADDED, "stream": STREAM}
    outputs = norm(a, "second"), norm(STREAM + norm(ADDED, inner), outer)
    weights = {f"{name}.gain": gain for name, gain in GAINS.items()}
    alone = ["second:input", "first"]
    return module_site(*outputs, before, key="second:output#0", held_a=weights, alone=alone, **further)


@pytest.mark.parametrize("inner", GAINS)
@pytest.mark.parametrize("outer", GAINS)
def test_the_norms_whose_weights_b_applies_are_named(inner: str, outer: str) -> None:
    at = site(inner, outer)
    found = NormInSum().explain(at)
    if inner == "first":
        assert found == [], "the norm at the end of the site has other weights alone, which is seen there"
        return
    parts = [f"the norm first with the weights of {inner}"]
    parts += [f"the norm second with the weights of {outer}"] if outer != "second" else []
    explanation = best(at, found)
    assert explanation.cause == "swapped-weights"
    assert explanation.text == ", and ".join(f"b applies {part}" for part in parts)
    np.testing.assert_allclose(explanation.predicted, at.b, atol=1e-6)
    assert explanation.compute is not None
    changed = explanation.compute({"first:input": 2 * ADDED, "stream": -STREAM}.__getitem__)
    np.testing.assert_allclose(changed, norm(-STREAM + norm(2 * ADDED, inner), outer), atol=1e-6)


def test_a_later_sum_contains_the_same_norm() -> None:
    memory: dict[str, Any] = {}
    best(first := site("second", "first", memory=memory), NormInSum().explain(first))
    behind = RANDOM.normal(size=STREAM.shape)
    outputs = [behind + STREAM + norm(ADDED, name) for name in ("first", "second")]
    before = {"behind": behind, "first": norm(ADDED, "first"), "stream": STREAM}
    at = module_site(*outputs, before, key="layer:output#0", alone=["first"], memory=memory)
    (found,) = OtherTerm().explain(at)
    assert found.cause == "swapped-weights"
    np.testing.assert_allclose(found.predicted, at.b, atol=1e-6)


def test_a_later_sum_contains_the_changes_of_earlier_ones() -> None:
    """No point of b stops the stream between two norms that it adds to it."""
    memory: dict[str, Any] = {}
    best(first := site("third", "second", memory=memory), NormInSum().explain(first))
    later = RANDOM.normal(size=STREAM.shape)
    stream = STREAM + norm(ADDED, "first")
    a, b = stream + norm(later, "second"), STREAM + norm(ADDED, "third") + norm(later, "first")
    before = {"third:input": a, "second": norm(later, "second"), "second:input": later, "stream": stream}
    weights = {f"{name}.gain": gain for name, gain in GAINS.items()}
    outputs = norm(a, "third"), norm(b, "third")
    at = module_site(*outputs, before, key="third:output#0", held_a=weights, alone=["third:input"], memory=memory)
    earlier = {before.name: before.values for before in first.before}
    found = best(at, NormInSum().explain(at), earlier)
    assert found.text == "b applies the norm second with the weights of first"


def test_a_sum_with_no_norm_within_is_left_alone() -> None:
    a = STREAM + ADDED
    before = {"second:input": a, "stream": STREAM, "added": ADDED}
    weights = {f"{name}.gain": gain for name, gain in GAINS.items()}
    outputs = norm(a, "second"), norm(a, "first")
    assert NormInSum().explain(module_site(*outputs, before, key="second:output#0", held_a=weights)) == []


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "epsilon": ({"epsilon": 1e-3}, "epsilon 1e-05 in a and 0.001 in b"),
    "kind": ({"centred": True}, "the norm is a root-mean-square norm in a and a layer norm in b"),
    "one more": ({"offset": 1.0}, "the gain is w in a and 1 + w in b"),
    "one less": ({"offset": -1.0}, "the gain is 1 + w in a and w in b"),
}


@pytest.mark.parametrize("behind_norm", [False, True])
@pytest.mark.parametrize(("changes", "text"), SETTINGS.values(), ids=SETTINGS)
def test_another_setting_of_a_norm_within_a_sum_is_named(changes: dict[str, Any], text: str, behind_norm: bool) -> None:
    """OLMo 2 has norms behind its parts, and a port in functions has no points between them and the residual."""
    a, b = (STREAM + norm(ADDED, "first", **settings) for settings in ({}, changes))
    before = {"first": norm(ADDED, "first"), "first:input": ADDED, "stream": STREAM}
    weights = {f"{name}.gain": gain for name, gain in GAINS.items()}
    if behind_norm:
        outputs = norm(a, "second"), norm(b, "second")
        given = {"key": "second:output#0", "alone": ["second:input", "first"]}
        at = module_site(*outputs, {"second:input": a, **before}, held_a=weights, **given)
    else:
        at = module_site(a, b, before, key="part:input#0", held_a=weights, alone=["first"])
    found = best(at, NormInSum().explain(at))
    assert found.text == text
    # In a pass with other tensors the change is that of the norm, and a later sum differs by it.
    other = {"first:input": 2 * ADDED, "stream": -STREAM, "second:input": a}
    assert found.change is not None
    np.testing.assert_allclose(
        found.change(in_pass(other)), norm(2 * ADDED, "first", **changes) - norm(2 * ADDED, "first"), atol=1e-6
    )
    later = RANDOM.normal(size=STREAM.shape)
    terms = {"later": later, "part:input": a}
    at = module_site(a + later, b + later, terms, key="next:input#0", alone=["part:input"], memory=at.memory)
    assert OtherTerm().explain(at)[0].text == text


def test_the_same_epsilon_of_both_norms_is_named() -> None:
    a, b = (norm(STREAM + norm(ADDED, "first", epsilon=it), "second", epsilon=it) for it in (1e-5, 1e-3))
    whole = STREAM + norm(ADDED, "first")
    before = {"second:input": whole, "first": norm(ADDED, "first"), "first:input": ADDED, "stream": STREAM}
    weights = {f"{name}.gain": gain for name, gain in GAINS.items()}
    at = module_site(a, b, before, key="second:output#0", held_a=weights, alone=["second:input", "first"])
    assert best(at, NormInSum().explain(at)).text == "epsilon 1e-05 in a and 0.001 in b"


def test_a_norm_within_a_sum_that_does_not_differ_is_left_alone() -> None:
    assert NormInSum().explain(site("first", "second")) == []


def test_a_norm_within_a_sum_is_found_beside_what_earlier_sums_differ_by() -> None:
    change, weights = RANDOM.normal(size=STREAM.shape), {f"{name}.gain": gain for name, gain in GAINS.items()}
    a, b = (STREAM + 0.5 * norm(ADDED, "first", epsilon=it) for it in (1e-5, 1e-3))
    before = {"first": norm(ADDED, "first"), "first:input": ADDED, "stream": STREAM}
    earlier = Explanation("residual-scale", "x", ("1", "2"), a)
    memory = {CHANGES: [Changed(earlier, change)]}
    at = module_site(a, b + change, before, key="part:input#0", held_a=weights, alone=["first"], memory=memory)
    found = best(at, NormInSum().explain(at))
    assert found.text == "epsilon 1e-05 in a and 0.001 in b"
    assert found.change is not None
    np.testing.assert_allclose(found.change(in_pass(before)), b + change - a, atol=1e-6)


def test_what_the_weights_of_another_norm_add_to_a_sum_is_known() -> None:
    found = best(at := site("second", "second"), NormInSum().explain(at))
    before = {it.name: it.values for it in at.before}
    assert found.change is not None
    np.testing.assert_allclose(found.change(in_pass(before)), norm(ADDED, "second") - norm(ADDED, "first"), atol=1e-6)
