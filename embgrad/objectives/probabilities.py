"""Log-probabilities of logits, and how to distinguish the output of a softmax from logits."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.errors import ObjectiveError
from embgrad.objectives.selection import entries

__all__ = ["are_probabilities", "refuse_probabilities", "surprisals"]

#: The largest deviation of a row's sum from 1 at which the row counts as probabilities; in bfloat16 a softmax misses 1 by 0.006.
PROBABILITY_TOLERANCE: Final = 1e-2

#: The same for rows of float32 or float64, whose sum after a softmax is much closer to 1.
EXACT_TOLERANCE: Final = 1e-5


def refuse_probabilities(values: np.ndarray) -> None:
    """Raise an error if all rows are probabilities.

    The tolerance depends on the dtype's precision, since rows of logits may be close to probabilities by chance.

    Args:
        values: (row, classes), float64, possibly widened from a smaller dtype.
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
    with np.errstate(over="ignore"):
        single = values.astype(np.float32)
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


def surprisals(values: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the negative log-probability of the label of each row of logits, (row,), and its gradient, (row, classes).

    Args:
        values: logits, float64, (row, classes).
        labels: the class of each row, (row,).
    """
    shifted = values - values.max(1, keepdims=True, initial=-np.inf)
    of_label, each = entries(shifted, labels), np.arange(len(labels))
    slopes = np.exp(shifted, out=shifted)  # in place: a row is as long as the vocabulary in a language model
    label = slopes[each, labels]
    # For a confident prediction, sum the other classes' probabilities: 1 - p would lose all their digits.
    slopes[each, labels] = 0
    others = slopes.sum(1)
    totals = others + label
    slopes /= totals[:, None]
    slopes[each, labels] = -others / totals
    return np.where(of_label == 0, np.log1p(others), np.log(totals) - of_label), slopes
