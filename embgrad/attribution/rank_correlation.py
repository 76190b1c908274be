"""Kendall's rank correlation with ties."""

from __future__ import annotations

import numpy as np

__all__ = ["kendall"]


def kendall(a: np.ndarray, b: np.ndarray) -> float:
    """Return Kendall's tau-b of two arrays of shape (n,): the concordant pairs minus the discordant ones, scaled to -1 to 1.

    A pair that is tied in one of them counts in neither. Kendall, "The treatment of ties in ranking problems", 1945.

    Returns:
        NaN where all entries of an array are equal, or there are fewer than two.
    """
    first, second = (np.sign(array[:, None] - array) for array in (a, b))
    untied = np.count_nonzero(first) * np.count_nonzero(second)
    return float((first * second).sum() / np.sqrt(float(untied))) if untied else float("nan")
