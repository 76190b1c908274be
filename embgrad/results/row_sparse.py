"""The row-sparse gradient of a table, which holds only the rows that were looked up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import as_asked
from embgrad.errors import EmbgradError

__all__ = ["RowSparse", "add", "common_rows", "scatter", "scatter_each"]

#: The most bytes that `to_dense` allocates unless the caller passes a limit.
DENSE_LIMIT = 2**30

#: Rows with more than this many vectors are summed one at a time; the others are summed together, vector by vector.
LONG: Final = 32

#: The number of vectors that are widened to float64 at once.
BLOCK: Final = 1024

#: Below this, a sum of squares may have lost terms to underflow.
LEAST_SQUARE: Final = 1e-280


@dataclass(frozen=True, eq=False)
class RowSparse:
    """A matrix most of whose rows are zero.

    Attributes:
        rows: int64, (n,), ascending, without repeats.
        values: (n, dim), the values of these rows; all others are zero.
        shape: (vocab, dim).
    """

    rows: np.ndarray
    values: np.ndarray
    shape: tuple[int, int]

    def to_dense(self, limit: int | None = DENSE_LIMIT) -> np.ndarray:
        """Return the whole matrix, (vocab, dim), in the values' dtype.

        Args:
            limit: the most bytes to allocate; None for no limit.

        Raises:
            MemoryError: the matrix would be larger.
        """
        size = self.shape[0] * self.shape[1] * self.values.itemsize
        if limit is not None and size > limit:
            raise MemoryError(
                f"a dense matrix of shape {self.shape} takes {size} bytes, more than the limit of {limit}: use .rows and "
                ".values, or pass limit=None"
            )
        dense = np.zeros(self.shape, self.values.dtype)
        dense[self.rows] = self.values
        return dense

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the whole matrix, as `to_dense` with its default limit, for `np.asarray` and all NumPy functions.

        Raises:
            MemoryError: the matrix would be larger than the limit.
            ValueError: `copy` is False; the dense matrix is always a new array.
        """
        if copy is False:
            raise ValueError("a RowSparse becomes an array by filling in its zeros: expected copy=None or copy=True")
        return as_asked(self.to_dense(), dtype, None)

    @property
    def nbytes(self) -> int:
        """The size of the rows and values in bytes."""
        return int(self.rows.nbytes + self.values.nbytes)

    def norm(self) -> float:
        """Return the Euclidean (Frobenius) norm of the whole matrix, computed in float64."""
        with np.errstate(over="ignore", under="ignore"):
            square = self.dot(self)
        if not LEAST_SQUARE < square < np.inf:
            largest = float(np.abs(self.values).max(initial=0))
            if 0 < largest < np.inf:
                return largest * float(np.linalg.norm(self.values / largest))
        return float(np.sqrt(square))

    def dot(self, other: RowSparse) -> float:
        """Return the inner product with another matrix of the same shape, in float64, without making either dense.

        Raises:
            EmbgradError: the shapes differ.
        """
        if not isinstance(other, RowSparse) or other.shape != self.shape:
            description = f"of shape {other.shape}" if isinstance(other, RowSparse) else f"a {type(other).__name__}"
            raise EmbgradError(
                f"the other table is {description}: expected a RowSparse of shape {self.shape}, a gradient of the same table"
            )
        total = 0.0
        for first_block, second_block in _blocks(*common_rows(self.rows, other.rows)):
            vector = self.values[first_block].astype(np.float64).ravel()
            total += float(
                vector @ (vector if other is self else other.values[second_block].astype(np.float64).ravel())
            )
        return total

    def __repr__(self) -> str:
        return f"RowSparse({len(self.rows)} of {self.shape[0]} rows × {self.shape[1]}, {self.values.dtype})"


def common_rows(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the rows that two tables share, in the first and in the second, both ascending."""
    if first is second:
        all_rows = np.arange(len(first))
        return all_rows, all_rows
    _, in_first, in_second = np.intersect1d(first, second, assume_unique=True, return_indices=True)
    return in_first, in_second


def scatter(indices: np.ndarray, vectors: np.ndarray, rows: int) -> RowSparse:
    """Return the sum of the vectors that belong to each row: the gradient of a table, from the gradients of its lookups.

    The vectors of a row are summed in float64 and rounded once to their own dtype, so that many small ones are not lost and
    their order matters only up to float64's rounding. The same input gives the same bits.

    Args:
        indices: integers of any shape, each a row of the table.
        vectors: the gradients, of the indices' shape + (dim,).
        rows: the number of rows in the table.
    """
    flat, keys = vectors.reshape(-1, vectors.shape[-1]), indices.ravel()
    order, starts = _sort(keys)
    present = keys[order[starts]].astype(np.int64)
    return RowSparse(present, _sums(flat, order, starts), (int(rows), flat.shape[1]))


def scatter_each(indices: np.ndarray, vectors: np.ndarray, rows: int) -> list[RowSparse]:
    """Return the result of `scatter` for each example, sorting all indices at once.

    Args:
        indices: integers, (example, position), each a row of the table.
        vectors: the gradients, (example, position, dim).
        rows: the number of rows in the table.
    """
    count = len(indices)
    if count * rows > np.iinfo(np.int64).max:
        return [scatter(*example, rows) for example in zip(indices, vectors, strict=True)]
    flat = vectors.reshape(-1, vectors.shape[-1])
    keys = (indices.astype(np.int64) + np.arange(count)[:, None] * int(rows)).ravel()
    order, starts = _sort(keys)
    owners, present = np.divmod(keys[order[starts]], int(rows))
    sums = _sums(flat, order, starts)
    bounds = np.searchsorted(owners, np.arange(count + 1))
    shape = (int(rows), flat.shape[1])
    # Copy, so that keeping one example's table does not keep those of all examples alive.
    return [RowSparse(present[start:end].copy(), sums[start:end].copy(), shape) for start, end in pairwise(bounds)]


def add(first: RowSparse, second: RowSparse) -> RowSparse:
    """Return the sum of two gradients of one table."""
    rows = np.concatenate([first.rows, second.rows])
    return scatter(rows, np.concatenate([first.values, second.values]), first.shape[0])


def _sort(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the stable order that sorts the keys, and the indices in it at which each key begins."""
    order = np.argsort(keys, kind="stable")
    ascending = keys[order]
    new = np.ones(len(keys), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=new[1:])
    return order, np.flatnonzero(new)


def _sums(flat: np.ndarray, order: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return the sum of the vectors of each key, see `_sort`.

    Only vectors of repeated keys are widened, a block at a time.
    """
    counts = np.diff(starts, append=len(order))
    sums: np.ndarray = flat[order[starts]]
    for key in np.flatnonzero(counts > LONG):
        total = np.zeros(flat.shape[1])
        for block in np.array_split(order[starts[key] : starts[key] + counts[key]], -(-counts[key] // BLOCK)):
            total += np.add.reduce(flat[block], axis=0, dtype=np.float64)
        sums[key] = total
    short = np.flatnonzero((counts > 1) & (counts <= LONG))
    short = short[np.argsort(-counts[short], kind="stable")]  # so that the rows with a further vector always come first
    for keys in np.array_split(short, -(-len(short) // BLOCK)) if len(short) else ():
        lengths = counts[keys]
        totals = flat[order[starts[keys]]].astype(np.float64)
        for further in range(1, int(lengths[0])):
            count = int(np.searchsorted(-lengths, -further))
            totals[:count] += flat[order[starts[keys[:count]] + further]]
        sums[keys] = totals
    sums += 0  # adding zero turns a negative zero into zero, as a sum would
    return sums


def _blocks(first: np.ndarray, second: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for start in range(0, len(first), BLOCK):
        yield first[start : start + BLOCK], second[start : start + BLOCK]
