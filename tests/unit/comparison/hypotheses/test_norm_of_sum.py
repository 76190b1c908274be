"""A norm of a sum that b alone computes, or that is given other tensors, is found by its values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.norm import LEAST_TOKENS, Norm, NormOfSum
from embgrad.comparison.hypotheses.site import Explanation, Site
from embgrad.comparison.sites import Pair
from tests.unit.comparison.hypotheses.modules import best, module_site
from tests.unit.comparison.hypotheses.normed import (
    GAIN,
    ONE,
    RANDOM,
    SHIFT,
    SIZE,
    WEIGHTS,
    X,
    explained,
    norm,
    site,
)
from tests.unit.comparison.hypotheses.planted import expect_exact
from tests.unit.comparison.recorded import tensor


def behind(b: np.ndarray, **further: Any) -> Site:
    """Return a site after a residual and what a layer adds to it, of which a computes the sum."""
    before = {"up": UP, "residual": X, "wide": np.ones((2, 5, 2 * SIZE))}
    return module_site(X + UP, b, before, **{"key": "layer:output#0", **further})


UP = RANDOM.normal(size=X.shape)


@pytest.mark.parametrize("centred", [True, False])
def test_a_norm_of_a_sum_is_named(centred: bool) -> None:
    at = behind(norm(X + UP, 1e-5, centred=centred))
    (found,) = NormOfSum().explain(at)
    kind = "a layer norm" if centred else "a root-mean-square norm"
    assert found.text == f"b computes layer as {kind} of up + residual, and a does not"
    assert (found.cause, found.inputs) == ("norm-order", ("up", "residual"))
    expect_exact(at, found)
    assert not NormOfSum().explain(replace(at, b=at.b + 0.01 * UP**2)), "no norm"
    assert not NormOfSum().explain(replace(at, a=X * UP)), "a computes no sum"
    assert not NormOfSum().explain(behind(norm(UP, 1e-5))), "of one tensor"
    before = {"norm:input": X + UP, "up": UP, "residual": X}
    assert not NormOfSum().explain(
        module_site(norm(X + UP, 1e-2), at.b, before, key="norm:output#0", held_a=WEIGHTS)
    ), "a computes it as well"


def test_a_norm_of_a_tensor_that_is_the_sites_own_in_a_is_named_as_one_more() -> None:
    at = module_site(X, norm(X, 1e-5), {"norm": X, "up": UP}, key="head:input#0", others=[])
    (found,) = NormOfSum().explain(at)
    assert found.text == "b applies a layer norm to what a has at head, and a does not"


def test_a_norm_of_a_sum_of_a_alone_is_named() -> None:
    """Such as a residual stream that is no point of b, as where layers are functions; what both models have comes first."""
    found = best(at := behind(norm(X + UP, 1e-5), alone=["residual"]), NormOfSum().explain(at))
    assert found.text == "b computes layer as a layer norm of up + residual, and a does not"
    before = {"stream": X + 2 * UP, "less": -UP, "up": UP, "residual": X}
    at = module_site(X + UP, norm(X + UP, 1e-5), before, key="layer:output#0", alone=["stream", "less"])
    assert best(at, NormOfSum().explain(at)).inputs == ("up", "residual")


@pytest.mark.parametrize("time", [2.0, 3.0])
def test_a_norm_that_b_applies_before_the_part_that_a_applies_it_behind_is_named(time: float) -> None:
    """The port's values at a site are those of a norm that comes later in a; of another module than a norm they say nothing."""
    later = tensor("layers.3.norm:output#0", norm(UP, 1e-5), 5.0)
    weights = {"layers.3.norm.gain": GAIN, "layers.3.norm.shift": SHIFT}
    at = module_site(X, later.values, {"up": UP}, key="query:input#0", held_a=weights, others=[later])
    ends = tuple(
        replace(
            side,
            tensors={
                **{key: replace(entry, time=3.0) for key, entry in side.tensors.items() if key != later.key},
                later.key: replace(later, time=own),
            },
        )
        for side, own in zip(at.recordings, (5.0, time), strict=True)
    )
    moved = Pair("layers.3.norm", later.key, later.key, None, None, 5.0)
    at = replace(at, recordings=ends, pairs=[*at.pairs, moved])
    (found,) = Norm().explain(at)
    assert found.cause == "norm-order"
    assert found.text == "b applies the norm layers.N.norm before the part that a applies it behind"
    assert not Norm().explain(replace(at, b=2 * at.b)), "other values"
    assert not Norm().explain(replace(at, recordings=ends[:1] * 2)), "b applies it behind as well"
    matrix = replace(ends[0], weights=(replace(ends[0].weights[0], shape=(SIZE, SIZE)), *ends[0].weights[1:]))
    assert not Norm().explain(replace(at, recordings=(matrix, ends[1]))), "a product"
    assert not Norm().explain(replace(at, recordings=(replace(ends[0], weights=()), ends[1]))), "no weights"


def test_the_weights_of_another_norm_are_named_by_their_module() -> None:
    """In functions a norm of the port is no module, whose weights would tell."""
    gain, shift = 2 - GAIN, SHIFT[::-1]
    held = {**WEIGHTS, "other.gain": gain, "other.bias": shift, "third.gain": gain}
    before = {"norm:input": X}
    at = module_site(norm(X, 1e-5), norm(X, 1e-5, gain, shift), before, key="norm:output#0", held_a=held, held_b={})
    found = best(at, Norm().explain(at))
    assert (found.cause, found.text) == ("swapped-weights", "b applies the norm norm with the weights of other")
    ones, zeros = np.ones(SIZE), np.zeros(SIZE)
    for its, how in (
        ((gain, 2 * shift), "with other weights"),
        ((ones, zeros), "without weights"),
        ((0.999 * ones, zeros), "with other weights"),
    ):
        at = replace(at, b=norm(X, 1e-5, *its))
        found = best(at, Norm().explain(at))
        assert (found.cause, found.text) == ("different-weight", f"b applies the norm norm {how}")


def test_the_weights_of_another_layers_norm_are_named_as_weights() -> None:
    gain, shift = 2 - GAIN, SHIFT[::-1]
    held = {"0.norm.gain": GAIN, "0.norm.bias": SHIFT, "1.norm.gain": gain, "1.norm.bias": shift}
    at = module_site(norm(X, 1e-5), norm(X, 1e-5, gain, shift), {"0.norm:input": X}, key="0.norm:output#0", held_a=held)
    found = best(at, Norm().explain(at))
    text = "b has 0.norm.gain equal to a's 1.norm.gain, and b has 0.norm.bias equal to a's 1.norm.bias"
    assert (found.cause, found.text) == ("swapped-weights", text)


def test_a_fitted_norm_whose_weights_leave_more_than_a_hundredth_is_not_named() -> None:
    a, b = norm(X, 1e-5), norm(X, 1e-5, 3 * GAIN)
    assert explained(site(a, b)).cause == "different-weight"
    assert Norm().explain(site(a, b + 0.05 * UP)) == []


def test_a_norm_of_a_tensor_that_b_holds_with_an_earlier_difference_is_named() -> None:
    earlier = module_site(X, 2 * X, {}, key="residual:output#0")
    known = Explanation("residual-scale", "", ("", ""), 2 * X, lambda at: 2 * at("first"), ("first",))
    at = behind(norm(2 * X + UP, 1e-5), memory={"explained": [(earlier, known)]})
    (found,) = NormOfSum().explain(at)
    assert (found.cause, found.inputs, at.off(found.predicted) < 1e-6) == ("norm-order", ("first", "up"), True)
    assert found.compute is not None
    np.testing.assert_allclose(found.compute({"first": X, "up": UP}.__getitem__), found.predicted)
    assert not NormOfSum().explain(replace(at, a=norm(X + UP, 1e-5, ONE))), "a computes it of its own tensors"
    unknown = replace(at, memory={"explained": [(earlier, replace(known, compute=None))]})
    assert NormOfSum().explain(unknown)[0].compute is None


def test_few_tokens_or_features_do_not_show_a_norm_of_others() -> None:
    assert len(behind(X).rows(X)) == LEAST_TOKENS
    few = behind(norm(X + UP, 1e-5), real=np.arange(10).reshape(2, 5) < LEAST_TOKENS - 1)
    assert not NormOfSum().explain(few)
    x, up = X[..., :3], UP[..., :3]
    narrow = norm(x + up, 1e-5, GAIN[:3], SHIFT[:3])
    assert not NormOfSum().explain(module_site(x + up, narrow, {"up": up, "residual": x}, key="layer:output#0"))
