"""Central finite differences of the closed form's forward pass, and their uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import numpy as np

from embgrad.testing.examples import finite_difference
from tests.contract.properties.cases import Case
from tests.contract.properties.rounding import unit_roundoff

#: The lengths of steps: large ones miss the curvature, and small ones are lost in rounding, so that the best counts.
STEPS: Final = (1e-2, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)

#: The relative error of a value of the forward pass, in unit roundoffs of float64.
ROUNDINGS: Final = 64.0


def slope(value: Callable[[np.ndarray], float], at: np.ndarray, direction: np.ndarray) -> tuple[float, float]:
    """Return the slope in a direction of length 1, and its uncertainty.

    The difference between two steps bounds the error of the smaller one, apart from rounding.
    """
    size = max(abs(value(at)), 1.0)
    differences = [finite_difference(value, at, direction, step) for step in STEPS]
    bounds = [
        (abs(wide - narrow) + ROUNDINGS * unit_roundoff("float64") * size / step, narrow)
        for (wide, narrow), step in zip(pairwise(differences), STEPS[1:], strict=True)
    ]
    uncertainty, best = min(bounds)
    return best, uncertainty


def slope_at(case: Case, point: str, value: np.ndarray, direction: np.ndarray) -> tuple[float, float]:
    """Return the slope of ΣL when the value at a point moves."""

    def total(new: np.ndarray) -> float:
        return float(case.closed_form(override={point: new})["objective"].sum())

    return slope(total, value, direction)


def direction_of(shape: tuple[int, ...], seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=shape)
    return np.asarray(drawn / np.linalg.norm(drawn))
