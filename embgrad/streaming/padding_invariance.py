"""Whether an example's numbers are the same alone, without padding, as beside others, with padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from embgrad.common.metrics import length
from embgrad.common.tolerance import tolerance_of
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["Difference", "Verdict", "compared_alone", "follows_positions"]

#: How far an example's numbers may lie apart with padding and without, relatively, whatever the type: angles by which positions
#: are told are float32 in models of any. Where padding counts it is far more, 0.5 to 1 for a BERT or GPT-2 padded on the left.
LEAST: Final = 1e-3

#: How little, beside the objective, a gradient may account for (its length times that of what it is a gradient of) to be nothing
#: but rounding, as where it is zero: the sum of what a layer norm gives has no other.
NOISE: Final = 1e-5

Results = Mapping[str, EmbeddingGradients]


@dataclass(frozen=True)
class Difference:
    """What is not the same.

    Attributes:
        name: the point.
        size: how far apart the numbers lie, relatively.
        limit: how far rounding explains.
        padding: how many more positions the example has beside the others.
    """

    name: str
    size: float
    limit: float
    padding: int


@dataclass(frozen=True)
class Verdict:
    """What is known after a comparison.

    Attributes:
        told: whether more is known than before: an example whose gradients are small beside rounding tells nothing.
        difference: what is not the same; None where nothing is known not to be.
    """

    told: bool
    difference: Difference | None = None


def compared_alone(
    beside: Results, alone: Results, rows: tuple[int, int], side: str, again: Callable[[], Results]
) -> Verdict:
    """Compare an example's numbers with padding and without.

    Args:
        beside: the results of a batch in which it has padding, by the points' names.
        alone: those of one in which it has less, or none.
        rows: where it is in each.
        side: on which it is padded.
        again: gives `beside` once more: numbers that are drawn anew in each pass tell nothing.
    """
    told, (row, _) = False, rows
    for name, one in beside.items():
        other = alone[name]
        limit = max(LEAST, tolerance_of(one, other))
        least = _least(one, row, limit)
        apart = _all_apart(one, other, rows, side, least)
        if apart > limit:
            if _all_apart(one, again()[name], (row, row), side, least) > limit:
                return Verdict(True)
            return Verdict(True, Difference(name, apart, limit, one.ids.shape[1] - other.ids.shape[1]))
        told = told or length(one.values[row]) >= least
    return Verdict(told)


def follows_positions(results: Sequence[EmbeddingGradients]) -> bool:
    """Whether the second axis of a point's values is the positions, in batches of several lengths."""
    inner = {one.values.shape[2:] for one in results}
    return len(inner) == 1 and all(
        one.mask is not None and one.values.ndim > 2 and one.values.shape[:2] == one.ids.shape for one in results
    )


def _all_apart(
    one: EmbeddingGradients, other: EmbeddingGradients, rows: tuple[int, int], side: str, least: float
) -> float:
    """How far apart the numbers of an example lie that are to be the same in two batches, the second without its padding."""
    return max(_apart(*pair) for pair in _pairs(one, other, rows, side, least))


def _pairs(
    one: EmbeddingGradients, other: EmbeddingGradients, rows: tuple[int, int], side: str, least: float
) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    """What is to be the same in both, with the size against which a difference counts at least."""
    row, place = rows
    yield one.objective[row], other.objective[place], _scale(one)
    count, by_position = other.ids.shape[1], follows_positions([one, other])
    values, activations = (one.values[row], other.values[place]), (one.activations[row], other.activations[place])
    for (first, second), size in ((values, least), (activations, 0.0)):
        own = first if not by_position else first[len(first) - count :] if side == "left" else first[:count]
        if own.shape == second.shape:  # a point whose axes follow lengths otherwise is another's to refuse
            yield own, second, size


def _scale(one: EmbeddingGradients) -> float:
    """The size of a batch's objectives."""
    return max(1.0, float(np.abs(one.objective).max()))


def _least(one: EmbeddingGradients, row: int, limit: float) -> float:
    """The size of an example's gradient of which rounding alone accounts for less than the limit."""
    size = length(one.activations[row])
    return NOISE * _scale(one) / (limit * size) if size else 0.0


def _apart(one: np.ndarray, other: np.ndarray, least: float) -> float:
    scale = max(length(one), length(other), least)
    return length(np.subtract(one, other, dtype=np.float64)) / (scale or 1.0)
