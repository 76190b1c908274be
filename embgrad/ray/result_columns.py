"""Gradients as additional columns of the rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from embgrad.errors import BatchError, EmbgradError, listed
from embgrad.ray.row_columns import Inputs, named_row
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.row_sparse import scatter

__all__ = ["RowGradients", "Wanted", "with_columns"]


@dataclass(frozen=True)
class RowGradients:
    """The gradients of some rows of a block.

    Attributes:
        rows: the indices of the rows in the block.
        result: the gradients.
        real: True at real positions, False at padding, (row, position).
    """

    rows: np.ndarray
    result: EmbeddingGradients
    real: np.ndarray


@dataclass(frozen=True)
class Wanted:
    """The requested columns.

    Attributes:
        output: "saliency", "tables" or "values".
        kind: the kind of saliency, "norm" or "dot".
        length: with output="values", the number of positions in each row's tensor.
        prefix: the prefix of the new columns' names.
    """

    output: str
    kind: str
    length: int | None
    prefix: str


def with_columns(rows: pa.Table, row_gradients: Iterable[RowGradients], wanted: Wanted, inputs: Inputs) -> pa.Table:
    """Return the rows in their order, with new columns.

    Raises:
        EmbgradError: a new column has the name of an existing one.
        BatchError: a row is longer than `length`.
    """
    columns: list[dict[str, Any]] = [{} for _ in range(rows.num_rows)]
    dtype = np.dtype(np.float32)
    for entry in row_gradients:
        dtype = entry.result.values.dtype
        saliency = entry.result.saliency(wanted.kind) if wanted.output == "saliency" else None
        for index, row in enumerate(entry.rows):
            positions = np.flatnonzero(entry.real[index])
            columns[row] = _common(entry.result, index, positions, inputs.max_length is not None)
            if saliency is not None:
                columns[row]["saliency"] = saliency[index, positions]
            elif wanted.output == "tables":
                columns[row] |= _table(entry.result, index, positions)
            else:
                columns[row]["values"] = _padded(
                    entry.result.values[index, positions], wanted, rows.slice(row, 1), inputs
                )
    table = rows
    for name in columns[0] if columns else ():
        column = _column(name, [row_columns[name] for row_columns in columns], pa.from_numpy_dtype(dtype), wanted)
        table = table.append_column(_expect_free(wanted.prefix + name, rows), column)
    return table


def _common(result: EmbeddingGradients, index: int, positions: np.ndarray, with_truncated: bool) -> dict[str, Any]:
    common: dict[str, Any] = {"ids": result.ids[index, positions]}
    if result.tokens is not None:
        common["tokens"] = [result.tokens[index][position] for position in positions]
    common["objective"] = float(result.objective[index])
    if with_truncated:
        common["truncated"] = int(result.provenance["truncated"][index])
    return common


def _table(result: EmbeddingGradients, index: int, positions: np.ndarray) -> dict[str, Any]:
    """Return the row's table gradient over its real positions; padding belongs to the batch and not to the row."""
    if result.vocab is None:
        result.table()  # raises and says why there is no table
    assert result.vocab is not None
    table = scatter(result.ids[index, positions], result.values[index, positions], result.vocab)
    return {"rows": table.rows, "values": table.values, "vocab": result.vocab}


def _padded(values: np.ndarray, wanted: Wanted, row: pa.Table, inputs: Inputs) -> np.ndarray:
    assert wanted.length is not None
    if len(values) > wanted.length:
        raise BatchError(
            f"{named_row(row, inputs)} has {len(values)} positions, but length is {wanted.length}: "
            "raise length, or cut the texts with max_length"
        )
    padded = np.zeros((wanted.length, values.shape[1]), values.dtype)
    padded[: len(values)] = values
    return padded


def _column(name: str, values: list[Any], dtype: pa.DataType, wanted: Wanted) -> pa.Array:
    if name == "values" and wanted.output == "values":
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack(values))
    if name == "values":
        flat = pa.array(np.concatenate([array.ravel() for array in values]), dtype)
        offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
        return pa.LargeListArray.from_arrays(
            pa.array(offsets), pa.FixedSizeListArray.from_arrays(flat, values[0].shape[1])
        )
    types = {
        "ids": pa.list_(pa.int64()),
        "rows": pa.list_(pa.int64()),
        "tokens": pa.list_(pa.string()),
        "saliency": pa.list_(dtype),
        "objective": pa.float64(),
        "truncated": pa.int64(),
        "vocab": pa.int64(),
    }
    return pa.array(values, types[name])


def _expect_free(name: str, rows: pa.Table) -> str:
    if name in rows.column_names:
        raise EmbgradError(
            f"the dataset has a column {name!r} already, among {listed(rows.column_names)}: rename it, or pass prefix='g_' for "
            "names that are free"
        )
    return name
