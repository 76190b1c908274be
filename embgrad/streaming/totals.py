"""The running sum of table gradients over a data set, in float64, with only the rows that were looked up in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from embgrad.common.safetensors import read_tensors, write_tensors
from embgrad.errors import FileFormatError
from embgrad.results.row_sparse import RowSparse

__all__ = ["Total", "load_tables", "save_tables"]

_KEY: Final = "embgrad-tables"


class Total:
    """The running sum of gradients of one table, in float64.

    Args:
        initial: a former sum to continue, with float64 values; None to begin at zero.
        dtype: the dtype of the gradients in `initial`; None without them.
    """

    def __init__(self, initial: RowSparse | None = None, dtype: Any = None) -> None:
        self.dtype = dtype
        self._sums: np.ndarray | None = None  # of the whole table, whose rows take no memory until they are reached
        self._reached: np.ndarray
        if initial is not None:
            self._add(initial)

    def expect(self, table: RowSparse) -> None:
        """Check that a gradient can be added."""
        if self._sums is not None and table.shape != self._sums.shape:
            raise FileFormatError(
                f"the sum so far is of a table of shape {self._sums.shape}, and the next gradient of one of {table.shape}: "
                "expected gradients of one table; was the vocabulary resized in between?"
            )

    def add(self, table: RowSparse, dtype: Any = None) -> None:
        """Add a gradient of the table. After an interrupted addition the sum must not be used.

        Args:
            dtype: the dtype of the gradient, if that of its values is a wider one.
        """
        self.expect(table)
        added = np.dtype(table.values.dtype if dtype is None else dtype)
        self.dtype = added if self.dtype is None else np.promote_types(self.dtype, added)
        self._add(table)

    def _add(self, table: RowSparse) -> None:
        if self._sums is None:
            self._sums, self._reached = np.zeros(table.shape), np.zeros(table.shape[0], bool)
        self._sums[table.rows] += table.values
        self._reached[table.rows] = True

    def table(self, *, wide: bool = False) -> RowSparse | None:
        """Return the sum in the dtype of the gradients, or in float64 with `wide`; None where no gradient was added."""
        if self._sums is None:
            return None
        values = self._sums[self._reached]
        return RowSparse(np.flatnonzero(self._reached), values if wide else values.astype(self.dtype), self._sums.shape)


def save_tables(totals: Mapping[str, Total], path: Path, *, durable: bool = False) -> None:
    """Write sums by name to a file, in float64, atomically."""
    arrays, entries = {}, []
    for number, (name, total) in enumerate(totals.items()):
        table = total.table(wide=True)
        assert table is not None, "something was added"
        arrays.update({f"{number}.rows": table.rows, f"{number}.values": table.values})
        entries.append({"name": name, "shape": list(table.shape), "dtype": str(np.dtype(total.dtype))})
    write_tensors(path, arrays, {_KEY: json.dumps({"format": 1, "tables": entries})}, durable=durable)


def load_tables(path: Path) -> dict[str, tuple[RowSparse, np.dtype[Any]]]:
    """Read a file written by `save_tables`: the sums by name, in float64, each with the dtype of its gradients."""
    arrays, metadata = read_tensors(path, ("F64", "I64"))
    try:
        header = json.loads(metadata[_KEY])
        sums = {}
        if header["format"] != 1:
            raise ValueError("it is of another format")
        for number, entry in enumerate(header["tables"]):
            table = RowSparse(arrays.pop(f"{number}.rows"), arrays.pop(f"{number}.values"), tuple(entry["shape"]))
            if entry["dtype"] not in ("float32", "float64"):
                raise ValueError(f"a sum is of dtype {entry['dtype']!r}")
            _expect_table(table)
            sums[str(entry["name"])] = table, np.dtype(entry["dtype"])
        if arrays or len(sums) != len(header["tables"]):
            raise ValueError("it holds arrays of no table, or a name twice")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FileFormatError(f"{path} holds no tables as embgrad writes them: {error}; write it again") from error
    return sums


def _expect_table(table: RowSparse) -> None:
    valid_shape = len(table.shape) == 2 and all(type(size) is int and 0 < size < 2**48 for size in table.shape)
    if not valid_shape or table.rows.dtype != np.int64 or table.values.dtype != np.float64 or table.rows.ndim != 1:
        raise ValueError(f"a table of shape {table.shape} has rows of shape {table.rows.shape}")
    in_range = not table.rows.size or 0 <= table.rows[0] <= table.rows[-1] < table.shape[0]
    if table.values.shape != (len(table.rows), table.shape[1]) or not in_range or (np.diff(table.rows) <= 0).any():
        raise ValueError(
            f"a table of shape {table.shape} has values of shape {table.values.shape}, or rows out of order"
        )
