"""Gradients as additional columns of the rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from embgrad.attribution.method import Method
from embgrad.errors import BatchError, EmbgradError, listed
from embgrad.ray.row_columns import Inputs, named_row
from embgrad.results.attribution import Attribution
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.row_sparse import scatter

__all__ = ["RowGradients", "Wanted", "with_columns"]


@dataclass(frozen=True)
class RowGradients:
    """The gradients of some rows of a block, or their attribution.

    Attributes:
        rows: the indices of the rows in the block.
        result: the gradients or the attribution.
        real: True at real positions, False at padding, (row, position).
    """

    rows: np.ndarray
    result: Any
    real: np.ndarray


@dataclass(frozen=True)
class Wanted:
    """The requested columns.

    Attributes:
        output: "saliency", "tables" or "values".
        kind: the kind of saliency, "norm" or "dot".
        length: with output="values", the number of positions in each row's tensor.
        prefix: the prefix of the new columns' names.
        method: the attribution method; None for gradients.
    """

    output: str
    kind: str
    length: int | None
    prefix: str
    method: Method | None = None


def with_columns(rows: pa.Table, row_gradients: Iterable[RowGradients], wanted: Wanted, inputs: Inputs) -> pa.Table:
    """Return the rows in their order, with new columns.

    Raises:
        EmbgradError: a new column has the name of an existing one.
        BatchError: a row is longer than `length`.
    """
    columns: list[dict[str, Any]] = [{} for _ in range(rows.num_rows)]
    dtype: np.dtype[Any] = np.dtype(np.float32)
    for entry in row_gradients:
        is_attribution = isinstance(entry.result, Attribution)
        dtype = np.dtype(np.float64) if is_attribution else entry.result.values.dtype
        is_saliency = wanted.output == "saliency" and not is_attribution
        saliency = entry.result.saliency(wanted.kind) if is_saliency else None
        for index, row in enumerate(entry.rows):
            positions = np.flatnonzero(entry.real[index])
            columns[row] = _common(entry.result, index, positions, inputs.max_length is not None)
            if is_attribution:
                columns[row] |= _scores(entry.result, index, positions)
            elif saliency is not None:
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


def _common(
    result: EmbeddingGradients | Attribution, index: int, positions: np.ndarray, with_truncated: bool
) -> dict[str, Any]:
    common: dict[str, Any] = {"ids": result.ids[index, positions]}
    if result.tokens is not None:
        common["tokens"] = [result.tokens[index][position] for position in positions]
    common["objective"] = float(result.objective[index])
    if with_truncated:
        common["truncated"] = int(result.provenance["truncated"][index])
    return common


def _scores(result: Attribution, index: int, positions: np.ndarray) -> dict[str, Any]:
    scores: dict[str, Any] = {"scores": result.scores[index, positions]}
    for name in ("baseline_objective", "delta"):
        values = getattr(result, name)
        if values is not None:
            scores[name] = float(values[index])
    return scores


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
        "scores": pa.list_(dtype),
        "baseline_objective": pa.float64(),
        "delta": pa.float64(),
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
