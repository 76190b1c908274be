"""The gradient of a table, row-sparse: only the rows that were looked up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["RowSparse", "added", "scatter"]

#: The most bytes that `to_dense` makes without being told to.
DENSE_LIMIT = 2**30


@dataclass(frozen=True, eq=False)
class RowSparse:
    """A matrix most of whose rows are zero.

    Attributes:
        rows: int64, (n,), ascending, each once.
        values: (n, dim), the values of these rows; all others are zero.
        shape: (vocab, dim).
    """

    rows: np.ndarray
    values: np.ndarray
    shape: tuple[int, int]

    def to_dense(self, limit: int | None = DENSE_LIMIT) -> np.ndarray:
        """The whole matrix, (vocab, dim), of the values' dtype.

        Args:
            limit: the most bytes to make; None for no limit.

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

    @property
    def nbytes(self) -> int:
        """The bytes that it takes."""
        return int(self.rows.nbytes + self.values.nbytes)

    def __repr__(self) -> str:
        return f"RowSparse({len(self.rows)} of {self.shape[0]} rows × {self.shape[1]}, {self.values.dtype})"


def scatter(indices: np.ndarray, vectors: np.ndarray, rows: int) -> RowSparse:
    """The sum of the vectors that belong to each row: the gradient of a table from that of its lookups.

    Args:
        indices: whole numbers of any shape.
        vectors: the indices' shape + (dim,).
        rows: the table's rows.
    """
    flat = vectors.reshape(-1, vectors.shape[-1])
    present, where = np.unique(indices.ravel(), return_inverse=True)
    # Summed in float64: many positions may share a row, and the result should not depend on their order.
    totals = np.zeros((len(present), flat.shape[1]))
    np.add.at(totals, where.ravel(), flat)
    return RowSparse(present.astype(np.int64), totals.astype(vectors.dtype), (int(rows), flat.shape[1]))


def added(first: RowSparse, second: RowSparse) -> RowSparse:
    """The sum of two gradients of one table."""
    rows = np.concatenate([first.rows, second.rows])
    return scatter(rows, np.concatenate([first.values, second.values]), first.shape[0])
