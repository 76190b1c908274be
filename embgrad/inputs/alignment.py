"""Move the padding of a batch to the right of its examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.common.pytree import every
from embgrad.errors import BatchError, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import decoder_names, decoder_of
from embgrad.inputs.resized import expect_moved_input

__all__ = ["Alignment", "align"]


@dataclass(frozen=True)
class Alignment:
    """The move of the examples of a batch to the left, around the end.

    Attributes:
        shifts: the number of positions for each example, (example,).
    """

    shifts: np.ndarray
    length: int

    @property
    def columns(self) -> np.ndarray:
        """For each position after the move the position before it, (example, position)."""
        return np.asarray((np.arange(self.length) + self.shifts[:, None]) % self.length)

    def move(self, array: np.ndarray) -> np.ndarray:
        """Return an array of shape (example, position) after the move."""
        return np.take_along_axis(array, self.columns, 1)

    def move_rows(self, array: np.ndarray) -> np.ndarray:
        """Return an array of shape (example, position, …) after the move."""
        return np.take_along_axis(array, self.columns.reshape(*self.columns.shape, *[1] * (array.ndim - 2)), 1)

    def move_back(self, array: np.ndarray) -> np.ndarray:
        """Return an array whose first axis is the examples and whose last is the positions as before the move."""
        columns = (np.arange(self.length) - self.shifts[:, None]) % self.length
        return np.take_along_axis(array, columns.reshape(len(columns), *[1] * (array.ndim - 2), self.length), -1)


def align(batch: TokenBatch) -> tuple[TokenBatch, Alignment, Alignment | None]:
    """Return the batch with the padding before each example moved behind it, and the moves of its ids and its decoder's ids.

    A causal model computes the same at real positions then as for the example alone, whether or not it counts positions by the
    mask. Further inputs with an entry for each example and position are moved as well, those of the decoder as its ids.
    """
    move, decoder = _move(batch.real), None
    extras = dict(batch.extras)
    names, side = decoder_names(extras), decoder_of(batch)
    if names is not None and side is not None:
        decoder = _move(side.real)
        if decoder.shifts.any():
            extras[names[0]] = decoder.move(side.ids)
            extras[names[1]] = decoder.move(side.real).astype(np.int64)
    for name, value in batch.extras.items():
        if name not in (names or ()):
            of_decoder = decoder is not None and (name.startswith("decoder") or name == "labels")
            own = decoder if of_decoder and decoder is not None else move
            extras[name] = _move_input(name, value, own, batch)
    if not move.shifts.any():
        return (batch.replace(extras=extras) if decoder is not None else batch), move, decoder
    arrays = ("ids", "mask", "types", "words", "parts")
    changes: dict[str, Any] = {
        name: None if getattr(batch, name) is None else move.move(getattr(batch, name)) for name in arrays
    }
    if batch.tokens is not None:
        rows = zip(batch.tokens, move.columns.tolist(), strict=True)
        changes["tokens"] = [[row[column] for column in columns] for row, columns in rows]
    if batch.offsets is not None:
        changes["offsets"] = move.move_rows(batch.offsets)
    return batch.replace(**changes, texts=batch.texts, extras=extras), move, decoder


def _move_input(name: str, value: Any, move: Alignment, batch: TokenBatch) -> Any:
    """Return a further input after the move of the positions that it may belong to."""
    examples = 0 if name in batch.shared else len(batch)
    shapes = [tuple(map(int, array.shape)) for array in every(value, lambda entry: hasattr(entry, "shape"))]
    others = [shape[1:] if examples and shape[:1] == (examples,) else shape for shape in shapes]
    if not move.shifts.any():
        return value
    if not any(move.length in shape for shape in others):
        is_of_ids = move.length == batch.shape[1] and np.array_equal(move.shifts, _move(batch.real).shifts)
        if is_of_ids:
            expect_moved_input(batch, name)
        return value
    if hasattr(value, "shape") and shapes[0][:2] == (examples, move.length) and move.length not in shapes[0][2:]:
        return move.move_rows(to_numpy(value))
    raise BatchError(
        f"the further input {name!r} has the shape {quote(shapes)}, and the batch is padded on the left: which axis belongs to "
        f"the {move.length} positions is not known. Pad on the right (padding_side='right')"
    )


def _move(real: np.ndarray) -> Alignment:
    return Alignment(np.where(real.any(1), real.argmax(1), 0), real.shape[1])
