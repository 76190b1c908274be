"""Central finite differences of the closed form's forward pass, and how far they may be off."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Final

import numpy as np

from embgrad.testing.examples import finite_difference
from tests.contract.properties.cases import Case
from tests.contract.properties.rounding import unit_roundoff

#: Of a step in a direction of length 1. Large ones miss the curvature, small ones drown in rounding: the best counts.
STEPS: Final = (1e-2, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5)

#: How many of float64's unit roundoffs a value of the forward pass may be off, relative.
ROUNDINGS: Final = 64.0


def slope(value: Callable[[np.ndarray], float], at: np.ndarray, direction: np.ndarray) -> tuple[float, float]:
    """The slope in a direction of length 1, and its uncertainty.

    Of two steps the smaller one's error is the smaller, so that what they are apart bounds it; to which rounding comes.
    """
    size = max(abs(value(at)), 1.0)
    found = [finite_difference(value, at, direction, step) for step in STEPS]
    told = [
        (abs(wide - narrow) + ROUNDINGS * unit_roundoff("float64") * size / step, narrow)
        for (wide, narrow), step in zip(pairwise(found), STEPS[1:], strict=True)
    ]
    uncertainty, best = min(told)
    return best, uncertainty


def slope_at(case: Case, point: str, value: np.ndarray, direction: np.ndarray) -> tuple[float, float]:
    """That of ΣL where the value at a point moves from this one."""

    def total(new: np.ndarray) -> float:
        return float(case.closed_form(override={point: new})["objective"].sum())

    return slope(total, value, direction)


def direction_of(shape: tuple[int, ...], seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=shape)
    return np.asarray(drawn / np.linalg.norm(drawn))
