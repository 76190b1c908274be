"""A test whether a model draws random numbers in evaluation mode, and the first point where its runs differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from embgrad.common.tracebacks import errors_of_model
from embgrad.comparison.bisection.judge import Judge
from embgrad.comparison.bisection.readings import Reader, Side
from embgrad.comparison.bisection.records import Reading
from embgrad.inputs.batch import TokenBatch

__all__ = ["RunDifference", "run_difference"]


@dataclasses.dataclass(frozen=True)
class RunDifference:
    """The difference between two runs of one model.

    Attributes:
        role: the first point at which the runs differ.
        after: the last role before it at which they agree; None if there is none.
        other: the same model, prepared for the second run.
        judge: measures the difference between the two runs.
    """

    role: str
    after: str | None
    other: Side
    judge: Judge


def run_difference(side: Side, names: Sequence[str], read: Mapping[str, Reading], judge: Judge) -> RunDifference | None:
    """Return where two runs of a model differ, or None if they agree.

    The second run has the examples in another order, because embgrad restores the random generators after a run, so that the same
    call draws the same numbers twice. If this order cannot be run, the second run is the same call.

    Args:
        side: the model.
        names: the roles to compare, in order.
        read: the readings of the first run.
        judge: the measure that is used for two models.
    """
    keys = [side.reader.roles[name] for name in names]
    other, again = _in_another_order(side, names)
    run_judge = Judge(judge.real, judge.tolerance, judge.dtype, sharp=False, order=other.order)
    figures = [run_judge.values(read[key], again[name]) for name, key in zip(names, keys, strict=True)]
    differs = [
        number
        for number, figure in enumerate(figures)
        if figure is not None and figure.relative_l2 > run_judge.tolerance
    ]
    if not differs:
        return None
    first = differs[0]
    return RunDifference(names[first], names[first - 1] if first else None, other, run_judge)


def _in_another_order(side: Side, names: Sequence[str]) -> tuple[Side, dict[str, Reading]]:
    """Run the model on its examples in reverse, or on its only example twice; on the same batch if it cannot be run on these."""
    if side.reader.call is None:  # a custom call may depend on the order of the examples
        try:
            other = _reversed(side) if len(side.reader.batch) > 1 else _twice(side)
            return other, _read_roles(other, names)
        except errors_of_model():  # the model may take only one example, or inputs that cannot be reordered
            return side, _read_roles(side, names)
    return side, _read_roles(side, names)


def _read_roles(side: Side, names: Sequence[str]) -> dict[str, Reading]:
    keys = [side.reader.roles[name] for name in names]
    read = side.reader.values(list(dict.fromkeys(keys)))
    return {name: read[key] for name, key in zip(names, keys, strict=True)}


def _reversed(side: Side) -> Side:
    batch = side.reader.batch
    return Side(side.reader.on(batch[::-1]), list(reversed(range(len(batch)))), side.weights)


def _twice(side: Side) -> Side:
    reader = side.reader
    return Side(Reader(reader.model, _doubled(reader.batch), reader.original_objective), [0, 0], side.weights)


def _doubled(batch: TokenBatch) -> TokenBatch:
    twice = {
        name: None if (value := getattr(batch, name)) is None else np.concatenate([value, value])
        for name in ("ids", "mask", "types")
    }
    return batch.replace(**twice, tokens=None, words=None, truncated=None)
