"""A vector that both models hold, and that one alone adds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.held_vector import HeldVector
from embgrad.comparison.hypotheses.site import Before, Site
from embgrad.comparison.recording import HeldWeight
from tests.unit.comparison.hypotheses.modules import module_site

RANDOM = np.random.default_rng(0)
OUT, BIAS = RANDOM.normal(size=(2, 5, 3)), RANDOM.normal(size=3)


def site(b: np.ndarray, bias: np.ndarray = BIAS, layer: int = 0) -> Site:
    made = module_site(OUT, b, {})
    first, second = made.recordings
    held = HeldWeight("values.bias", "values", bias.shape, lambda: bias, layer=layer)
    return replace(made, layer=0, recordings=(replace(first, weights=(held,)), second))


@pytest.mark.parametrize(("sign", "values"), [(-1, ("added", "left out")), (1, ("left out", "added"))])
def test_the_vector_is_named_with_the_side_that_adds_it(sign: int, values: tuple[str, str]) -> None:
    (found,) = HeldVector().explain(site(OUT + sign * BIAS))
    assert (found.cause, found.setting, found.values) == ("missing-bias", "values.bias is", values)
    np.testing.assert_allclose(found.predicted, OUT + sign * BIAS)


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_bias_that_the_reference_adds_itself_is_added_twice(is_applied: bool) -> None:
    x, matrix = RANDOM.normal(size=(2, 5, 4)), RANDOM.normal(size=(3, 4))
    made = site(OUT + BIAS)
    held = HeldWeight("values.weight", "values", matrix.shape, lambda: matrix, layer=0)
    first = replace(made.recordings[0], weights=(*made.recordings[0].weights, held))
    tensors = {"values": x @ matrix.T + (BIAS if is_applied else 0), "values:input": x}
    before = [Before(name, values) for name, values in tensors.items()]
    (found,) = HeldVector().explain(replace(made, before=before, recordings=(first, made.recordings[1])))
    wanted = "added once in a and added twice in b" if is_applied else "left out in a and added in b"
    assert found.text == f"values.bias is {wanted}"


def test_other_differences_are_not_named() -> None:
    """A vector that differs between tokens, and zeros."""
    moved = OUT - BIAS * np.linspace(0.9, 1.1, 5)[:, None]
    for made in (site(moved), site(OUT, np.zeros(3))):
        assert HeldVector().explain(made) == []


def test_a_vector_that_is_no_weight_of_the_layer_is_said() -> None:
    for made in (site(OUT - 1.01 * BIAS), site(OUT - BIAS, layer=1)):
        (found,) = HeldVector().explain(made)
        assert found.cause == "different-weight"
        assert found.text == "b adds another vector at up to each token, which is no weight of the layer"
        np.testing.assert_allclose(found.predicted, made.b)
