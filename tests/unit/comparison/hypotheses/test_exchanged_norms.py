"""Norms within a sum and of it that b applies with the weights of others of their layer are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.exchanged_norms import ExchangedNorms
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.terms import OtherTerm
from tests.unit.comparison.hypotheses.modules import IDS, best, module_site

RANDOM = np.random.default_rng(0)
SIZE = 6
STREAM, ADDED = RANDOM.normal(size=(2, *IDS.shape, SIZE))
GAINS = dict(zip(("first", "second", "third"), 1 + 0.4 * RANDOM.normal(size=(3, SIZE)), strict=True))


def norm(x: np.ndarray, name: str) -> np.ndarray:
    """Return the root-mean-square norm of each vector with a gain, with an epsilon of 1e-5."""
    return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * GAINS[name])


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
    found = ExchangedNorms().explain(at)
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
    best(first := site("second", "first", memory=memory), ExchangedNorms().explain(first))
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
    best(first := site("third", "second", memory=memory), ExchangedNorms().explain(first))
    later = RANDOM.normal(size=STREAM.shape)
    stream = STREAM + norm(ADDED, "first")
    a, b = stream + norm(later, "second"), STREAM + norm(ADDED, "third") + norm(later, "first")
    before = {"third:input": a, "second": norm(later, "second"), "second:input": later, "stream": stream}
    weights = {f"{name}.gain": gain for name, gain in GAINS.items()}
    outputs = norm(a, "third"), norm(b, "third")
    at = module_site(*outputs, before, key="third:output#0", held_a=weights, alone=["third:input"], memory=memory)
    assert best(at, ExchangedNorms().explain(at)).text == "b applies the norm second with the weights of first"


def test_a_sum_with_no_norm_within_is_left_alone() -> None:
    a = STREAM + ADDED
    before = {"second:input": a, "stream": STREAM, "added": ADDED}
    weights = {f"{name}.gain": gain for name, gain in GAINS.items()}
    outputs = norm(a, "second"), norm(a, "first")
    assert ExchangedNorms().explain(module_site(*outputs, before, key="second:output#0", held_a=weights)) == []
