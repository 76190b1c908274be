"""Tells rows that a softmax gave from logits, by their sums."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.errors import ObjectiveError

__all__ = ["are_probabilities", "refuse_probabilities"]

#: How far a row's sum may be from 1 for the row to be taken for probabilities, half precision included.
PROBABILITY_TOLERANCE: Final = 5e-3

#: The same for rows of float32 or float64, which a softmax has summed to 1 far better.
EXACT_TOLERANCE: Final = 1e-5


def refuse_probabilities(values: np.ndarray) -> None:
    """Refuse what a softmax gave, told by its sums, as exact as its dtype; logits may come near to such by chance.

    Args:
        values: (row, classes), float64, which may have been widened.

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
    """Whether the values are of half precision, float16 or bfloat16, widened since."""
    single = values.astype(np.float32)
    with np.errstate(over="ignore"):
        return bool((single.astype(np.float16) == values).all() or not (single.view(np.uint32) & 0xFFFF).any())


def are_probabilities(values: np.ndarray, near: float = PROBABILITY_TOLERANCE) -> np.ndarray:
    """Whether each row has no negative entries and sums to 1.

    Args:
        values: (row, classes).
        near: how far a sum may be from 1.

    Returns:
        (row,), bool.
    """
    near_one = np.abs(values.sum(1) - 1) < near
    return np.asarray(near_one & (values >= 0).all(1))
