"""Numerical derivatives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["differences"]


def differences(value: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """Return the gradient by central differences of fourth order."""
    gradient = np.zeros_like(at)
    for index in np.ndindex(at.shape):
        unit = np.zeros_like(at)
        unit[index] = step
        wide, narrow = value(at + 2 * unit) - value(at - 2 * unit), value(at + unit) - value(at - unit)
        gradient[index] = (8 * narrow - wide) / (12 * step)
    return gradient
