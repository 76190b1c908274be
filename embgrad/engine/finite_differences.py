"""Slopes by finite differences, of functions that are known up to rounding and may have kinks."""

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
        rounding: the dtype's.
        largest: the largest step of finite differences, relative to the activations' norm.
        steps: how many steps are tried at most, each smaller than the one before by `RATIO`.
        near: the step by which the function itself is looked at for its rounding: so small that it is a straight line but for
            that.
        agreeing: how many results of neighbouring steps must agree: two agree by chance where they cross the same kinks. In
            half precision few steps are neither too large nor lost in rounding, and more is left to the tolerance.
        wide: how many times its uncertainty a slope may be off.
        tolerance: how far a right gradient may be off, relative to its own norm.
    """

    rounding: float
    largest: float
    steps: int
    near: float
    agreeing: int
    wide: float
    tolerance: float


#: By dtype. The smallest steps of float64 stay above float32's rounding, which models come by that cast for a moment.
PRECISION: Final[Mapping[str, Precision]] = {
    "float64": Precision(2.0**-52, 3e-2, 10, 2.5e-7, 3, 4.0, 1e-6),
    "float32": Precision(2.0**-23, 1e-1, 7, 2e-6, 3, 4.0, 2e-3),
    "float16": Precision(2.0**-10, 5e-1, 5, 2.0**-10, 2, 2.0, 1e-1),
    "bfloat16": Precision(2.0**-7, 1.0, 5, 2.0**-7, 2, 2.0, 2e-1),
}

#: How much smaller each step is than the one before.
RATIO: Final = 3.0

#: So many steps are always tried. Smaller ones follow where these do not tell enough, or tell something else than expected.
FIRST: Final = 5

#: How many times the rounding that is seen it may come to, and how much less than could be it is believed to come to.
SEEN: Final = 1.5
LESS: Final = 8.0

#: At so many neighbouring steps a kink in the very point must look alike.
SAME: Final = 3

#: The number of points at which rounding is measured, on one side, so that a kink in the point is not taken for rounding.
NEAR: Final = 6

#: Returns at a step the values of some functions, and the size of the numbers that each is made of.
Values = Callable[[float], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Slopes:
    """The slopes of some functions at zero.

    Attributes:
        found: the slopes.
        uncertainty: the error that each may have.
        kink: by how much each slope changes at zero itself.
        stairs: whether a function does not change near zero, and does further away: it is computed with fewer digits than the
            model says, or is rounded by design.
    """

    found: np.ndarray
    uncertainty: np.ndarray
    kink: np.ndarray
    stairs: np.ndarray


def precision_of(dtype: str) -> Precision:
    """Return the precision of slopes in a dtype; for an unknown dtype that of the coarsest."""
    return PRECISION.get(dtype, PRECISION["bfloat16"])


def differences(value: Values, precision: Precision, expected: np.ndarray, share: np.ndarray) -> Slopes:
    """Return the slopes at zero by central differences, with steps so small that they do not cross kinks, where rounding allows.

    Args:
        value: the functions, all of which one call computes.
        precision: the precision of the model.
        expected: the slopes to be tested. They decide how many steps are tried, never the result.
        share: the size of a slope that counts.
    """
    steps = _Steps(value, precision)
    while True:
        steps.more()
        if steps.count < FIRST:
            continue
        slopes = steps.slopes(steps.noise, np.zeros(len(expected), bool))
        agree = np.abs(slopes.found - expected) <= tolerances(slopes, precision, expected, share)
        known = precision.wide * slopes.uncertainty <= precision.tolerance * np.maximum(np.abs(slopes.found), share)
        # A smaller step is of no use where its rounding alone is as much.
        if np.all(agree & (known | (steps.noise_at_next >= slopes.uncertainty))) or steps.count >= precision.steps:
            break
    # In half precision what rounding may come to is so much that only what it does come to tells anything.
    settled = agree & known if precision.steps == FIRST else agree
    return slopes if settled.all() else steps.slopes(*steps.rounding())


def tolerances(slopes: Slopes, precision: Precision, expected: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return how far the measured and the expected slopes may be apart."""
    large = np.maximum.reduce([np.abs(slopes.found), np.abs(expected), share])
    return np.asarray(precision.wide * slopes.uncertainty + precision.tolerance * large)


class _Steps:
    """The values of the functions on both sides of zero, from step to smaller step."""

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

    def more(self) -> None:
        """Try the next step."""
        step = self._precision.largest / RATIO**self.count
        (more, size), (less, other) = self._value(step), self._value(-step)
        self._size = np.maximum.reduce([self._size, size, other])
        self._taken.append(step)
        self._central.append((more - less) / (2 * step))
        self._bend.append((more + less - 2 * self._here) / step)

    def rounding(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the rounding error of each function where nothing else bends it, and which functions are stairs."""
        near = np.array([self._value(self._precision.near * number)[0] for number in range(NEAR)])
        bent = near[:-2] - 2 * near[1:-1] + near[2:]
        seen = np.sqrt((bent**2).mean(0) / 6)  # a second difference of independent errors has six times their variance
        far = np.abs(self._central[0]) * self._precision.near * (NEAR - 1)  # the change that the slope predicts
        stairs = (near == near[0]).all(0) & (far > self.noise)
        return np.maximum(self.noise / LESS, SEEN * seen), stairs

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
        # In half precision the steps are so large that anything bends, and kinks are lost in the tolerance.
        corner = np.maximum(np.abs(turn) - 4 * rough, 0.0) if agreeing > 2 else 0 * turn
        same = np.abs(turn[-SAME:].sum(0)) >= SAME * np.abs(turn[-SAME:]).max(0) / 2
        kink = np.where(same, corner[-SAME:].min(0), 0.0)
        found, rough = combined[agreeing - 1 :], rough[agreeing - 1 :]
        groups = [combined[last + 1 - agreeing : last + 1] for last in range(agreeing - 1, len(combined))]
        apart = np.array([group.max(0) - group.min(0) for group in groups])
        unknown = apart + rough + corner[agreeing - 1 :] / 2
        distance = np.abs(found[None] - found[:, None])  # of each from each other
        smaller = np.arange(len(found))[None] > np.arange(len(found))[:, None]
        contradicted = np.where(smaller[..., None], np.maximum(distance - 2 * rough[None], 0.0), 0.0)
        unknown = unknown + np.where(stairs, distance, contradicted).max(1)
        best, each = unknown.argmin(0), np.arange(found.shape[1])
        return Slopes(found[best, each], unknown[best, each], kink, stairs)
