"""Whether a model differs from itself, as one does that draws random numbers in evaluation mode, and from where on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from embgrad.comparison.bisection.narrow import Judge
from embgrad.comparison.bisection.pair import Side
from embgrad.comparison.bisection.readings import Reader, Reading
from embgrad.inputs.batch import TokenBatch

__all__ = ["Differing", "differing"]


@dataclasses.dataclass(frozen=True)
class Differing:
    """A model that differs from itself.

    Attributes:
        role: the first point at which it does.
        after: the last role before it at which it does not; None where there is none.
        other: the same model, as it is to be read to see it.
        judge: says how far the two are apart.
    """

    role: str
    after: str | None
    other: Side
    judge: Judge


def differing(side: Side, names: Sequence[str], read: Mapping[str, Reading], judge: Judge) -> Differing | None:
    """Where a model differs from itself, or None where it does not.

    It is run on its examples in another order, whatever that makes of each: where the random numbers are put back after a run,
    as embgrad does, the same call draws the same twice. Where that cannot be done it is run as it was.

    Args:
        side: the model.
        names: the roles to look at, in order.
        read: what was read there.
        judge: as for two models.
    """
    keys = [side.reader.roles[name] for name in names]
    other, again = _in_another_order(side, names)
    own = Judge(judge.real, judge.tolerance, judge.dtype, sharp=False, order=other.order)
    figures = [own.values(read[key], again[name]) for name, key in zip(names, keys, strict=True)]
    parted = [number for number, one in enumerate(figures) if one is not None and one.relative_l2 > own.tolerance]
    if not parted:
        return None
    first = parted[0]
    return Differing(names[first], names[first - 1] if first else None, other, own)


def _in_another_order(side: Side, names: Sequence[str]) -> tuple[Side, dict[str, Reading]]:
    """The model on its examples in reverse, or on its only example twice; as it was, where it cannot be run on that."""
    if side.reader.call is None:  # which may hold on to what goes with each example
        try:
            other = _reversed(side) if len(side.reader.batch) > 1 else _twice(side)
            return other, _at(other, names)
        except Exception:  # of the model, which may take one example alone, or of inputs that cannot be turned
            return side, _at(side, names)
    return side, _at(side, names)


def _at(side: Side, names: Sequence[str]) -> dict[str, Reading]:
    keys = [side.reader.roles[name] for name in names]
    read = side.reader.values(list(dict.fromkeys(keys)))
    return {name: read[key] for name, key in zip(names, keys, strict=True)}


def _reversed(side: Side) -> Side:
    batch = side.reader.batch
    return Side(side.reader.on(batch[::-1]), list(reversed(range(len(batch)))), side.weights)


def _twice(side: Side) -> Side:
    reader = side.reader
    return Side(Reader(reader.model, _doubled(reader.batch), reader.given), [0, 0], side.weights)


def _doubled(batch: TokenBatch) -> TokenBatch:
    twice = {
        name: None if (value := getattr(batch, name)) is None else np.concatenate([value, value])
        for name in ("ids", "mask", "types")
    }
    return batch.replace(**twice, tokens=None, words=None, truncated=None)
