"""The slopes of distances with which an attention's heads are nearest to their outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_parts import PositionBias
from embgrad.comparison.hypotheses.site import Site

__all__ = ["fitted_slopes"]

#: The logarithms of the slopes that are tried first, to the base of two. With far steeper ones each token sees itself alone, so
#: that any tensor would be the output of such an attention.
EXPONENTS: Final = np.arange(-14, 2.5, 0.5)

#: The number of times that the interval of an exponent is cut to two thirds.
CUTS: Final = 40


def fitted_slopes(site: Site, core: Core) -> Core | None:
    """Return the core with the slope of each head that is nearest to b's output; None where heads are not side by side there.

    Slopes of both signs, which no model has, are none: in a short text such a slope for each head is near to much else.
    """
    if core.joined != "by head" or site.b.shape[-1] != core.heads * core.value_size:
        return None
    wanted = core.whole.of(site.b, core.value_size)

    def with_slopes(slopes: np.ndarray) -> Core:
        return replace(core, bias=PositionBias(slopes=slopes))

    def off(slopes: np.ndarray) -> np.ndarray:
        """Return the squared distance of each head's output, (head,)."""
        apart = (with_slopes(slopes).part(core.whole) - wanted)[site.real]
        return np.asarray((apart**2).sum((0, 2)))

    first = [sign * np.exp2(exponent) for sign in (1.0, -1.0) for exponent in EXPONENTS]
    offs = np.stack([off(np.full(core.heads, slope)) for slope in first])
    best = np.array(first)[offs.argmin(0)]
    if np.ptp(np.sign(best)):
        return None
    step = EXPONENTS[1] - EXPONENTS[0]
    exponents = _nearest(
        lambda it: off(np.sign(best) * np.exp2(it)), np.log2(abs(best)) - step, np.log2(abs(best)) + step
    )
    return with_slopes(np.sign(best) * np.exp2(exponents))


def _nearest(off: Callable[[np.ndarray], np.ndarray], low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return for each head the number in an interval at which its distance is least."""
    for _ in range(CUTS):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        is_lower = off(first) <= off(second)
        low, high = np.where(is_lower, low, first), np.where(is_lower, second, high)
    return np.asarray((low + high) / 2)
