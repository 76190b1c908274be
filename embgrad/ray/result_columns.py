"""Gradients as additional columns of the rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from embgrad.errors import BatchError, EmbgradError, listed
from embgrad.ray.row_columns import named_row
from embgrad.ray.settings import Inputs
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.row_sparse import scatter

__all__ = ["Answer", "Wanted", "with_answers"]


@dataclass(frozen=True)
class Answer:
    """The gradients of some rows of a block.

    Attributes:
        rows: the indices of the rows in the block.
        found: the gradients.
        own: True at real positions, False at padding, (row, position).
    """

    rows: np.ndarray
    found: EmbeddingGradients
    own: np.ndarray


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


def with_answers(rows: pa.Table, answers: Iterable[Answer], wanted: Wanted, inputs: Inputs) -> pa.Table:
    """Return the rows in their order, with new columns.

    Raises:
        EmbgradError: a new column has the name of an existing one.
        BatchError: a row is longer than `length`.
    """
    made: list[dict[str, Any]] = [{} for _ in range(rows.num_rows)]
    dtype = np.dtype(np.float32)
    for answer in answers:
        dtype = answer.found.values.dtype
        saliency = answer.found.saliency(wanted.kind) if wanted.output == "saliency" else None
        for place, row in enumerate(answer.rows):
            own = np.flatnonzero(answer.own[place])
            made[row] = _common(answer.found, place, own, inputs.max_length is not None)
            if saliency is not None:
                made[row]["saliency"] = saliency[place, own]
            elif wanted.output == "tables":
                made[row] |= _table(answer.found, place, own)
            else:
                made[row]["values"] = _padded(answer.found.values[place, own], wanted, rows.slice(row, 1), inputs)
    table = rows
    for name in made[0] if made else ():
        column = _column(name, [one[name] for one in made], pa.from_numpy_dtype(dtype), wanted)
        table = table.append_column(_free(wanted.prefix + name, rows), column)
    return table


def _common(found: EmbeddingGradients, place: int, own: np.ndarray, cut: bool) -> dict[str, Any]:
    common: dict[str, Any] = {"ids": found.ids[place, own]}
    if found.tokens is not None:
        common["tokens"] = [found.tokens[place][position] for position in own]
    common["objective"] = float(found.objective[place])
    if cut:
        common["truncated"] = int(found.provenance["truncated"][place])
    return common


def _table(found: EmbeddingGradients, place: int, own: np.ndarray) -> dict[str, Any]:
    """Return the row's table gradient over its real positions; padding belongs to the batch and not to the row."""
    if found.vocab is None:
        found.table()  # raises and says why there is no table
    assert found.vocab is not None
    table = scatter(found.ids[place, own], found.values[place, own], found.vocab)
    return {"rows": table.rows, "values": table.values, "vocab": found.vocab}


def _padded(values: np.ndarray, wanted: Wanted, row: pa.Table, inputs: Inputs) -> np.ndarray:
    assert wanted.length is not None
    if len(values) > wanted.length:
        raise BatchError(
            f"{named_row(row, inputs)} has {len(values)} positions, and length is {wanted.length}: expected room for all; "
            "raise length, or cut the texts with max_length"
        )
    whole = np.zeros((wanted.length, values.shape[1]), values.dtype)
    whole[: len(values)] = values
    return whole


def _column(name: str, values: list[Any], kind: pa.DataType, wanted: Wanted) -> pa.Array:
    if name == "values" and wanted.output == "values":
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack(values))
    if name == "values":
        flat = pa.array(np.concatenate([one.ravel() for one in values]), kind)
        offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
        return pa.LargeListArray.from_arrays(
            pa.array(offsets), pa.FixedSizeListArray.from_arrays(flat, values[0].shape[1])
        )
    types = {
        "ids": pa.list_(pa.int64()),
        "rows": pa.list_(pa.int64()),
        "tokens": pa.list_(pa.string()),
        "saliency": pa.list_(kind),
        "objective": pa.float64(),
        "truncated": pa.int64(),
        "vocab": pa.int64(),
    }
    return pa.array(values, types[name])


def _free(name: str, rows: pa.Table) -> str:
    if name in rows.column_names:
        raise EmbgradError(
            f"the dataset has a column {name!r} already, among {listed(rows.column_names)}: rename it, or pass prefix='g_' for "
            "names that are free"
        )
    return name
