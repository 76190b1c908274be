"""Move the padding of a batch to the right of its examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import IDS, MASK

__all__ = ["Alignment", "aligned"]


@dataclass(frozen=True)
class Alignment:
    """How far the examples of a batch were moved to the left.

    Attributes:
        shifts: the number of positions for each example, (example,).
        length: the number of positions.
    """

    shifts: np.ndarray
    length: int

    @property
    def columns(self) -> np.ndarray:
        """For each position after the move the position before it, (example, position)."""
        return np.asarray((np.arange(self.length) + self.shifts[:, None]) % self.length)

    def moved(self, array: np.ndarray) -> np.ndarray:
        """Return an array of shape (example, position) after the move."""
        return np.take_along_axis(array, self.columns, 1)

    def moved_back(self, array: np.ndarray) -> np.ndarray:
        """Return an array whose first axis is the examples and whose last is the positions as before the move."""
        columns = (np.arange(self.length) - self.shifts[:, None]) % self.length
        return np.take_along_axis(array, columns.reshape(len(columns), *[1] * (array.ndim - 2), self.length), -1)


def aligned(batch: TokenBatch) -> tuple[TokenBatch, Alignment, Alignment | None]:
    """Return the batch with the padding before each example moved behind it, and the moves of its ids and its decoder's ids.

    A causal model computes the same at real positions then as for the example alone, whether or not it counts positions by the
    mask. Further inputs of the ids' shape are moved as well.
    """
    move = _move(batch.real)
    extras = dict(batch.extras)
    decoder = None
    if IDS in extras:
        ids = to_numpy(extras[IDS])
        real = np.ones(ids.shape, bool) if extras.get(MASK) is None else to_numpy(extras[MASK]).astype(bool)
        decoder = _move(real)
        if decoder.shifts.any():
            extras[IDS], extras[MASK] = decoder.moved(ids), decoder.moved(real).astype(np.int64)
    if not move.shifts.any():
        return (batch.replace(extras=extras) if decoder is not None else batch), move, decoder
    for name in batch.of_each:
        if name not in (IDS, MASK) and _shape(extras[name]) == batch.shape:
            extras[name] = move.moved(to_numpy(extras[name]))
    changes: dict[str, Any] = {
        name: None if getattr(batch, name) is None else move.moved(getattr(batch, name))
        for name in ("ids", "mask", "types")
    }
    return batch.replace(**changes, extras=extras), move, decoder


def _move(real: np.ndarray) -> Alignment:
    return Alignment(np.where(real.any(1), real.argmax(1), 0), real.shape[1])


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(map(int, getattr(value, "shape", ())))
