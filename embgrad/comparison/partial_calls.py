"""Calls of a module for some positions, or for one text, of the batch at a time, which together are one call for the batch."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from embgrad.backend.protocol import Change
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.points import Point

__all__ = ["Step", "change_step", "steps_of"]


class Step(NamedTuple):
    """A call of a module for some positions or some texts of the batch, with the key of its point."""

    key: str
    examples: slice
    positions: slice

    def of(self, values: np.ndarray) -> np.ndarray:
        """Return the part of a tensor of the whole batch that the call computes, (example, position, …)."""
        return values[self.examples, self.positions]


def change_step(function: Change, arrived: np.ndarray, step: Step, value: np.ndarray) -> np.ndarray:
    """Return what a call for a part of the batch goes on with, and keep the values that arrive there for the other calls."""
    step.of(arrived)[...] = value.reshape(step.of(arrived).shape)
    new = step.of(np.asarray(function(arrived.astype(value.dtype)), value.dtype))
    return np.ascontiguousarray(new.reshape(value.shape))


def steps_of(points: Iterable[Point], batch: TokenBatch) -> dict[str, tuple[Step, ...]]:
    """Return the calls of modules that are called for a part of the batch at a time, by the key of the first.

    A model with a cache is called for some positions at a time, and one that takes a single text for each text in turn, with its
    padding or without.
    """
    calls: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        calls[point.key.partition("#")[0]].append(point)
    found = {}
    for same in calls.values():
        steps = (_by_positions(same, batch) or _by_texts(same, batch)) if len(same) > 1 else ()
        if steps:
            found[same[0].key] = steps
    return found


def _by_positions(same: Sequence[Point], batch: TokenBatch) -> tuple[Step, ...]:
    """Return the calls of a module for some positions at a time; none where they do not make up the batch."""
    examples, positions = batch.shape
    shapes = [point.shape for point in same]
    if not all(len(shape) > 2 and (shape[0], *shape[2:]) == (examples, *shapes[0][2:]) for shape in shapes):
        return ()
    ends = np.cumsum([0, *(shape[1] for shape in shapes)]).tolist()
    if ends[-1] != positions:
        return ()
    return tuple(
        Step(point.key, slice(None), slice(*span)) for point, span in zip(same, itertools.pairwise(ends), strict=True)
    )


def _by_texts(same: Sequence[Point], batch: TokenBatch) -> tuple[Step, ...]:
    """Return the calls of a module for each text in turn; none where they do not make up the batch."""
    shapes = [point.shape[1:] if point.shape[:1] == (1,) else point.shape for point in same]
    if len(same) != len(batch.ids) or any(len(shape) < 2 or shape[1:] != shapes[0][1:] for shape in shapes):
        return ()
    lengths, counts = [shape[0] for shape in shapes], batch.real.sum(1).tolist()
    if lengths == counts:
        starts = batch.real.argmax(1).tolist()
    elif all(length == batch.shape[1] for length in lengths):
        starts = [0] * len(same)
    else:
        return ()
    return tuple(
        Step(point.key, slice(number, number + 1), slice(start, start + length))
        for number, (point, start, length) in enumerate(zip(same, starts, lengths, strict=True))
    )
