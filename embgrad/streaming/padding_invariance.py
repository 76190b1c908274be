"""The check that an example's results do not depend on its padding, nor on the other examples of its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from embgrad.common.metrics import length
from embgrad.common.tolerance import tolerance_of
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["Difference", "Verdict", "compare_alone", "follows_positions"]

#: The relative difference allowed between an example's results with and without padding, for every dtype: models of any dtype
#: compute position angles in float32. Where padding matters it is far larger, 0.5 to 1 for a BERT or GPT-2 padded on the left.
LEAST: Final = 1e-3

#: A gradient whose norm times the norm of its activations is below this share of the objective is rounding alone. The gradient
#: of the sum of a layer norm's outputs, which is zero, is an example.
NOISE: Final = 1e-5

Results = Mapping[str, EmbeddingGradients]


@dataclass(frozen=True)
class Difference:
    """A difference between an example's results in two batches.

    Attributes:
        name: the name of the point.
        size: the relative difference.
        limit: the largest relative difference that rounding explains.
        padding: the number of additional positions that the example has in the first batch.
    """

    name: str
    size: float
    limit: float
    padding: int


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison.

    Attributes:
        conclusive: whether no other example needs to be compared: gradients that are rounding alone show nothing.
        difference: the difference; None where none was detected.
    """

    conclusive: bool
    difference: Difference | None = None


def compare_alone(
    beside: Results, alone: Results, rows: tuple[int, int], side: str, again: Callable[[], Results]
) -> Verdict:
    """Compare an example's results with and without padding.

    Args:
        beside: the results of a batch in which the example has padding, by the names of the points.
        alone: the results of a batch in which it has less padding, or none.
        rows: the example's row in each of the two.
        side: the side of the padding, "left" or "right".
        again: computes `beside` once more: of results that are random in each pass nothing is to be shown.
    """
    conclusive, (row, _) = False, rows
    for name, result in beside.items():
        other = alone[name]
        limit = max(LEAST, tolerance_of(result, other))
        least = _least(result, row, limit)
        difference = _largest_difference(result, other, rows, side, least)
        if difference > limit:
            if _largest_difference(result, again()[name], (row, row), side, least) > limit:
                return Verdict(True)
            return Verdict(True, Difference(name, difference, limit, result.ids.shape[1] - other.ids.shape[1]))
        conclusive = conclusive or length(result.values[row]) >= least
    return Verdict(conclusive)


def follows_positions(results: Sequence[EmbeddingGradients]) -> bool:
    """Return whether the second axis of a point's values is the position, judged by batches of several lengths."""
    trailing = {result.values.shape[2:] for result in results}
    return len(trailing) == 1 and all(
        result.mask is not None and result.values.ndim > 2 and result.values.shape[:2] == result.ids.shape
        for result in results
    )


def _largest_difference(
    first: EmbeddingGradients, second: EmbeddingGradients, rows: tuple[int, int], side: str, least: float
) -> float:
    """Return the largest relative difference of an example's results in two batches, the second without its padding."""
    return max(_difference(*pair) for pair in _pairs(first, second, rows, side, least))


def _pairs(
    beside: EmbeddingGradients, alone: EmbeddingGradients, rows: tuple[int, int], side: str, least: float
) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    """Yield the pairs of arrays that must be equal, each with the least size to which their difference is relative."""
    beside_row, alone_row = rows
    yield beside.objective[beside_row], alone.objective[alone_row], _scale(beside)
    count, by_position = alone.ids.shape[1], follows_positions([beside, alone])
    values, activations = (
        (beside.values[beside_row], alone.values[alone_row]),
        (beside.activations[beside_row], alone.activations[alone_row]),
    )
    for (first, second), size in ((values, least), (activations, 0.0)):
        cut = first if not by_position else first[len(first) - count :] if side == "left" else first[:count]
        if cut.shape == second.shape:  # points whose other axes follow the length are refused elsewhere
            yield cut, second, size


def _scale(result: EmbeddingGradients) -> float:
    """Return the magnitude of a batch's objectives, at least 1."""
    return max(1.0, float(np.abs(result.objective).max()))


def _least(result: EmbeddingGradients, row: int, limit: float) -> float:
    """Return the norm of an example's gradient above which rounding alone stays below the limit."""
    size = length(result.activations[row])
    return NOISE * _scale(result) / (limit * size) if size else 0.0


def _difference(first: np.ndarray, second: np.ndarray, least: float) -> float:
    scale = max(length(first), length(second), least)
    return length(np.subtract(first, second, dtype=np.float64)) / (scale or 1.0)
