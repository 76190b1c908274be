"""Find where the batch's ids stand in the indices of a lookup that holds them in another order, or among others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from embgrad.common.tracebacks import errors_of_model
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.points import Layout, Lookup

__all__ = ["Window", "gather_of", "only_window", "reproduces", "window_of"]

#: Takes a batch with other ids, and returns the indices of the lookup in a forward pass on it; None where it is not reached.
Read = Callable[[TokenBatch], "np.ndarray | None"]


class Window(NamedTuple):
    """A rectangle of indices in which the ids stand, all examples alike.

    Attributes:
        length: the number of positions in the rectangle.
        offset: the number of positions before the ids.
        transposed: whether position comes before example.
    """

    length: int
    offset: int
    transposed: bool

    def gather(self, shape: tuple[int, int]) -> np.ndarray:
        """Return the numbers of the indices for each example and position, see `Layout.gather`."""
        examples, positions = shape
        rows, columns = np.arange(examples)[:, None], np.arange(positions)[None] + self.offset
        return columns * examples + rows if self.transposed else rows * self.length + columns


def gather_of(read: Read, batch: TokenBatch, lookup: Lookup) -> np.ndarray | None:
    """Return the numbers of the indices at which each id is looked up, see `Layout.gather`, as passes on other ids show them.

    In these passes each id is changed, so that every position can be distinguished. The order may depend on the lengths of the
    texts, and a model may take these from its padding: the second attempt leaves padding as it is. The order that is found must
    reproduce the indices of the batch. The result is None where the passes raise, or no order does.

    Args:
        lookup: the lookup, in a pass on the batch, whose indices hold the ids.
    """
    for fixed in _draw_fixed(batch, lookup):
        try:
            gather = _gather(read, batch, lookup, fixed)
        except errors_of_model():  # the model may not take other ids: then nothing shows the order
            continue
        if gather is not None and reproduces(gather, lookup.indices, batch):
            return gather
    return None


def window_of(gather: np.ndarray, lookup: Lookup, batch: TokenBatch) -> Window | None:
    """Return the window that these numbers are; None where they are none."""
    return next(
        (window for window in _fitting(lookup, batch) if np.array_equal(window.gather(batch.shape), gather)), None
    )


def only_window(lookup: Lookup, batch: TokenBatch) -> Layout | None:
    """Return the layout of indices that hold the ids side by side, if they do so in one way; else None."""
    fitting = list(_fitting(lookup, batch))
    return Layout(batch.shape, transposed=False, gather=fitting[0].gather(batch.shape)) if len(fitting) == 1 else None


def _fitting(lookup: Lookup, batch: TokenBatch) -> Iterator[Window]:
    """Yield the windows in which the ids stand in the indices."""
    examples, positions = batch.shape
    length = lookup.indices.size // examples
    for transposed in (False, True):
        shape = (length, examples) if transposed else (examples, length)
        if lookup.indices.shape not in (shape, (lookup.indices.size,)) or lookup.indices.size % examples:
            continue
        for offset in range(length - positions + 1):
            window = Window(length, offset, transposed)
            if reproduces(window.gather(batch.shape), lookup.indices, batch):
                yield window


def reproduces(gather: np.ndarray, indices: np.ndarray, batch: TokenBatch) -> bool:
    """Return whether the ids stand in the indices at these numbers."""
    looked_up = gather >= 0
    return gather.max() < indices.size and np.array_equal(indices.ravel()[gather[looked_up]], batch.ids[looked_up])


def _draw_fixed(batch: TokenBatch, lookup: Lookup) -> Iterator[np.ndarray]:
    """Yield for each attempt the positions whose ids stay as they are."""
    yield np.zeros(batch.shape, bool)
    padding = {*batch.ids[~batch.real].tolist(), 0, lookup.padding}
    fixed = ~batch.real | np.isin(batch.ids, [id_ for id_ in padding if id_ is not None])
    if fixed.any() and not fixed.all():
        yield fixed


def _gather(read: Read, batch: TokenBatch, lookup: Lookup, fixed: np.ndarray) -> np.ndarray | None:
    """Return the numbers of the indices at which each id is looked up; None where passes on other ids do not show it."""
    changed = np.flatnonzero(~fixed)
    alphabet = _alphabet(batch, lookup, fixed)
    if len(alphabet) < 2:
        return None
    digits = [np.arange(len(changed))]
    while digits[-1].max() >= len(alphabet):
        digits[-1:] = [digits[-1] % len(alphabet), digits[-1] // len(alphabet)]
    # In the last pass the first digit is another one: indices that stay the same in it are not of the batch's ids.
    passes = [*digits, (digits[0] + 1) % len(alphabet)]
    numbered = [_number(read(_with_ids(batch, changed, alphabet[digit])), lookup, alphabet) for digit in passes]
    if any(array is None for array in numbered):
        return None
    *seen, moved = (array for array in numbered if array is not None)
    follows = np.logical_and.reduce([array >= 0 for array in (*seen, moved)]) & (moved == (seen[0] + 1) % len(alphabet))
    numbers = np.zeros(lookup.indices.size, np.int64)
    for array in reversed(seen):
        numbers = numbers * len(alphabet) + array
    follows &= numbers < len(changed)
    if len(np.unique(numbers[follows])) != follows.sum():  # an id is looked up twice
        return None
    gather = np.full(batch.ids.size, -1)
    gather[changed[numbers[follows]]] = np.flatnonzero(follows)
    return _complete(gather.reshape(batch.shape), fixed, np.flatnonzero(~follows), lookup, batch)


def _alphabet(batch: TokenBatch, lookup: Lookup, fixed: np.ndarray) -> np.ndarray:
    """Return ids, ascending, that may stand in place of those that change: the batch's own, and another where it has only one."""
    kept = {*batch.ids[fixed | ~batch.real].tolist(), lookup.padding}
    alphabet = [id_ for id_ in np.unique(batch.ids[batch.real]).tolist() if id_ not in kept]
    if len(alphabet) < 2:
        further = (row for row in range(1, lookup.rows) if row not in kept and row not in alphabet)
        alphabet = sorted([*alphabet, *(row for row, _ in zip(further, range(2 - len(alphabet)), strict=False))])
    return np.array(alphabet)


def _with_ids(batch: TokenBatch, where: np.ndarray, ids: np.ndarray) -> TokenBatch:
    replaced = batch.ids.copy()
    replaced.ravel()[where] = ids
    return batch.replace(ids=replaced, tokens=None)


def _number(indices: np.ndarray | None, lookup: Lookup, alphabet: np.ndarray) -> np.ndarray | None:
    """Return for each index of a pass on other ids the number of its id in the alphabet; -1 for other ids."""
    if indices is None or indices.shape != lookup.indices.shape:
        return None
    flat = indices.ravel()
    numbers = np.searchsorted(alphabet, flat).clip(0, len(alphabet) - 1)
    return np.where(alphabet[numbers] == flat, numbers, -1)


def _complete(
    gather: np.ndarray, fixed: np.ndarray, rest: np.ndarray, lookup: Lookup, batch: TokenBatch
) -> np.ndarray | None:
    """Return the numbers of the indices with those of the ids that stayed as they are; None where nothing shows them.

    Args:
        gather: the numbers for ids that changed, and -1 for the others.
        fixed: the positions whose ids stayed as they are.
        rest: the numbers of the indices that did not change.
    """
    missing = gather < 0
    if (missing & ~fixed & batch.real).any():
        return None
    if not fixed.any():
        return gather
    if not rest.size:
        return gather if batch.mask is None or not (missing & batch.real).any() else None
    completed = {
        tuple(filled.ravel()): filled
        for transposed in (False, True)
        for filled in _fill(gather, rest, lookup.indices.size // len(batch), transposed)
        if reproduces(filled, lookup.indices, batch)
    }
    return next(iter(completed.values())) if len(completed) == 1 else None


def _fill(gather: np.ndarray, rest: np.ndarray, length: int, transposed: bool) -> Iterator[np.ndarray]:
    """Yield the numbers of the indices with those that are missing: in their example's row, as the others stand in it.

    Args:
        gather: the numbers, and -1 for those that are missing.
        rest: the numbers that are left.
        length: the number of positions in a row.
        transposed: whether position comes before example.
    """
    examples, positions = gather.shape
    known = gather >= 0
    rows = gather % examples if transposed else gather // length
    columns = gather // examples if transposed else gather % length
    of_example = [np.unique(row[real]) for row, real in zip(rows, known, strict=True)]
    free = np.setdiff1d(np.arange(examples), np.concatenate(of_example))
    if any(len(row) > 1 for row in of_example) or len(free) != sum(not len(row) for row in of_example) or len(free) > 1:
        return
    row = np.array([row[0] if len(row) else free[0] for row in of_example])[:, None]
    order = np.broadcast_to(np.arange(positions), gather.shape)
    ahead, back = np.unique((columns - order)[known]), np.unique((columns + order)[known])
    candidates = [order + ahead[0]] if len(ahead) == 1 else []
    candidates += [back[0] - order] if len(back) == 1 else []
    candidates += [order, positions - 1 - order] if length == positions else []
    for column in candidates:
        number = column * examples + row if transposed else row * length + column
        if np.isin(number[~known], rest).all() and ((column >= 0) & (column < length)).all():
            yield np.where(known, gather, number)
