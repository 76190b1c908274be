"""The comparison of a row's results alone with those that it has beside other rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from embgrad.common.metrics import length
from embgrad.common.tolerance import tolerance_of
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["Verdict", "compare_alone"]

#: The relative difference allowed between a row's results with and without padding, for every dtype: models of any dtype
#: compute position angles in float32. Where padding matters it is far larger, 0.5 to 1 for a BERT or GPT-2 padded on the left.
LEAST: Final = 1e-3

#: A gradient whose norm times the norm of its activations is below this share of the objective is rounding alone. The gradient
#: of the sum of a layer norm's outputs, which is zero, is an example.
NOISE: Final = 1e-5


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison.

    Attributes:
        conclusive: whether the row's gradient can show a difference: one that is rounding alone shows nothing.
        difference: the relative difference of the results; None where rounding or randomness explains it.
        limit: the largest relative difference that rounding explains.
    """

    conclusive: bool
    difference: float | None
    limit: float


def compare_alone(
    beside: EmbeddingGradients, alone: EmbeddingGradients, row: int, again: Callable[[], EmbeddingGradients]
) -> Verdict:
    """Compare a row's results beside other rows, with padding on the right, with those of the row alone.

    Args:
        beside: the results of a batch, (example, position, dim).
        alone: those of the row alone, or of copies of it.
        again: computes `beside` once more: of results that are random in each pass nothing is to be shown.
    """
    limit = max(LEAST, tolerance_of(beside, alone))
    least = _least(beside, row, limit)
    difference = _largest_difference(beside, alone, row, 0, least)
    if difference > limit:
        is_random = _largest_difference(beside, again(), row, row, least) > limit
        return Verdict(True, None if is_random else difference, limit)
    return Verdict(length(beside.values[row]) >= least, None, limit)


def _largest_difference(
    first: EmbeddingGradients, second: EmbeddingGradients, row: int, other: int, least: float
) -> float:
    """Return the largest relative difference of a row's results in two batches, the second without its padding."""
    count = second.values.shape[1]
    return max(
        _difference(first.objective[row], second.objective[other], _scale(first)),
        _difference(first.values[row, :count], second.values[other], least),
        _difference(first.activations[row, :count], second.activations[other], 0.0),
    )


def _scale(result: EmbeddingGradients) -> float:
    """Return the magnitude of a batch's objectives, at least 1."""
    return max(1.0, float(np.abs(result.objective).max()))


def _least(result: EmbeddingGradients, row: int, limit: float) -> float:
    """Return the norm of a row's gradient above which rounding alone stays below the limit."""
    size = length(result.activations[row])
    return NOISE * _scale(result) / (limit * size) if size else 0.0


def _difference(first: np.ndarray, second: np.ndarray, least: float) -> float:
    scale = max(length(first), length(second), least)
    return length(np.subtract(first, second, dtype=np.float64)) / (scale or 1.0)
