"""Distinguish softmax outputs from logits by the sums of their rows."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.errors import ObjectiveError

__all__ = ["are_probabilities", "refuse_probabilities"]

#: The largest deviation of a row's sum from 1 at which the row counts as probabilities; in bfloat16 a softmax misses 1 by 0.006.
PROBABILITY_TOLERANCE: Final = 1e-2

#: The same for rows of float32 or float64, whose sum after a softmax is much closer to 1.
EXACT_TOLERANCE: Final = 1e-5


def refuse_probabilities(values: np.ndarray) -> None:
    """Raise an error if all rows are probabilities.

    The tolerance depends on the dtype's precision, since rows of logits may be close to probabilities by chance.

    Args:
        values: (row, classes), float64, possibly widened from a smaller dtype.

    Raises:
        ObjectiveError: all rows are probabilities.
    """
    if not len(values) or values.min() < 0:
        return
    near = PROBABILITY_TOLERANCE if _are_half(values) else EXACT_TOLERANCE
    if are_probabilities(values, near).all():
        raise ObjectiveError(
            "the output's rows are not negative and sum to 1, so the model seems to end in a softmax, and of='logits' would "
            "take a softmax of it again: pass of='probabilities', or name the logits with output=..."
        )


def _are_half(values: np.ndarray) -> bool:
    """Return whether the values were half precision (float16 or bfloat16) before they were widened."""
    single = values.astype(np.float32)
    with np.errstate(over="ignore"):
        return bool((single.astype(np.float16) == values).all() or not (single.view(np.uint32) & 0xFFFF).any())


def are_probabilities(values: np.ndarray, near: float = PROBABILITY_TOLERANCE) -> np.ndarray:
    """Return for each row whether it has no negative entries and sums to 1.

    Args:
        values: (row, classes).
        near: how far a sum may be from 1.

    Returns:
        (row,), bool.
    """
    near_one = np.abs(values.sum(1) - 1) < near
    return np.asarray(near_one & (values >= 0).all(1))
