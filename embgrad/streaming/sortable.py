"""Refuses to put batches together by length where an example's numbers would be others than in its own batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.batch import TokenBatch
from embgrad.errors import ObjectiveError, UnsupportedError
from embgrad.objective import Objective, Scalar
from embgrad.result import EmbeddingGradients
from embgrad.streaming.source import Source
from embgrad.task import Task
from embgrad.tolerance import tolerance_of

__all__ = ["expect_restorable", "expect_same_alone", "expect_sortable", "expect_window", "follows_positions"]


#: How far an example's numbers may lie apart with padding and without, relatively, whatever the type: angles by which positions
#: are told are float32 in models of any. Where padding counts it is far more, 0.5 to 1 for a BERT or GPT-2 padded on the left.
LEAST: Final = 1e-3

#: How little, beside the objective, a gradient may account for (its length times that of what it is a gradient of) to be nothing
#: but rounding, as where it is zero: the sum of what a layer norm gives has no other.
NOISE: Final = 1e-5


def expect_window(task: Task, source: Source, objective: Any) -> None:
    """Refuse to put batches together anew where it counts who is in a batch, as far as that is known before the first.

    Args:
        task: what is asked of each batch.
        source: what is read.
        objective: as given, for the whole source or to be made for each batch.

    Raises:
        ObjectiveError: it counts to the objective.
        UnsupportedError: it counts otherwise, or the source gives whole batches.
    """
    if source.tokenizer is None:
        raise UnsupportedError(
            "window puts texts together by length, and the source gives whole batches: expected texts, with tokenizer=...; or "
            "leave window out"
        )
    for name, asked_for in {"split=True": task.split, "training=True": task.training}.items():
        if asked_for:
            raise UnsupportedError(
                f"window puts batches together anew, and with {name} it counts which examples meet: leave one of them out"
            )
    expect_sortable(objective, source.padding.side)


def expect_sortable(objective: Any, side: str) -> None:
    """Refuse an objective that means something else in a batch of another length, or of other examples.

    Args:
        objective: that of a batch.
        side: on which examples are padded.

    Raises:
        ObjectiveError: it does.
    """
    if isinstance(objective, Scalar):
        raise ObjectiveError(
            "window puts batches together anew, and a Scalar objective reduces over a batch: leave window out, or give a "
            "function of shape (example,)"
        )
    position = getattr(objective, "position", None) if isinstance(objective, Objective) else None
    if side == "left" and position is not None and np.any(np.asarray(position) >= 0):
        raise ObjectiveError(
            f"window puts batches together anew, and position={position} is a column of a batch, where this tokenizer pads on "
            "the left: another token's in a batch of another length; expected positions that count from the end, such as -1, or "
            "no window"
        )


def follows_positions(results: Sequence[EmbeddingGradients]) -> bool:
    """Whether the second axis of a point's values is the positions, in batches of several lengths."""
    inner = {one.values.shape[2:] for one in results}
    return len(inner) == 1 and all(
        one.mask is not None and one.values.ndim > 2 and one.values.shape[:2] == one.ids.shape for one in results
    )


def expect_restorable(batches: Sequence[TokenBatch], results: Sequence[Mapping[str, EmbeddingGradients]]) -> None:
    """Refuse what could not be brought back into batches of other examples and lengths.

    Args:
        batches: those that were put together, as far as they were run.
        results: of each, by the points' names.

    Raises:
        UnsupportedError: there is such.
    """
    for name in results[0]:
        of_point = [one[name] for one in results]
        _expect_each_example(name, batches, of_point)
        _expect_one_form(name, of_point)
        _expect_one_length(batches, of_point)


def expect_same_alone(
    example: int,
    row: int,
    beside: Mapping[str, EmbeddingGradients],
    alone: Mapping[str, EmbeddingGradients],
    side: str,
    again: Callable[[], Mapping[str, EmbeddingGradients]],
) -> bool:
    """Refuse a model to which it counts how long the batch is that an example is in.

    Args:
        example: its number in the source.
        row: where it is in the batch.
        beside: the results of the batch, by the points' names.
        alone: those of a batch of the example alone, which has no padding.
        side: on which it is padded in the batch.
        again: gives the results of the batch once more: numbers that are drawn anew in each pass tell nothing.

    Returns:
        Whether more is known now: an example whose gradients are small beside rounding tells nothing either.

    Raises:
        UnsupportedError: its numbers are others.
    """
    told = False
    for name, one in beside.items():
        other = alone[name]
        limit = max(LEAST, tolerance_of(one, other))
        least = _least(one, row, limit)
        apart = _all_apart(one, other, (row, 0), side, least)
        if apart > limit:
            if _all_apart(one, again()[name], (row, row), side, least) > limit:
                return True
            padding = one.ids.shape[1] - other.ids.shape[1]
            raise UnsupportedError(
                f"example {example} of the source has other numbers alone than with {padding} positions of padding: at {name!r} "
                f"they lie {apart:.2g} apart, relatively, where rounding explains {limit:.2g}. window puts examples together by "
                "length: expected a model to which padding does not count, as it does where positions are numbered from the left "
                "and the tokenizer pads there; pass other positions in call=..., pad on the right, or leave window out"
            )
        told = told or _norm(one.values[row]) >= least
    return told


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
        if own.shape == second.shape:  # else it is refused with the first batch of another length
            yield own, second, size


def _scale(one: EmbeddingGradients) -> float:
    """The size of a batch's objectives."""
    return max(1.0, float(np.abs(one.objective).max()))


def _least(one: EmbeddingGradients, row: int, limit: float) -> float:
    """The size of an example's gradient of which rounding alone accounts for less than the limit."""
    size = _norm(one.activations[row])
    return NOISE * _scale(one) / (limit * size) if size else 0.0


def _apart(one: np.ndarray, other: np.ndarray, least: float) -> float:
    scale = max(_norm(one), _norm(other), least)
    return _norm(np.subtract(one, other, dtype=np.float64)) / (scale or 1.0)


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(np.asarray(array, np.float64)))


def _expect_each_example(name: str, batches: Sequence[TokenBatch], results: Sequence[EmbeddingGradients]) -> None:
    for batch, one in zip(batches, results, strict=True):
        if len(one.values) != len(batch):
            raise UnsupportedError(
                f"the point {name!r} has the shape {one.values.shape} in a batch of {len(batch)} examples, which share it, and "
                "window puts other examples together: expected an entry for each example, as a role such as at='position' "
                "gives it; or leave window out"
            )


def _expect_one_form(name: str, results: Sequence[EmbeddingGradients]) -> None:
    shapes = list({one.values.shape[1:]: one.values.shape for one in results}.values())
    if len(shapes) > 1 and not follows_positions(results):
        raise UnsupportedError(
            f"the point {name!r} has the shapes {shapes[0]} and {shapes[1]}, which follow the batches' lengths in an axis that "
            "is not the second of three: expected (example, position, …), to put the results of batches by length in order; "
            "leave window out"
        )


def _expect_one_length(batches: Sequence[TokenBatch], results: Sequence[EmbeddingGradients]) -> None:
    """Refuse outputs that have a number for each position, padding too."""
    shapes = [one.provenance["output_shape"] for one in results]
    as_long = [
        shape is not None and len(shape) == 2 and shape[1] == batch.shape[1]
        for shape, batch in zip(shapes, batches, strict=True)
    ]
    found = sorted({tuple(shape[1:]): tuple(shape) for shape in shapes if shape is not None}.values())
    if all(as_long) and len(found) > 1:
        raise UnsupportedError(
            f"the output that the objective reads has the shapes {found[0]} and {found[1]} in batches of several lengths, a "
            "number for each position, those of padding too: an example's numbers depend on who is in its batch; leave window "
            "out"
        )
