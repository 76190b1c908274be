"""Slopes by finite differences of functions that have rounding errors and may have kinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

__all__ = ["Precision", "Slopes", "differences", "precision_of", "tolerances"]


@dataclass(frozen=True)
class Precision:
    """The precision of slopes in a model that computes in some dtype.

    Attributes:
        rounding: the rounding error of the dtype.
        largest: the largest step of finite differences, relative to the activations' norm.
        steps: the most steps to try, each smaller than the one before by `RATIO`.
        near: the step with which the rounding error is measured, so small that the function is a straight line apart from it.
        agreeing: the number of neighbouring steps whose results must agree: two may agree by chance where they cross the same
            kinks. In half precision, where most steps are too large or lost in rounding, the tolerance is larger instead.
        wide: the largest accepted error of a slope, as a multiple of its uncertainty.
        tolerance: the largest accepted error of a gradient, relative to its norm.
    """

    rounding: float
    largest: float
    steps: int
    near: float
    agreeing: int
    wide: float
    tolerance: float


#: The precisions by dtype. The smallest steps of float64 exceed float32's rounding, as models may cast to float32 in between.
PRECISION: Final[Mapping[str, Precision]] = {
    "float64": Precision(2.0**-52, 3e-2, 10, 2.5e-7, 3, 4.0, 1e-6),
    "float32": Precision(2.0**-23, 1e-1, 7, 2e-6, 3, 4.0, 2e-3),
    "float16": Precision(2.0**-10, 5e-1, 5, 2.0**-10, 2, 2.0, 1e-1),
    "bfloat16": Precision(2.0**-7, 1.0, 5, 2.0**-7, 2, 2.0, 2e-1),
}

#: The ratio of each step to the next.
RATIO: Final = 3.0

#: The number of steps that are always tried. Smaller ones follow where these do not suffice, or disagree with the expected slope.
FIRST: Final = 5

#: The assumed rounding error, as a multiple of the measured one, and at least this fraction of the largest possible one.
SEEN: Final = 1.5
LESS: Final = 8.0

#: The number of neighbouring steps at which a kink at zero itself must look alike.
SAME: Final = 3

#: The number of points at which rounding is measured, on one side only, so that a kink at zero does not count as rounding.
NEAR: Final = 6

#: Takes a step, and returns the values of the functions and the sizes of the numbers from which each is computed.
Values = Callable[[float], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Slopes:
    """The slopes of some functions at zero.

    Attributes:
        uncertainty: the possible error of each.
        kink: the change of each slope at zero itself.
        stairs: whether a function is constant near zero and changes further away: it is computed with fewer digits than the
            dtype has, or is rounded by design.
    """

    found: np.ndarray
    uncertainty: np.ndarray
    kink: np.ndarray
    stairs: np.ndarray


def precision_of(dtype: str) -> Precision:
    """Return the precision of slopes in a dtype; an unknown dtype has that of the coarsest."""
    return PRECISION.get(dtype, PRECISION["bfloat16"])


def differences(value: Values, precision: Precision, expected: np.ndarray, share: np.ndarray) -> Slopes:
    """Return the slopes at zero by central differences, with steps small enough not to cross kinks, as far as rounding allows.

    Args:
        value: the functions, all of which one call computes.
        precision: the precision of the model.
        expected: the slopes to be tested. They determine the number of steps, never the result.
        share: the size of a slope that counts.
    """
    steps = _Steps(value, precision)
    while True:
        steps.add()
        if steps.count < FIRST:
            continue
        slopes = steps.slopes(steps.noise, np.zeros(len(expected), bool))
        agree = np.abs(slopes.found - expected) <= tolerances(slopes, precision, expected, share)
        known = precision.wide * slopes.uncertainty <= precision.tolerance * np.maximum(np.abs(slopes.found), share)
        # A smaller step is of no use where its rounding error alone is as large.
        if np.all(agree & (known | (steps.noise_at_next >= slopes.uncertainty))) or steps.count >= precision.steps:
            break
    # In half precision the possible rounding error is so large that it must be measured.
    settled = agree & known if precision.steps == FIRST else agree
    return slopes if settled.all() else steps.slopes(*steps.rounding())


def tolerances(slopes: Slopes, precision: Precision, expected: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return the largest accepted difference between the measured and the expected slopes."""
    large = np.maximum.reduce([np.abs(slopes.found), np.abs(expected), share])
    return np.asarray(precision.wide * slopes.uncertainty + precision.tolerance * large)


class _Steps:
    """The values of the functions on both sides of zero, at successively smaller steps."""

    def __init__(self, value: Values, precision: Precision) -> None:
        self._value = value
        self._precision = precision
        self._here, self._size = value(0.0)
        self._taken: list[float] = []
        self._central: list[np.ndarray] = []
        self._bend: list[np.ndarray] = []

    @property
    def count(self) -> int:
        """The number of steps that were tried."""
        return len(self._taken)

    @property
    def noise(self) -> np.ndarray:
        """The rounding error that each function may have."""
        return np.asarray(4 * self._precision.rounding * self._size)

    @property
    def noise_at_next(self) -> np.ndarray:
        """The error that rounding would cause in the slopes of the next step."""
        return np.asarray(self.noise * RATIO / self._taken[-1])

    def add(self) -> None:
        """Try the next step."""
        step = self._precision.largest / RATIO**self.count
        (right, right_size), (left, left_size) = self._value(step), self._value(-step)
        self._size = np.maximum.reduce([self._size, right_size, left_size])
        self._taken.append(step)
        self._central.append((right - left) / (2 * step))
        self._bend.append((right + left - 2 * self._here) / step)

    def rounding(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rounding error of each function where nothing else bends it, and which functions are stairs."""
        near = np.array([self._value(self._precision.near * number)[0] for number in range(NEAR)])
        bent = near[:-2] - 2 * near[1:-1] + near[2:]
        measured = np.sqrt(
            (bent**2).mean(0) / 6
        )  # a second difference of independent errors has six times their variance
        far = np.abs(self._central[0]) * self._precision.near * (NEAR - 1)  # the change that the slope predicts
        stairs = (near == near[0]).all(0) & (far > self.noise)
        return np.maximum(self.noise / LESS, SEEN * measured), stairs

    def slopes(self, noise: np.ndarray, stairs: np.ndarray) -> Slopes:
        """Return the best estimate of the slopes.

        Neighbouring steps are combined to fourth order (Richardson). The spread of some successive combinations is the
        uncertainty of the last, together with rounding and with a difference between the two sides that does not shrink along
        with the step. A result that smaller steps contradict by more than their rounding is uncertain by that much; a result
        of stairs by the largest contradiction of any step.
        """
        steps, central, bend = np.array(self._taken), np.array(self._central), np.array(self._bend)
        square, agreeing = RATIO**2, self._precision.agreeing
        combined = (square * central[1:] - central[:-1]) / (square - 1)
        turn = (RATIO * bend[1:] - bend[:-1]) / (RATIO - 1)
        rough = noise / steps[1:, None]
        # In half precision the steps are so large that every function bends, and kinks are within the tolerance.
        corner = np.maximum(np.abs(turn) - 4 * rough, 0.0) if agreeing > 2 else 0 * turn
        same = np.abs(turn[-SAME:].sum(0)) >= SAME * np.abs(turn[-SAME:]).max(0) / 2
        kink = np.where(same, corner[-SAME:].min(0), 0.0)
        found, rough = combined[agreeing - 1 :], rough[agreeing - 1 :]
        groups = [combined[last + 1 - agreeing : last + 1] for last in range(agreeing - 1, len(combined))]
        spread = np.array([group.max(0) - group.min(0) for group in groups])
        unknown = spread + rough + corner[agreeing - 1 :] / 2
        distance = np.abs(found[None] - found[:, None])  # of each from each other
        smaller = np.arange(len(found))[None] > np.arange(len(found))[:, None]
        contradicted = np.where(smaller[..., None], np.maximum(distance - 2 * rough[None], 0.0), 0.0)
        unknown = unknown + np.where(stairs, distance, contradicted).max(1)
        best, each = unknown.argmin(0), np.arange(found.shape[1])
        return Slopes(found[best, each], unknown[best, each], kink, stairs)
