"""Dropout that one model has left on is found by zeros and by the factor of the features that are kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_parts import Mask
from embgrad.comparison.hypotheses.dropping import Dropout, _is_dropped, is_dropped_in
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Source
from tests.unit.comparison.hypotheses.attended import BEFORE, HEADS, REAL, SIZE
from tests.unit.comparison.hypotheses.planted import site_of

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(2, 2, 8, 16))
KEPT = RANDOM.uniform(size=X.shape) > 0.2


def dropped(x: np.ndarray, factor: float = 1.25) -> np.ndarray:
    """Return a tensor after dropout at the rate 0.2, which keeps features times 1 / 0.8."""
    return np.where(KEPT, factor * x, 0.0)


def site(a: np.ndarray, b: np.ndarray) -> Site:
    return site_of(a, b, {"dense": X, "residual": Y})


FOUND = {
    "in b": (X, dropped(X), ("off", "left on")),
    "in a": (dropped(X), X, ("left on", "off")),
    "in a sum of b": (X + Y, dropped(X) + Y, ("off", "left on")),
    "in a sum of a": (X + dropped(Y), X + Y, ("left on", "off")),
}


@pytest.mark.parametrize(("a", "b", "values"), FOUND.values(), ids=FOUND)
def test_dropout_is_named_with_the_model_that_has_it(a: np.ndarray, b: np.ndarray, values: tuple[str, str]) -> None:
    (found,) = Dropout().explain(site(a, b))
    first, second = ("b", "a") if values[1] == "left on" else ("a", "b")
    text = f"{first} draws random numbers in evaluation mode: dropout was left on, and is off in {second}"
    assert (found.cause, found.text, found.values) == ("dropout", text, values)
    np.testing.assert_array_equal(found.predicted, b)


OTHERS = {
    "scaled": 1.25 * X,
    "another factor": dropped(X, 1.6),
    "zeros alone": dropped(X, 1.0),
    "smaller": dropped(X, 0.8),
    "all zeros": 0 * X,
    "another tensor": np.tanh(X),
    "ReLU": np.maximum(X, 0),
    "one other": np.where(np.arange(16) == 3, 2.0, dropped(X)),
}


@pytest.mark.parametrize("b", OTHERS.values(), ids=OTHERS)
def test_what_is_no_dropout_is_not_named(b: np.ndarray) -> None:
    assert not Dropout().explain(site(X, b))


def test_tensors_of_another_shape_are_not_dropped_from() -> None:
    assert not Dropout().explain(site_of(X, dropped(X), {"wide": np.tile(X, 2), "zeros": 0 * X}))


def looks_dropped(dropped: int, size: int, factor: float, *, off: float = 0.0) -> bool:
    """Return whether so many zeros among values, of which the kept are times a factor, one of them nearly, look like dropout."""
    values = np.linspace(1.0, 2.0, size)
    factors = np.where(np.arange(size) < dropped, 0.0, factor)
    factors[-1] += off
    return _is_dropped(values, values * factors - values)


SHARES = {
    "a half": (50, 100, 2.0, True),
    "the least": (1, 200, 1 / 0.995, True),
    "less than the least": (1, 201, 1 / 0.995, False),
    "none": (0, 100, 1.01, False),
    "the most": (15, 20, 4.0, True),
    "more than the most": (16, 20, 5.0, False),
    "within four standard deviations": (69, 100, 2.0, True),
    "beyond four standard deviations": (71, 100, 2.0, False),
    "fewer than expected": (31, 100, 2.0, True),
    "far fewer than expected": (29, 100, 2.0, False),
    "two that are kept": (2, 4, 2.0, True),
    "one that is kept": (1, 2, 2.0, False),
}


@pytest.mark.parametrize(("dropped", "size", "factor", "wanted"), SHARES.values(), ids=SHARES)
def test_the_kept_are_as_much_larger_as_many_are_zeros(dropped: int, size: int, factor: float, wanted: bool) -> None:
    assert looks_dropped(dropped, size, factor) is wanted


def test_the_kept_have_one_factor_up_to_a_thousandth() -> None:
    assert looks_dropped(50, 100, 2.0, off=1.9e-3)  # of the factor, which is 2
    assert not looks_dropped(50, 100, 2.0, off=2.1e-3)
    assert not looks_dropped(50, 100, 2.0, off=-2.1e-3)


@pytest.mark.parametrize("blank", [False, True])
def test_weights_of_an_attention_are_dropped_from(blank: bool) -> None:
    """A query that sees no key takes nothing."""
    sources = [Source(name, BEFORE[f"layers.0.attention.{name}"][:, :4]) for name in "qkv"]
    core = Core(*sources, HEADS, SIZE**-0.5, REAL[:, :4], mask=Mask(causal=True, shift=-1 if blank else 0, blank=blank))
    weights = core.weights(core.whole)
    kept = np.random.default_rng(0).uniform(size=weights.shape) > 0.2
    left = ((weights * kept / 0.8) @ core.taken(core.whole)).transpose(0, 2, 1, 3).reshape(core.predicted.shape)
    assert is_dropped_in(core, left)
    assert not is_dropped_in(core, 1.25 * core.predicted)
    assert not is_dropped_in(replace(core, joined="unturned"), left)


def test_values_near_zero_are_left_out() -> None:
    values, kept = np.array([1.0, 1.0, 1.0, 1.0, 0.9e-3]), np.array([2.0, 2.0, 0.0, 0.0, 7.0])
    assert _is_dropped(values, values * kept - values)
    values[-1] = 1.1e-3
    assert not _is_dropped(values, values * kept - values)
    assert not _is_dropped(np.zeros(3), np.ones(3))
