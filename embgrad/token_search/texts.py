"""Versions of the examples of a batch, among which a search moves: their ids, and the positions whose tokens may be replaced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

__all__ = ["Texts"]

#: The arrays with an entry for each position, with what fills the positions after a shorter text.
FILLED: Final = {"ids": 0, "real": False, "types": 0, "free": False}


@dataclass(frozen=True)
class Texts:
    """Versions of the examples of a batch, several of an example or none.

    Attributes:
        examples: the example of the batch that a text is a version of, int64, shape (text,).
        ids: int64, shape (text, position).
        real: true at real positions, bool, likewise.
        types: segment numbers, int64, likewise; None where the batch has none.
        free: true where the token may be replaced, bool, likewise.
    """

    examples: np.ndarray
    ids: np.ndarray
    real: np.ndarray
    types: np.ndarray | None
    free: np.ndarray

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.ids)

    def take(self, indices: np.ndarray) -> Texts:
        """Return the texts with these indices, or where a bool array is true, in order."""
        return replace(self, examples=self.examples[indices], **self._each(lambda array: array[indices]))

    def cut(self, width: int) -> Texts:
        """Return the texts up to a position."""
        return replace(self, **self._each(lambda array: array[:, :width]))

    def key(self, row: int) -> bytes:
        """Return bytes that two texts share if they are equal versions of one example."""
        own = self.real[row]
        types = b"" if self.types is None else self.types[row][own].tobytes()
        return bytes(self.examples[row].tobytes() + self.ids[row][own].tobytes() + types)

    def rows_of(self, example: int) -> np.ndarray:
        """Return the indices of the versions of an example."""
        return np.flatnonzero(self.examples == example)

    def best_of_each(self, scores: np.ndarray, most: int = 1) -> np.ndarray:
        """Return the indices of the texts of each example with the highest scores, best first; of equal scores the first.

        Args:
            scores: the score of each text, shape (text,).
            most: how many texts of an example at most.
        """
        order = np.lexsort((-scores, self.examples))
        _, starts, counts = np.unique(self.examples[order], return_index=True, return_counts=True)
        return order[np.arange(len(order)) - np.repeat(starts, counts) < most]

    def groups(self, most: int) -> Iterator[Texts]:
        """Yield the texts in groups of at most `most`, in order, or more where a single example has more."""
        numbers, counts = np.unique(self.examples, return_counts=True)
        ends = np.cumsum(counts)
        start = 0
        while start < len(numbers):
            before = ends[start] - counts[start]
            end = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
            yield self.take(np.isin(self.examples, numbers[start:end]))
            start = end

    def substitute(self, rows: np.ndarray, positions: np.ndarray, ids: np.ndarray) -> Texts:
        """Return for each index of a text that text with new ids.

        Args:
            rows: the indices of the texts, shape (n,); an index may occur several times.
            positions: where the ids are replaced, shape (n,), or (n, k) for k of them.
            ids: the new ids, likewise.
        """
        taken = self.take(rows)
        changed = taken.ids.copy()
        index = np.arange(len(rows)) if positions.ndim == 1 else np.arange(len(rows))[:, None]
        changed[index, positions] = ids
        return replace(taken, ids=changed)

    def repeat(self, rows: np.ndarray, positions: np.ndarray) -> Texts:
        """Return for each index of a text that text with the token at a position twice: the others move on by one.

        Args:
            rows: the indices of the texts, padded on the right, shape (n,); an index may occur several times.
            positions: the real positions whose tokens are repeated, shape (n,).
        """
        width = self.ids.shape[1]
        source = np.arange(width + 1) - (np.arange(width + 1) > positions[:, None])
        return self._move(rows, source)

    def delete(self, rows: np.ndarray, positions: np.ndarray) -> Texts:
        """Return for each index of a text that text without the token at a position, see `repeated`."""
        width = self.ids.shape[1]
        source = np.arange(width) + (np.arange(width) >= positions[:, None])
        return self._move(rows, source)

    def _move(self, rows: np.ndarray, source: np.ndarray) -> Texts:
        """Return texts whose positions hold what stands at others, (n, position); a position after the last one is filled."""
        texts = rows[:, None]
        arrays: dict[str, Any] = {}
        for name, filled in FILLED.items():
            array = getattr(self, name)
            wide = None if array is None else np.pad(array, ((0, 0), (0, 1)), constant_values=filled)
            arrays[name] = None if wide is None else wide[texts, source]
        return replace(self, examples=self.examples[rows], **arrays)

    def _each(self, function: Callable[[np.ndarray], np.ndarray]) -> dict[str, Any]:
        """Return by name what a function makes of each array with an entry for each position; None where there is none."""
        arrays = {name: getattr(self, name) for name in FILLED}
        return {name: None if array is None else function(array) for name, array in arrays.items()}

    def put(self, indices: np.ndarray, others: Texts) -> Texts:
        """Return the texts with those at the indices replaced by others, in order."""
        order = np.arange(len(self))
        order[indices] = len(self) + np.arange(len(others))
        return join([self, others]).take(order)


def join(texts: Sequence[Texts]) -> Texts:
    """Return all texts in order; shorter ones are filled after their last position."""
    width = max(part.ids.shape[1] for part in texts)

    def stacked(name: str) -> np.ndarray | None:
        arrays = [getattr(part, name) for part in texts]
        if arrays[0] is None:
            return None
        return np.concatenate(
            [np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=FILLED[name]) for array in arrays]
        )

    arrays: dict[str, Any] = {name: stacked(name) for name in FILLED}
    return Texts(np.concatenate([part.examples for part in texts]), **arrays)
