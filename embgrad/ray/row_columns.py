"""Conversion of Arrow rows to NumPy arrays and batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from embgrad.errors import BatchError, EmbgradError, brief, did_you_mean, listed
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.checks import as_array, checked_integers, checked_mask
from embgrad.inputs.collate import expect_tokens
from embgrad.inputs.encode import encode

__all__ = ["Columns", "Examples", "Inputs", "NoColumnError", "examples_of", "named_row", "python_values", "rows_at"]


class NoColumnError(BatchError, KeyError):
    """The dataset has no column of that name."""


@dataclass(frozen=True)
class Inputs:
    """The columns that become the model's inputs, and how; see `embgrad.ray.Options`."""

    text: tuple[str, ...] = ("text",)
    ids: str | None = None
    mask: str | None = None
    types: str | None = None
    key: str | None = None
    max_length: int | None = None
    pad_id: int = 0
    convention: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that identify a row."""
        named = (self.ids, self.mask, self.types) if self.ids is not None else self.text
        return list(dict.fromkeys(name for name in (self.key, *named) if name is not None))


@dataclass(frozen=True)
class Examples:
    """The rows of a block as a batch.

    Attributes:
        batch: all rows, padded to the longest.
        real: True at real positions, False at padding, (example, position).
    """

    batch: TokenBatch
    real: np.ndarray

    def take(self, rows: np.ndarray) -> Examples:
        """Return the chosen rows, padded to the longest of them."""
        columns = np.flatnonzero(self.real[rows].any(0))
        span = slice(columns[0], columns[-1] + 1)
        batch = self.batch

        def selected(array: np.ndarray | None) -> np.ndarray | None:
            return None if array is None else array[rows, span]

        tokens = None if batch.tokens is None else [batch.tokens[row][span] for row in rows]
        subset = batch.replace(
            ids=selected(batch.ids),
            mask=selected(batch.mask),
            types=selected(batch.types),
            words=selected(batch.words),
            tokens=tokens,
            truncated=batch.truncated[rows],
        )
        return Examples(subset, self.real[rows, span])


def examples_of(rows: pa.Table, inputs: Inputs, tokenizer: Any) -> Examples:
    """Return the rows of a block as a batch.

    Raises:
        BatchError: a column is missing, or a row's value is not valid.
    """
    if inputs.ids is not None:
        return _from_ids(rows, inputs)
    columns = [python_values(rows, name) for name in inputs.text]
    texts = [tuple(row) if len(row) > 1 else row[0] for row in zip(*columns, strict=True)]
    try:
        batch = encode(texts, tokenizer, max_length=inputs.max_length)
    except EmbgradError:
        raise
    except Exception as error:  # user code; Ray would report it in a hundred lines
        raise BatchError(f"the tokenizer raised {type(error).__name__}: {error}") from error
    expect_tokens(bool(batch.real.any(1).all()))
    if inputs.convention is not None:
        batch = batch.replace(convention=inputs.convention)
    return Examples(batch, batch.real)


class Columns(Mapping[str, np.ndarray]):
    """A mapping of the columns to arrays with the rows on the first axis; rows of different lengths give an object array."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __getitem__(self, name: str) -> np.ndarray:
        column = _column(self._rows, name)
        # Arrow would return nulls as zeros.
        if isinstance(column.type, pa.FixedShapeTensorType) and not column.null_count:
            return np.asarray(column.combine_chunks().to_numpy_ndarray())
        return _as_rows(_values(column))

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows.column_names)

    def __len__(self) -> int:
        return len(self._rows.column_names)


def python_values(rows: pa.Table, name: str) -> list[Any]:
    """Return a column's values as Python objects, with lists for tensors.

    Raises:
        BatchError: the column does not exist.
    """
    return [
        value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
        for value in _values(_column(rows, name))
    ]


def rows_at(rows: pa.Table, chosen: np.ndarray) -> pa.Table:
    """Return the chosen rows; Arrow's own `take` does not support all of its types."""
    return pa.concat_tables([rows.slice(int(row), 1) for row in chosen])


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    if name not in rows.column_names:
        raise NoColumnError(
            f"the dataset has no column {name!r}: expected one of {listed(rows.column_names)}."
            f"{did_you_mean(name, rows.column_names)}"
        )
    return rows.column(name)


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values as Python objects, with arrays for tensors, which Arrow would return as flat lists."""
    if not isinstance(column.type, pa.FixedShapeTensorType):
        values: list[Any] = column.to_pylist()
        return values
    return [
        array.slice(number, 1).to_numpy_ndarray()[0] if valid else None
        for array in column.chunks
        for number, valid in enumerate(array.is_valid().to_pylist())
    ]


def named_row(rows: pa.Table, inputs: Inputs) -> str:
    """Return the description of a table's only row in messages."""
    columns = [inputs.key] if inputs.key is not None else inputs.columns
    entries = [
        f"{name}={brief(python_values(rows, name)[0])}"
        for name in columns
        if name is not None and name in rows.column_names
    ]
    return f"the row with {', '.join(entries)}" if entries else "a row"


def _from_ids(rows: pa.Table, inputs: Inputs) -> Examples:
    assert inputs.ids is not None
    ids = [_integers(array, inputs.ids, row) for row, array in enumerate(python_values(rows, inputs.ids))]
    real = np.arange(max(map(len, ids))) < np.array([len(array) for array in ids])[:, None]

    def padded(name: str | None, filler: int) -> np.ndarray | None:
        if name is None:
            return None
        parse = _mask if name == inputs.mask else _integers
        values = (
            ids
            if name == inputs.ids
            else [parse(array, name, row) for row, array in enumerate(python_values(rows, name))]
        )
        for row, (array, reference) in enumerate(zip(values, ids, strict=True)):
            if len(array) != len(reference):
                raise BatchError(
                    f"the column {name!r} of example {row} holds {len(array)} numbers, but {inputs.ids!r} holds "
                    f"{len(reference)}: expected equal lengths"
                )
        matrix = np.full(real.shape, filler, np.int64)
        matrix[real] = np.concatenate(values)
        return matrix

    mask = real.astype(np.int64) if inputs.mask is None else padded(inputs.mask, 0)
    batch = TokenBatch(
        padded(inputs.ids, inputs.pad_id),
        mask,
        padded(inputs.types, 0),
        convention=inputs.convention or "huggingface",
        mask_is_bool=inputs.mask is not None and _holds_booleans(rows, inputs.mask),
    )
    return Examples(batch, real)


def _integers(value: Any, name: str, row: int) -> np.ndarray:
    array = _vector(value, name, row)
    integers: np.ndarray = checked_integers(array[None], name, (1, len(array)))[0]
    return integers


def _mask(value: Any, name: str, row: int) -> np.ndarray:
    array = _vector(value, name, row)
    mask: np.ndarray = checked_mask(array[None], (1, len(array)))[0]
    return mask


def _vector(value: Any, name: str, row: int) -> np.ndarray:
    array = as_array(value, name) if value is not None else np.empty(0)
    if array.ndim != 1 or not array.size:
        raise BatchError(
            f"the column {name!r} of example {row} holds {brief(value)}: expected a list of at least one whole number"
        )
    return array


def _holds_booleans(rows: pa.Table, name: str) -> bool:
    """Return whether a column holds booleans, which are then passed to the model as such."""
    return all(as_array(value, name).dtype == bool for value in python_values(rows, name))


def _as_rows(values: list[Any]) -> np.ndarray:
    try:
        array = np.array(values)
    except ValueError:  # rows of different lengths
        array = np.empty(0, object)
    if array.dtype.kind not in "OS" and len(array) == len(values):  # NumPy's bytes lose trailing zeros
        return array
    objects = np.empty(len(values), object)
    for row, value in enumerate(values):  # one by one: NumPy would merge arrays of one shape
        objects[row] = _as_rows(value) if isinstance(value, list) else value
    return objects
