"""Norms and projections before an attention are computed with the port's weights."""

from __future__ import annotations

import numpy as np
import pytest

from embgrad.comparison.hypotheses.other_weights import with_weights_of_b
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Source
from tests.unit.comparison.hypotheses.modules import module_site

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(2, 5, 8))
GAIN, OTHER = 1 + 0.3 * RANDOM.normal(size=(2, 8))
MATRIX, BIAS, MATRIX_B, BIAS_B = (RANDOM.normal(size=shape) for shape in ((8, 8), (8,), (8, 8), (8,)))


def normed(gain: np.ndarray) -> np.ndarray:
    """Return the root-mean-square norm of each half of the features with half of a gain, as of two heads."""
    parts = X.reshape(2, 5, -1, len(gain))
    return np.asarray(parts / np.sqrt((parts**2).mean(-1, keepdims=True) + 1e-6) * gain).reshape(X.shape)


def site(returned: np.ndarray, held_a: dict[str, np.ndarray], held_b: dict[str, np.ndarray]) -> Site:
    before = {"q": returned, "q:input": X}
    return module_site(X, X, before, key="out:input#0", held_a=held_a, held_b=held_b)


@pytest.mark.parametrize("size", [8, 4])
def test_a_norm_has_the_gain_of_b(size: int) -> None:
    mine, its = GAIN[:size], OTHER[:size]
    at = site(normed(mine), {"q.gain": mine}, {"q.gain": its})
    (found,) = with_weights_of_b(at, Source("q", normed(mine)))
    np.testing.assert_allclose(found.values, normed(its), rtol=1e-6)
    np.testing.assert_allclose(found.read({"q:input": X}.__getitem__), found.values)
    assert (found.names, found.cause) == (("q:input",), "different-weight")
    assert found.sentence.startswith("b has q.gain with other values")


@pytest.mark.parametrize("changed", ["matrix", "bias", "both"])
def test_a_projection_has_the_weights_of_b(changed: str) -> None:
    matrix = MATRIX if changed == "bias" else MATRIX_B
    bias = BIAS if changed == "matrix" else BIAS_B
    returned = X @ MATRIX.T + BIAS
    at = site(returned, {"q.W": MATRIX, "q.b": BIAS}, {"q.W": matrix, "q.b": bias})
    found = [*with_weights_of_b(at, Source("q", returned))]
    wanted = X @ matrix.T + bias
    assert any(np.allclose(each.values, wanted) for each in found)
    assert all(
        ("q.W" in each.sentence, "q.b" in each.sentence) == (changed != "bias", changed != "matrix") for each in found
    )


@pytest.mark.parametrize("number", [0, 1])
def test_a_projection_has_the_rows_of_a_fused_weight_of_b(number: int) -> None:
    returned, changed = X @ MATRIX.T, MATRIX + 0.02 * MATRIX_B
    both = np.concatenate([changed, 2 * MATRIX_B] if number == 0 else [2 * MATRIX_B, changed])
    at = site(returned, {"q.W": MATRIX}, {"both.W": both})
    (found,) = with_weights_of_b(at, Source("q", returned))
    np.testing.assert_allclose(found.values, X @ changed.T, atol=1e-6)
    assert found.sentence.startswith("b has q.W with other values")


def test_equal_weights_and_parts_of_tensors_have_no_others() -> None:
    returned = X @ MATRIX.T + BIAS
    same = {"q.W": MATRIX, "q.b": BIAS}
    assert [*with_weights_of_b(site(returned, same, same), Source("q", returned))] == []
    at = site(returned, same, {"q.W": MATRIX_B, "q.b": BIAS})
    assert [*with_weights_of_b(at, Source("q", returned[..., :4], np.arange(4)))] == []
    assert [*with_weights_of_b(at, Source("q", returned, matrix=MATRIX, bias=BIAS))] == []
    assert [*with_weights_of_b(at, Source("unknown", returned))] == []
