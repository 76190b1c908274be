"""The norm that outputs are of their inputs is fitted, with its kind, epsilon, gain and bias."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.norm_fit import (
    EPSILONS,
    Parameters,
    changed_norm,
    fitted_norm,
    norm_with_gain,
    what_differs,
    with_best_epsilon,
)
from embgrad.comparison.hypotheses.sources import relative
from tests.unit.comparison.hypotheses.normed import GAIN, SHIFT, SIZE, ZERO, X, norm

EPSILON = 1e-5


def test_a_vector_of_equal_numbers_is_zero_after_a_norm_without_epsilon() -> None:
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(Parameters(True, 0.0, GAIN, SHIFT).apply(np.full((1, SIZE), 3.0)), SHIFT[None])


@pytest.mark.parametrize(("epsilon", "wanted"), [(4e-6, 1e-5), (2e-6, 2e-6)])
def test_a_declared_epsilon_is_fitted_where_the_best_is_hardly_nearer(epsilon: float, wanted: float) -> None:
    """Of the usual ones 1e-6 is off by 3e-6 and 1e-6, and the declared one by 6e-6 and 8e-6."""
    found = fitted_norm(X.reshape(-1, SIZE), norm(X, epsilon).reshape(-1, SIZE), 1e-5)
    assert found is not None
    assert found.epsilon == pytest.approx(wanted)


def test_of_two_kinds_with_a_declared_epsilon_the_nearer_is_fitted() -> None:
    random = np.random.default_rng(2)
    x = (X - X.mean(-1, keepdims=True)).reshape(-1, SIZE)
    x += 3e-3 * random.normal(size=(len(x), 1)) * x.std(-1, keepdims=True)
    y = norm(x, 1e-3) * (1 + 3e-3 * random.normal(size=x.shape))
    found = fitted_norm(x, y, 1e-3)
    assert found is not None
    assert found.centred
    assert relative(norm_with_gain(x, y, False, 1e-3).apply(x), y) < 3 * relative(found.apply(x), y)


@pytest.mark.parametrize(("epsilon", "noise", "wanted"), [(1e-3, 0.0, 1e-3), (1e-8, 1e-6, 1e-12)])
def test_a_usual_epsilon_is_exact_and_the_first_that_fits_equally(epsilon: float, noise: float, wanted: float) -> None:
    x = X.reshape(-1, SIZE)
    y = norm(x, epsilon) * (1 + noise * np.random.default_rng(0).normal(size=x.shape))
    assert changed_norm(Parameters(True, 1e-2, GAIN, SHIFT), x, y, None).epsilon == wanted


def test_an_epsilon_that_hardly_matters_is_a_usual_one() -> None:
    large = 1e3 * X.reshape(-1, SIZE)
    found = fitted_norm(large, norm(large, 1e-5))
    assert found is not None
    assert found.epsilon in EPSILONS


@pytest.mark.parametrize("declared", [None, 1e-5])
def test_two_tokens_are_too_few_to_tell_a_norm(declared: float | None) -> None:
    few = X.reshape(-1, SIZE)[:3]
    assert fitted_norm(few[:2], np.tanh(few[:2]), declared) is None
    found = fitted_norm(few, norm(few, 1e-5), declared)
    assert found is not None
    np.testing.assert_allclose(found.apply(few), norm(few, 1e-5), atol=1e-4)


@pytest.mark.parametrize("shift", [ZERO, SHIFT])
def test_gains_are_fitted_to_features_that_hardly_vary(shift: np.ndarray) -> None:
    x = np.array([[5.0, -5.0, 0.01, -0.02, 3.0, -2.99], [5.0, -5.0, -0.02, 0.01, -3.0, 3.01], [4.0, -4.0, 0, 0, 1, -1]])
    found = norm_with_gain(x, norm(x, 1e-5, GAIN, shift), True, 1e-5)
    np.testing.assert_allclose(found.gain, GAIN)
    np.testing.assert_allclose(found.shift, shift, atol=1e-9)


def test_a_gain_is_fitted_to_features_that_do_not_vary() -> None:
    x = np.array([[1.0, -1, 2, -2, 0, 0], [2, -2, 1, -1, 0, 0], [3, -3, -1, 1, 0, 0]])
    found = norm_with_gain(x, norm(x, 1e-5), True, 1e-5)
    np.testing.assert_allclose(found.apply(x), norm(x, 1e-5), rtol=1e-9)


@pytest.mark.parametrize("noise", [0.0, 1e-5])
def test_no_bias_is_fitted_to_a_norm_without(noise: float) -> None:
    x = X.reshape(-1, SIZE)
    y = norm(x, 1e-3, GAIN, ZERO, centred=False) * (1 + noise * np.random.default_rng(0).normal(size=x.shape))
    assert not norm_with_gain(x, y, False, 1e-3).shift.any()


def test_three_tokens_show_an_unusual_epsilon() -> None:
    x = X.reshape(-1, SIZE)
    found, none = (fitted_norm(x[:count], norm(x[:count], 2e-3)) for count in (3, 2))
    assert found is not None
    assert (found.epsilon, none) == (pytest.approx(2e-3), None)


DIFFERENCES: dict[str, tuple[dict[str, Any], str, tuple[str, str]]] = {
    "kind": ({"centred": False}, "norm-kind", ("a layer norm", "a root-mean-square norm")),
    "epsilon": ({"epsilon": 1e-3}, "layer-norm-epsilon", ("1e-05", "0.001")),
    "epsilon and a gain that hardly differs": (
        {"epsilon": 1e-3, "gain": GAIN * (1 + 9e-4)},
        "layer-norm-epsilon",
        ("1e-05", "0.001"),
    ),
    "offset of b": ({"gain": GAIN + 1.0009}, "norm-offset", ("w", "1 + w")),
    "offset of a": ({"gain": GAIN - 1.0009}, "norm-offset", ("1 + w", "w")),
    "nearly an offset of b": ({"gain": GAIN + 1.05}, "different-weight", ("those of a", "others")),
    "nearly an offset of a": ({"gain": GAIN - 1.05}, "different-weight", ("those of a", "others")),
    "by head": ({"size": 3}, "norm-kind", ("6", "3")),
    "no bias": ({"shift": ZERO}, "missing-bias", ("added", "missing")),
    "no bias and another epsilon": ({"shift": ZERO, "epsilon": 1e-3}, "missing-bias", ("added", "missing")),
    "another gain": ({"gain": GAIN * 1.002, "shift": ZERO}, "different-weight", ("those of a", "others")),
    "another bias": ({"shift": SHIFT * 1.01}, "different-weight", ("those of a", "others")),
    "nothing": ({"gain": GAIN.copy(), "shift": SHIFT * 1.0005}, "", ("", "")),
}


@pytest.mark.parametrize(("changes", "cause", "values"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_what_differs_between_two_norms(changes: dict[str, Any], cause: str, values: tuple[str, str]) -> None:
    first = Parameters(True, EPSILON, GAIN, SHIFT)
    found = what_differs(first, replace(first, **changes))
    assert (found[0], found[2]) == (cause, values)


def test_norms_without_bias_that_do_not_differ_lack_none() -> None:
    first = Parameters(True, EPSILON, GAIN, ZERO)
    assert what_differs(first, replace(first, gain=GAIN.copy()))[0] == ""


def test_gains_near_zero_are_equal_up_to_their_size_beside_one() -> None:
    gain = np.where(np.arange(SIZE) == 0, 0.0, GAIN)
    changed = {"gain": gain + 9e-5, "shift": gain + 9e-5}
    first = Parameters(True, EPSILON, gain, gain)
    assert what_differs(first, replace(first, **changed, epsilon=1e-3))[0] == "layer-norm-epsilon"
    assert what_differs(first, replace(first, gain=gain + 2e-3 * (gain == 0)))[0] == "different-weight"


def test_digits_that_rounding_hides_are_left_out() -> None:
    """Of vectors of length 10 a change of epsilon by a hundredth of itself is less than the rounding of single precision."""
    x = 10 * X / np.sqrt((X**2).mean(-1, keepdims=True))
    found = with_best_epsilon(Parameters(False, 1e-12, GAIN, ZERO), x, norm(x, 1e-4 - 1e-6, centred=False, shift=ZERO))
    assert found.epsilon == 1e-4


def test_an_exponent_is_found_to_nine_digits() -> None:
    for epsilon in (3e-12, 2.5e-6, 0.4):
        x = X * epsilon**0.5
        found = with_best_epsilon(Parameters(True, 1e-5, GAIN, SHIFT), x, norm(x, epsilon))
        assert found.epsilon == pytest.approx(epsilon, rel=1e-6)
