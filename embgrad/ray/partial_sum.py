"""A partial sum of table gradients, with the tally of the rows that it covers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from embgrad.errors import EmbgradError
from embgrad.ray.tally import Tally
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.row_sparse import RowSparse, added, scatter

__all__ = ["Partial"]


@dataclass(frozen=True)
class Partial:
    """The sum of some rows' table gradients, in float64.

    Attributes:
        table: the sum; None for no rows.
        dtype: the dtype of the summed gradients.
        tally: the tally of the rows.
    """

    table: RowSparse | None = None
    dtype: str = "float32"
    tally: Tally = field(default_factory=Tally)

    columns: ClassVar[tuple[str, ...]] = ("rows", "values", "vocab", "dim", "dtype", "count", "fingerprint")

    @classmethod
    def of_gradients(cls, result: EmbeddingGradients, real: np.ndarray) -> Partial:
        """Return the sum over the rows' real positions."""
        if result.vocab is None:
            result.table()  # raises and says why there is no table
        assert result.vocab is not None
        table = scatter(result.ids[real], result.values[real].astype(np.float64), result.vocab)
        return cls(table, str(result.values.dtype))

    @classmethod
    def of_blocks(cls, *blocks: Any) -> Partial:
        """Return the sum of partial sums and of Arrow blocks as `to_arrow` returns them."""
        total = cls()
        for block in blocks:
            for partial in [block] if isinstance(block, Partial) else _from_arrow(block):
                total += partial
        return total

    def __add__(self, other: Partial) -> Partial:
        tally = self.tally + other.tally
        if self.table is None or other.table is None:
            present = self if other.table is None else other
            return Partial(present.table, present.dtype, tally)
        if self.table.shape != other.table.shape:
            raise EmbgradError(
                f"the actors' tables differ in shape, {self.table.shape} and {other.table.shape}: expected build() to return the "
                "same model in each"
            )
        return Partial(added(self.table, other.table), str(np.promote_types(self.dtype, other.dtype)), tally)

    def to_arrow(self) -> pa.Table:
        """Return the partial sum as an Arrow table of one row."""
        table = self.table or RowSparse(np.empty(0, np.int64), np.empty((0, 0)), (0, 0))
        columns = (
            pa.array([table.rows], pa.large_list(pa.int64())),
            pa.array([table.values.ravel()], pa.large_list(pa.float64())),
            pa.array([table.shape[0]], pa.int64()),
            pa.array([table.shape[1]], pa.int64()),
            pa.array([self.dtype], pa.string()),
            pa.array([self.tally.rows], pa.int64()),
            pa.array([self.tally.fingerprint], pa.uint64()),
        )
        return pa.table(dict(zip(self.columns, columns, strict=True)))


def _from_arrow(block: pa.Table) -> list[Partial]:
    partials = []
    for index in range(block.num_rows):
        rows, values, vocab, dim, dtype, count, fingerprint = (block.column(name)[index] for name in Partial.columns)
        matrix = values.values.to_numpy().reshape(-1, dim.as_py()) if dim.as_py() else np.empty((0, 0))
        table = RowSparse(rows.values.to_numpy(), matrix, (vocab.as_py(), dim.as_py())) if dim.as_py() else None
        partials.append(Partial(table, dtype.as_py(), Tally(count.as_py(), fingerprint.as_py())))
    return partials
