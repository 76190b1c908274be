"""The positions at which tokens may be replaced."""

from __future__ import annotations

from typing import Any

import numpy as np

from embgrad.common.arrays import to_numpy, whole_numbers
from embgrad.errors import BatchError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.results.special_positions import special_positions

__all__ = ["searched_positions"]


def searched_positions(positions: Any, batch: TokenBatch, tokenizer: Any = None) -> np.ndarray:
    """Return at which positions tokens may be replaced, bool, shape (example, position); never at padding.

    Args:
        positions: None for every real position but those of special tokens, where the batch or a tokenizer shows which those are;
            a position, or a list of them, that each example has; a slice of the positions up to an example's last real one; or a
            bool array, (example, position). A negative number counts back from an example's last real position.
        tokenizer: knows the ids of special tokens; None where there is none.
    """
    result = _find_searched(positions, batch, tokenizer)
    if not result.any():
        named = "all but those of special tokens" if positions is None else brief(positions)
        raise BatchError(
            f"positions is {named}, and that leaves none of the batch's {batch.shape[1]} in any example: expected one real "
            "position at least; name it, as in positions=[1, 2]"
        )
    return result


def _find_searched(positions: Any, batch: TokenBatch, tokenizer: Any) -> np.ndarray:
    if positions is None:
        special = special_positions(batch, tokenizer)
        return batch.real if special is None else np.asarray(batch.real & ~special)
    if isinstance(positions, slice):
        return _in_slice(positions, batch)
    try:
        array = to_numpy(positions)
    except ValueError:
        array = np.array(None)
    if array.dtype == bool:
        return _mark(array, batch)
    whole = whole_numbers(array) if array.size else None
    if whole is None or whole.ndim > 1:
        raise BatchError(
            f"positions is {brief(positions)}: expected whole numbers, a slice, or a bool array of shape {batch.shape}, "
            "(example, position); None for all but special tokens"
        )
    return _list(np.atleast_1d(whole), batch)


def _ends(batch: TokenBatch) -> np.ndarray:
    """Return the position after the last real one of each example, (example,)."""
    return np.asarray(batch.shape[1] - batch.real[:, ::-1].argmax(1))


def _in_slice(positions: slice, batch: TokenBatch) -> np.ndarray:
    result = np.zeros(batch.shape, bool)
    for example, end in enumerate(_ends(batch).tolist()):
        try:
            result[example, :end][positions] = True
        except (TypeError, ValueError) as error:
            raise BatchError(
                f"positions is {positions}: expected a slice of whole numbers, with a step that is not 0"
            ) from error
    return np.asarray(result & batch.real)


def _mark(marked: np.ndarray, batch: TokenBatch) -> np.ndarray:
    if marked.shape != batch.shape:
        raise BatchError(
            f"positions is a bool array of shape {marked.shape}: expected {batch.shape}, (example, position); for the same "
            "positions of each example list their numbers"
        )
    padding = np.argwhere(marked & ~batch.real)
    if len(padding):
        raise BatchError(
            f"positions is true at example {padding[0, 0]}, position {padding[0, 1]}, which is padding: expected real positions; "
            "combine it with the mask, positions & (mask == 1)"
        )
    return np.array(marked)


def _list(numbers: np.ndarray, batch: TokenBatch) -> np.ndarray:
    real, result = batch.real, np.zeros(batch.shape, bool)
    columns = np.where(numbers < 0, _ends(batch)[:, None] + numbers, numbers)
    for example, row in enumerate(columns.tolist()):
        for number, column in zip(numbers.tolist(), row, strict=True):
            inside = 0 <= column < batch.shape[1]
            if not inside or not real[example, column]:
                why = "is padding" if inside else f"is outside its {batch.shape[1]} positions"
                raise BatchError(
                    f"the position {number} of example {example} {why}: expected one of {brief(np.flatnonzero(real[example]))}, "
                    "or a negative number, which counts back from the last; a bool array names other positions for each example"
                )
            result[example, column] = True
    return result
