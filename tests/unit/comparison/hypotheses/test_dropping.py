"""Dropout that one model has left on is found by zeros and by the factor of the features that are kept."""

from __future__ import annotations

import numpy as np
import pytest

from embgrad.comparison.hypotheses.dropping import Dropout
from embgrad.comparison.hypotheses.site import Site
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
