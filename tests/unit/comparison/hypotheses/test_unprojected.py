"""Sites behind a product or a sum whose input is no point of both models are explained like those before it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.attention import AttentionCore
from embgrad.comparison.hypotheses.explain import explain
from embgrad.comparison.hypotheses.site import Before, Explanation, Site, arrived
from embgrad.comparison.hypotheses.unprojected import (
    before_carried,
    before_product,
    before_sum,
    before_taken,
    unprojected,
)
from embgrad.comparison.recording import HeldWeight, Tensor
from embgrad.comparison.sites import Pair, name_of
from tests.unit.comparison.hypotheses.attended import BEFORE, REAL, attended
from tests.unit.comparison.hypotheses.planted import expect_exact, site_of

RANDOM = np.random.default_rng(1)
OUTPUT, BIAS = RANDOM.normal(size=(32, 32)), RANDOM.normal(size=32)
MODULE = "layers.0.attention"
WEIGHTS = {"inner": RANDOM.normal(size=(96, 32)), "out.weight": OUTPUT, "out.bias": BIAS}


def site_behind(a: np.ndarray, b: np.ndarray, weights: dict[str, np.ndarray]) -> Site:
    """Return the site at the output of a module with weights."""
    site = site_of(a, b, BEFORE, real=REAL)
    key = f"{MODULE}:output#0"
    tensor = replace(next(iter(site.recordings[0].tensors.values())), key=key, path=MODULE, side="output")
    held = tuple(
        HeldWeight(f"{MODULE}.{name}", MODULE, values.shape, lambda values=values: values, layer=0)  # type: ignore[misc]
        for name, values in weights.items()
    )
    recording = replace(site.recordings[0], tensors={key: tensor}, weights=held)
    return replace(site, pair=Pair(MODULE, key, key), recordings=(recording, recording))


@pytest.mark.parametrize("matrix", [OUTPUT, OUTPUT.T], ids=["input by output", "output by input"])
def test_a_setting_is_named(matrix: np.ndarray) -> None:
    a, b = (attended(scale=scale) @ matrix + BIAS for scale in (None, 1.0))
    site = site_behind(a, b, WEIGHTS)
    (found,) = AttentionCore().explain(site)
    expect_exact(site, found)
    assert found.text == "attention scale 0.353553 in a and 1 in b"


def test_both_outputs_are_before_the_product() -> None:
    a, b = (attended(scale=scale) @ OUTPUT + BIAS for scale in (None, 1.0))
    inner = [found for found, _ in unprojected(site_behind(a, b, WEIGHTS)) if np.allclose(found.a, attended())]
    assert len(inner) == 1
    np.testing.assert_allclose(inner[0].b, attended(scale=1.0))
    assert inner[0].floor > 1e-9


def test_modules_with_one_matrix_and_singular_ones_have_no_such_site() -> None:
    a = attended() @ OUTPUT
    assert not list(unprojected(site_behind(a, 2 * a, {"out.weight": OUTPUT, "out.bias": BIAS})))
    assert not list(unprojected(site_behind(a, 2 * a, {**WEIGHTS, "out.weight": np.ones((32, 32))})))
    assert not list(unprojected(site_of(a, 2 * a, BEFORE, real=REAL)))


def site_of_function(
    a: np.ndarray, b: np.ndarray, tensors: list[Tensor], shared: dict[str, np.ndarray], weights: Any
) -> Site:
    """Return the site at the output of a model, after tensors that both have and modules that a alone has."""
    end = Tensor("output", "", "output", 0, (), 9.0, a)
    before = [*(Before(name_of(it), it.values, False) for it in tensors), *(Before(*entry) for entry in shared.items())]
    held = tuple(
        HeldWeight(name, name.rpartition(".")[0], values.shape, lambda values=values: values)  # type: ignore[misc]
        for name, values in weights.items()
    )
    site = site_of(a, b, {})
    recording = replace(site.recordings[0], tensors={it.key: it for it in (*tensors, end)}, weights=held)
    other = replace(recording, tensors={end.key: replace(end, values=b)})
    return replace(site, pair=Pair("output", "output", "output"), before=before, recordings=(recording, other))


X, GAIN = RANDOM.normal(size=(2, 5, 6)), RANDOM.normal(size=6)


def normed(epsilon: float) -> np.ndarray:
    return np.asarray(X / np.sqrt((X**2).mean(-1, keepdims=True) + epsilon) * GAIN)


def behind_norm(a: np.ndarray, *further: Tensor) -> list[Tensor]:
    """Return the tensors of a norm that the port computes in a function, and of what follows."""
    return [
        Tensor("norm:input#0", "norm", "input", 0, (), 1.0, X),
        Tensor("norm:output#0", "norm", "output", 0, (), 2.0, a),
        *further,
    ]


@pytest.mark.parametrize("module", ["head", "table"], ids=["its own matrix", "the table"])
@pytest.mark.parametrize("is_turned", [True, False])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_a_norm_before_a_product_is_explained(module: str, is_turned: bool, bias: float) -> None:
    matrix, vector = RANDOM.normal(size=(6, 20)), bias * RANDOM.normal(size=20)
    a, b = (normed(epsilon) @ matrix + vector for epsilon in (1e-5, 0.1))
    further = [
        Tensor("head:input#0", "head", "input", 0, (), 3.0, normed(1e-5)),
        Tensor("head:output#0", "head", "output", 0, (), 4.0, a),
    ]
    weights = {"norm.gain": GAIN, f"{module}.w": matrix.T if is_turned else matrix, "head.bias": vector}
    site = site_of_function(a, b, behind_norm(normed(1e-5), *further), {"norm:input": X}, weights)
    found = explain(site)
    assert found is not None
    assert found.text == "epsilon 1e-05 in a and 0.1 in b"
    expect_exact(site, found)
    other = replace(site, b=b + 0.01 * RANDOM.normal(size=b.shape))
    assert not list(before_product(other)), "b's output is no product"
    shared = replace(site, before=[replace(it, shared=True) for it in site.before])
    assert not list(before_product(shared)), "b's input is a point"


def test_a_narrow_product_is_explained_by_the_same_input_of_a_wide_one() -> None:
    """Keys and values of few heads do not show what the norm before them returned, and the queries do."""

    def site(width: int, *, memory: dict[str, Any], given: float = 1.0) -> Site:
        matrix = np.random.default_rng(width).normal(size=(6, width))
        a, b = normed(1e-5) * given @ matrix, normed(0.1) * given @ matrix
        further = [Tensor("head:input#0", "head", "input", 0, (), 3.0, normed(1e-5) * given)]
        further += [Tensor("head:output#0", "head", "output", 0, (), 4.0, a)]
        made = site_of_function(a, b, behind_norm(normed(1e-5), *further), {"norm:input": X}, {"head.w": matrix})
        return replace(made, memory=memory)

    memory: dict[str, Any] = {}
    wide = explain(site(20, memory=memory))
    narrow = explain(site(3, memory=memory))
    assert wide is not None
    assert narrow is not None
    assert wide.text == narrow.text == "epsilon 1e-05 in a and 0.1 in b"
    expect_exact(site(3, memory=memory), narrow)
    assert explain(site(3, memory={})) is None
    assert explain(site(3, memory=memory, given=2.0)) is None, "the input is another one"
    other = site(3, memory=memory)
    assert explain(replace(other, b=other.b + 0.1 * RANDOM.normal(size=other.b.shape))) is None


@pytest.mark.parametrize("condition", [3e3, 3e4])
def test_a_product_with_a_nearly_singular_matrix_is_not_undone(condition: float) -> None:
    left, right = (np.linalg.qr(RANDOM.normal(size=(size, 6)))[0] for size in (6, 20))
    matrix = left * np.geomspace(condition, 1, 6) @ right.T
    a, b = (normed(epsilon) @ matrix for epsilon in (1e-5, 0.1))
    further = [Tensor("head:input#0", "head", "input", 0, (), 3.0, normed(1e-5))]
    further += [Tensor("head:output#0", "head", "output", 0, (), 4.0, a)]
    site = site_of_function(a, b, behind_norm(normed(1e-5), *further), {"norm:input": X}, {"head.w": matrix})
    floors = [found.floor / site.floor for found, _ in before_product(site)]
    assert floors == ([pytest.approx(condition, rel=1e-3)] if condition < 1e4 else [])


def test_a_norm_before_a_sum_is_explained() -> None:
    residual = RANDOM.normal(size=X.shape)
    a, b = (residual + normed(epsilon) for epsilon in (1e-5, 0.1))
    site = site_of_function(
        a, b, behind_norm(normed(1e-5)), {"residual": residual, "norm:input": X}, {"norm.gain": GAIN}
    )
    found = explain(site)
    assert found is not None
    assert found.text == "epsilon 1e-05 in a and 0.1 in b"
    assert found.inputs == ("norm:input", "residual")
    expect_exact(site, found)
    assert not list(before_sum(replace(site, a=a + 0.01 * residual)))
    assert explain(replace(site, b=b + residual**2)) is None


EARLIER_A, SHIFT, PART = RANDOM.normal(size=(3, 2, 9, 32))
CAUSE = Explanation("residual-scale", "o is multiplied by", ("1", "2"), EARLIER_A + SHIFT)
#: A function of this tensor that no hypothesis knows.
UNKNOWN = np.sin(3 * PART)


def behind_residual(a: np.ndarray, b: np.ndarray, explanation: Explanation | None = CAUSE) -> Site:
    """Return a site behind another one, whose difference goes on in a residual."""
    at = site_of(a, b, {"layers.0.stream": EARLIER_A, **BEFORE}, real=REAL)
    pair = Pair("layers.0.stream", "stream", "stream")
    earlier = replace(at, pair=pair, a=EARLIER_A, b=EARLIER_A + SHIFT, before=[], memory={})
    return replace(at, memory={"explained": [(earlier, explanation)]})


def in_a_pass(found: Explanation, site: Site) -> np.ndarray:
    """Return what an explanation computes where the earlier point is changed, and the site's own value is not yet."""
    at = {before.name: before.values for before in site.before}
    at |= {"layers.0.stream": EARLIER_A + SHIFT, arrived("layers.0.stream"): EARLIER_A, arrived(site.name): site.a}
    assert found.compute is not None
    return found.compute(at.__getitem__)


def test_the_difference_of_an_earlier_site_goes_on_beside_any_function() -> None:
    site = behind_residual(EARLIER_A + UNKNOWN, EARLIER_A + UNKNOWN + SHIFT)
    found = explain(site)
    assert found is not None
    assert (found.cause, found.text) == (CAUSE.cause, CAUSE.text)
    np.testing.assert_allclose(found.predicted, site.b)
    np.testing.assert_allclose(in_a_pass(found, site), site.b)


def test_what_differs_beside_an_earlier_difference_that_goes_on_is_named() -> None:
    first, second = (attended(scale=scale) for scale in (None, 1.0))
    site = behind_residual(first, second + SHIFT)
    found = explain(site)
    assert found is not None
    assert found.text == "attention scale 0.353553 in a and 1 in b"
    np.testing.assert_allclose(found.predicted, site.b)
    np.testing.assert_allclose(in_a_pass(found, site), site.b)


@pytest.mark.parametrize(
    ("b", "explanation"),
    [(EARLIER_A + UNKNOWN - SHIFT, CAUSE), (EARLIER_A + UNKNOWN + SHIFT, None)],
    ids=["another difference", "one without a cause"],
)
def test_other_differences_than_known_ones_do_not_go_on(b: np.ndarray, explanation: Explanation | None) -> None:
    assert explain(behind_residual(EARLIER_A + UNKNOWN, b, explanation)) is None


def test_a_difference_that_has_little_in_common_with_an_earlier_one_is_none_that_goes_on() -> None:
    """The inputs of two layers' projections have one shape, and another base changes both."""
    shared = behind_residual(EARLIER_A, EARLIER_A + SHIFT + PART)
    assert before_carried(shared) is not None
    assert before_carried(replace(shared, b=EARLIER_A + PART)) is None
    assert before_carried(replace(shared, b=EARLIER_A + 3 * SHIFT)) is None


def layer_norm(x: np.ndarray, epsilon: float = 1e-5) -> np.ndarray:
    centre = x - x.mean(-1, keepdims=True)
    return np.asarray(centre / np.sqrt((centre**2).mean(-1, keepdims=True) + epsilon) * FEATURES)


FEATURES = RANDOM.uniform(0.5, 1.5, size=32)
SUM = EARLIER_A + PART


def norm_behind_residual(b: np.ndarray) -> Site:
    """Return a norm of the sum of a part and of what an earlier site ends with, whose difference goes on in the sum."""
    weights = {"gain": FEATURES}
    site = site_behind(layer_norm(SUM), b, weights)
    before = [Before(f"{MODULE}:input", SUM), Before("part", PART), Before("layers.0.stream", EARLIER_A)]
    memory = behind_residual(site.a, site.b).memory
    return replace(site, before=before, memory=memory)


@pytest.mark.parametrize(
    ("epsilon", "text", "goes_on"),
    [(1e-5, CAUSE.text, True), (0.1, "epsilon 1e-05 in a and 0.1 in b", False)],
)
def test_an_earlier_difference_goes_on_in_a_norm_beside_what_differs_there(
    epsilon: float, text: str, goes_on: bool
) -> None:
    site = norm_behind_residual(layer_norm(SUM + SHIFT, epsilon))
    found = explain(site)
    assert found is not None
    assert (found.text, found.goes_on) == (text, goes_on)
    np.testing.assert_allclose(found.predicted, site.b, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(in_a_pass(found, site), site.b, rtol=1e-6, atol=1e-6)
    assert explain(norm_behind_residual(layer_norm(SUM - SHIFT, 0.3) + UNKNOWN)) is None


def test_a_difference_that_goes_on_is_preferred_to_another_multiplier() -> None:
    """Half of a part beside a sum is what twice the rest of the sum is for a norm."""
    site = norm_behind_residual(layer_norm(2 * EARLIER_A + PART, 0.0))
    found = explain(replace(site, a=layer_norm(SUM, 0.0)))
    assert found is not None
    assert not found.goes_on
    earlier = replace(site.memory["explained"][0][0], b=2 * EARLIER_A)
    found = explain(replace(site, a=layer_norm(SUM, 0.0), memory={"explained": [(earlier, CAUSE)]}))
    assert found is not None
    assert (found.text, found.goes_on) == (CAUSE.text, True)


@pytest.mark.parametrize("known", [True, False])
def test_the_first_vectors_of_a_known_difference_are_explained(known: bool) -> None:
    epsilon = Explanation("layer-norm-epsilon", "epsilon", ("1e-05", "0.1"), SUM)
    memory = {"explained": [(norm_behind_residual(SUM), epsilon)]}
    whole = norm_behind_residual(layer_norm(SUM, 0.1))
    tensor = next(iter(whole.recordings[0].tensors.values()))
    recording = replace(whole.recordings[0], tensors={tensor.key: tensor, "pooler": replace(tensor, path="pooler")})
    site = replace(
        whole,
        pair=Pair("pooler:input", "pooler", "pooler"),
        recordings=(recording, recording),
        before=[Before(MODULE, whole.a, shared=False), *whole.before],
        memory=memory if known else {},
        **{name: getattr(whole, name)[:, :1] for name in ("a", "b", "real", "ids")},
    )
    ((inner, _),) = before_taken(site)
    assert inner.real.sum() == len(inner.real)
    found = explain(site)
    if not known:
        assert found is None
        return
    assert found is not None
    assert found.text == "epsilon 1e-05 in a and 0.1 in b"
    np.testing.assert_allclose(found.predicted, site.b, rtol=1e-6)
