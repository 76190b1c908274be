"""Norms, inner products and clipped sums of the examples' table gradients, computed without making them dense."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from numbers import Real
from typing import Any, Final

import numpy as np

from embgrad.errors import EmbgradError, brief
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.row_sparse import RowSparse, scatter

__all__ = ["TableIndex", "clipped_table", "table_norms", "table_products", "tables_of"]

#: The most bytes that float64 copies of rows may take at once.
BLOCK_BYTES: Final = 2**25

_EXPECTED: Final = (
    "expected a result of embgrad.gradients, or a list of RowSparse such as several results' per_example() together"
)


def table_norms(g: EmbeddingGradients | Sequence[RowSparse]) -> np.ndarray:
    """Return the norm of each example's table gradient through the lookup, float64, shape (example,).

    This is the table's contribution to the norm that differentially private training clips by: the norm of
    `per_example()[i]`, computed without any example's (vocab, dim) matrix. As for embedding layers in the "ghost clipping" of
    Li, Tramèr, Liang and Hashimoto, "Large Language Models Can Be Strong Differentially Private Learners", 2022, it is the root
    of the sum, over pairs of positions with the same id, of the inner products of their gradients; here the gradients of one
    id are summed first.

    Args:
        g: a result, or a list of examples' tables from any number of results.

    Raises:
        EmbgradError: it is neither.
        PointError: the result's point is not a lookup, see `EmbeddingGradients.per_example`.
    """
    return np.array([table.norm() for table in tables_of(g, "g")])


def table_products(
    g: EmbeddingGradients | Sequence[RowSparse], h: EmbeddingGradients | Sequence[RowSparse] | None = None
) -> np.ndarray:
    """Return the inner products of the examples' table gradients, float64, shape (examples of g, examples of h).

    Entry (i, j) is Σ over the positions p of example i and q of example j that hold the same id of ⟨values[i, p], values[j, q]⟩:
    the inner product of two (vocab, dim) matrices. It is the table's term of the influence of one example on another by
    gradient similarity (TracIn: Pruthi, Liu, Kale and Sundararajan, "Estimating Training Data Influence by Tracing Gradient
    Descent", 2020).

    Rows are processed in blocks: beside the tables themselves and the result, this takes at most a few tens of MiB.

    Args:
        g: a result, or a list of examples' tables from any number of results, whose lengths may differ.
        h: likewise, gradients of the same table; None for `g`.

    Raises:
        EmbgradError: it is neither, or the tables' shapes differ.
        PointError: a result's point is not a lookup, see `EmbeddingGradients.per_example`.
    """
    first = TableIndex(tables_of(g, "g"))
    if h is not None:
        return first.products(TableIndex(tables_of(h, "h")))
    products = first.products(first)
    _make_symmetric(products)
    return products


def clipped_table(g: EmbeddingGradients | Sequence[RowSparse], max_norm: float) -> RowSparse:
    """Return the sum of the examples' table gradients, each scaled down to at most a norm: Σ_i tᵢ · min(1, max_norm / ‖tᵢ‖).

    Differentially private SGD adds its noise to this sum (Abadi and others, "Deep Learning with Differential Privacy", 2016), if
    the table through this lookup is all that is trained. The sum is never made dense.

    Args:
        g: see `table_norms`.
        max_norm: a positive number.

    Raises:
        EmbgradError: `g` is neither a result nor a list of tables of one shape, or `max_norm` is not a positive number.
        PointError: the result's point is not a lookup, see `EmbeddingGradients.per_example`.
    """
    if isinstance(max_norm, bool) or not isinstance(max_norm, Real) or not max_norm > 0:
        raise EmbgradError(f"max_norm is {brief(max_norm)}: expected a number above 0")
    most = float(max_norm)  # a float16 would give each quotient the precision of float16
    tables = tables_of(g, "g")
    _expect_one_shape(tables)
    if not tables:
        raise EmbgradError(f"g is empty: {_EXPECTED}, of one table at least")
    scaled = []
    for table in tables:
        norm = table.norm()
        if norm <= most:
            scaled.append(table.values)
        else:  # in float32 the quotient may underflow where the product does not
            wide = np.multiply(table.values, most / norm, dtype=np.float64)
            scaled.append(wide.astype(table.values.dtype))
    return scatter(np.concatenate([table.rows for table in tables]), np.concatenate(scaled), tables[0].shape[0])


class TableIndex:
    """Several tables by their rows: row `rows[i]` is in the tables `owners[starts[i]:ends[i]]`."""

    def __init__(self, tables: Sequence[RowSparse]) -> None:
        _expect_one_shape(tables)
        self.tables = tables
        sizes = np.array([len(table.rows) for table in tables], np.int64)
        rows = np.concatenate([table.rows for table in tables]) if tables else np.zeros(0, np.int64)
        order = np.argsort(rows, kind="stable")
        self.rows, self.starts = np.unique(rows[order], return_index=True)
        self.ends = np.append(self.starts[1:], len(rows))
        self.owners = np.repeat(np.arange(len(tables)), sizes)[order]
        self._within = np.concatenate([np.arange(size) for size in sizes])[order] if tables else order
        self.dim = tables[0].shape[1] if tables else 0

    def __len__(self) -> int:
        return len(self.tables)

    def products(self, other: TableIndex) -> np.ndarray:
        """Return the inner products of the tables with others, float64, shape (own table, other table)."""
        _expect_one_shape([*self.tables[:1], *other.tables[:1]])
        products = np.zeros((len(self), len(other)))
        for left, right in _find_shared(self, other):
            inner = self.values(left) @ other.values(right).transpose(0, 2, 1)
            np.add.at(products, (self.owners[left][:, :, None], other.owners[right][:, None, :]), inner)
        return products

    def values(self, entries: np.ndarray) -> np.ndarray:
        """Return the vectors of entries of any shape, float64, that shape + (dim,)."""
        vectors = np.empty((entries.size, self.dim))
        flat = entries.ravel()
        owners, within = self.owners[flat], self._within[flat]
        order = np.argsort(owners, kind="stable")
        bounds = np.flatnonzero(np.diff(owners[order])) + 1
        for group in np.split(order, bounds) if len(order) else ():
            vectors[group] = self.tables[owners[group[0]]].values[within[group]]
        return vectors.reshape(*entries.shape, self.dim)


def _find_shared(mine: TableIndex, theirs: TableIndex) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the entries of shared rows, (row, entries of the first) and (row, entries of the second).

    Each block has rows with equally many entries. Where very many tables share a row, as with a special token's, it is split
    into several blocks.
    """
    _, left, right = np.intersect1d(mine.rows, theirs.rows, assume_unique=True, return_indices=True)
    counts = np.stack([mine.ends[left] - mine.starts[left], theirs.ends[right] - theirs.starts[right]], axis=1)
    pairs, pair_of = np.unique(counts, axis=0, return_inverse=True)
    side = max(
        1, int((mine.dim**2 + BLOCK_BYTES // 8) ** 0.5) - mine.dim
    )  # the side of the largest square block within BLOCK_BYTES
    for number, (count, other_count) in enumerate(pairs):
        chosen = np.flatnonzero(pair_of.ravel() == number)
        a, b = min(int(count), side), min(int(other_count), side)
        size = max(1, BLOCK_BYTES // (8 * max(1, (a + b) * mine.dim + a * b)))
        for start in range(0, len(chosen), size):
            block = chosen[start : start + size]
            for first, second in product(range(0, int(count), a), range(0, int(other_count), b)):
                yield (
                    mine.starts[left[block]][:, None] + np.arange(first, min(first + a, count)),
                    theirs.starts[right[block]][:, None] + np.arange(second, min(second + b, other_count)),
                )


def _make_symmetric(products: np.ndarray) -> None:
    """Make the matrix exactly symmetric, a block of rows at a time: mirrored entries are the same sums in another order."""
    size = max(1, BLOCK_BYTES // (16 * max(1, len(products))))
    for start in range(0, len(products), size):
        rows = slice(start, start + size)
        mean = (products[rows, start:] + products[start:, rows].T) / 2
        products[rows, start:], products[start:, rows] = mean, mean.T


def tables_of(g: Any, name: str) -> list[RowSparse]:
    """Return the tables of a result's examples, or those of a list."""
    if isinstance(g, EmbeddingGradients):
        return g.per_example()
    if isinstance(g, (list, tuple)) and all(isinstance(table, RowSparse) for table in g):
        return list(g)
    wrong = next((type(table).__name__ for table in g if not isinstance(table, RowSparse)), "") if _is_list(g) else ""
    description = f"a {type(g).__name__}" + (f" that holds a {wrong}" if wrong else "")
    raise EmbgradError(f"{name} is {description}: {_EXPECTED}")


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _expect_one_shape(tables: Sequence[RowSparse]) -> None:
    shapes = list(dict.fromkeys(table.shape for table in tables))
    if len(shapes) > 1:
        raise EmbgradError(f"the tables have the shapes {shapes[0]} and {shapes[1]}: expected gradients of one table")
