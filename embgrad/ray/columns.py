"""Rows of a dataset as batches, and results as further columns of the rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from embgrad.attribution.method import Method
from embgrad.errors import BatchError, EmbgradError, brief, did_you_mean, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.checks import as_array, check_integers, check_mask
from embgrad.inputs.collate import Encoded, Padding, expect_tokens, pad
from embgrad.inputs.encode import as_example, encode_examples, padding_of, warn_of_doubled
from embgrad.results.attribution import Attribution
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.row_sparse import RowSparse, scatter

__all__ = [
    "Block",
    "Columns",
    "Inputs",
    "NoColumnError",
    "Wanted",
    "block_of",
    "python_values",
    "table_of",
    "with_columns",
]


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
class Block:
    """Some rows with their tokens, which become a batch.

    Attributes:
        rows: the rows.
        inputs: the columns that the tokens come from.
        examples: the tokens of each row.
        padding: the values that fill the shorter rows of a batch.
        masks: the mask of each row; None where no column holds masks.
        mask_is_bool: whether the masks are booleans.
    """

    rows: pa.Table
    inputs: Inputs
    examples: list[Encoded]
    padding: Padding
    masks: list[np.ndarray] | None = None
    mask_is_bool: bool = False

    @property
    def lengths(self) -> np.ndarray:
        """The number of positions of each row, padding excluded."""
        return np.array([len(example.ids) for example in self.examples])

    @cached_property
    def _padded(self) -> TokenBatch:
        """The rows, padded to the longest, with a mask that is 1 at all of their positions."""
        return pad(self.examples, self.padding)

    @cached_property
    def batch(self) -> TokenBatch:
        """The rows, padded to the longest, as the model receives them."""
        batch = self._padded
        if self.masks is not None:
            mask = np.zeros(batch.shape, np.int64)
            mask[self.real] = np.concatenate(self.masks)
            batch = batch.replace(mask=mask, mask_is_bool=self.mask_is_bool)
        return batch if self.inputs.convention is None else batch.replace(convention=self.inputs.convention)

    @cached_property
    def real(self) -> np.ndarray:
        """True at the rows' positions, False at padding, (row, position)."""
        return self._padded.real

    def take(self, chosen: np.ndarray) -> Block:
        """Return the chosen rows; an index may occur several times."""
        numbers = [int(row) for row in chosen]
        rows = pa.concat_tables([self.rows.slice(row, 1) for row in numbers])  # Arrow's `take` does not know all types
        masks = None if self.masks is None else [self.masks[row] for row in numbers]
        return replace(self, rows=rows, examples=[self.examples[row] for row in numbers], masks=masks)

    def name(self, row: int) -> str:
        """Return the description of a row in messages."""
        return row_name(self.rows.slice(row, 1), self.inputs)


def row_name(row: pa.Table, inputs: Inputs) -> str:
    """Return the description of a table's only row in messages."""
    columns = [inputs.key] if inputs.key is not None else inputs.columns
    known = [name for name in columns if name in row.column_names]
    entries = [f"{name}={brief(python_values(row, name)[0])}" for name in known]
    return f"the row with {', '.join(entries)}" if entries else "a row"


def block_of(rows: pa.Table, inputs: Inputs, tokenizer: Any) -> Block:
    """Return the rows with their tokens."""
    if inputs.ids is not None:
        return _block_of_ids(rows, inputs)
    columns = [python_values(rows, name) for name in inputs.text]
    texts = [row if len(row) > 1 else row[0] for row in zip(*columns, strict=True)]
    try:
        examples = encode_examples(
            [as_example(text, row) for row, text in enumerate(texts)], tokenizer, inputs.max_length
        )
        padding = padding_of(tokenizer)
    except EmbgradError:
        raise
    except Exception as error:  # user code; Ray would report it in a hundred lines
        raise BatchError(f"the tokenizer raised {type(error).__name__}: {error}") from error
    warn_of_doubled(examples, tokenizer)
    expect_tokens(all(len(example.ids) for example in examples))
    return Block(rows, inputs, examples, padding)


def _block_of_ids(rows: pa.Table, inputs: Inputs) -> Block:
    assert inputs.ids is not None
    ids = [_integers(value, inputs.ids, row) for row, value in enumerate(python_values(rows, inputs.ids))]

    def numbers(name: str | None, parse: Any) -> list[Any] | None:
        if name is None:
            return None
        arrays = [parse(value, name, row) for row, value in enumerate(python_values(rows, name))]
        for row, (array, reference) in enumerate(zip(arrays, ids, strict=True)):
            if len(array) != len(reference):
                raise BatchError(
                    f"the column {name!r} of example {row} holds {len(array)} numbers, but {inputs.ids!r} holds "
                    f"{len(reference)}: expected equal lengths"
                )
        return arrays

    types, masks = numbers(inputs.types, _integers), numbers(inputs.mask, _vector)
    examples = [Encoded(row, None if types is None else types[number]) for number, row in enumerate(ids)]
    is_bool = masks is not None and all(mask.dtype == bool for mask in masks)
    if masks is not None:
        masks = [check_mask(mask[None], (1, len(mask))).ravel() for mask in masks]
    return Block(rows, inputs, examples, Padding(inputs.pad_id), masks, is_bool)


def _integers(value: Any, name: str, row: int) -> list[int]:
    array = _vector(value, name, row)
    integers: list[int] = check_integers(array[None], name, (1, len(array))).ravel().tolist()
    return integers


def _vector(value: Any, name: str, row: int) -> np.ndarray:
    array = as_array(value, name) if value is not None else np.empty(0)
    if array.ndim != 1 or not array.size:
        raise BatchError(
            f"the column {name!r} of example {row} holds {brief(value)}: expected a list of at least one whole number"
        )
    return array


class Columns(Mapping[str, np.ndarray]):
    """A mapping of the columns to arrays with the rows on the first axis; rows of different lengths give an object array."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __getitem__(self, name: str) -> np.ndarray:
        return _as_rows(_values(self._rows, name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows.column_names)

    def __len__(self) -> int:
        return len(self._rows.column_names)


def python_values(rows: pa.Table, name: str) -> list[Any]:
    """Return a column's values as Python objects, with lists for tensors."""
    values = _values(rows, name)
    return [value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value for value in values]


def _values(rows: pa.Table, name: str) -> list[Any]:
    """Return a column's values as Python objects, with arrays for tensors, which Arrow would return as flat lists."""
    if name not in rows.column_names:
        raise NoColumnError(
            f"the dataset has no column {name!r}: expected one of {quote(rows.column_names)}."
            f"{did_you_mean(name, rows.column_names)}"
        )
    column = rows.column(name)
    if not isinstance(column.type, pa.FixedShapeTensorType):
        values: list[Any] = column.to_pylist()
        return values
    return [
        array.slice(number, 1).to_numpy_ndarray()[0] if valid else None  # Arrow would return nulls as zeros
        for array in column.chunks
        for number, valid in enumerate(array.is_valid().to_pylist())
    ]


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


@dataclass(frozen=True)
class Wanted:
    """The requested columns.

    Attributes:
        length: with output="values", the number of positions in each row's tensor.
    """

    output: str
    kind: str
    length: int | None
    prefix: str
    method: Method | None = None


def with_columns(rows: pa.Table, results: Iterable[tuple[np.ndarray, Block, Any]], wanted: Wanted) -> pa.Table:
    """Return the rows in their order, with new columns.

    Args:
        results: the gradients or attributions of some rows at a time: their indices, the rows by themselves, and the result.
    """
    cells: list[dict[str, Any]] = [{} for _ in range(rows.num_rows)]
    for chosen, block, result in results:
        for row, entries in zip(chosen, _cells(block, result, wanted), strict=True):
            cells[row] = entries
    table = rows
    for name in cells[0] if cells else ():
        if wanted.prefix + name in rows.column_names:
            raise EmbgradError(
                f"the dataset has a column {wanted.prefix + name!r} already, among {quote(rows.column_names)}: rename it, or "
                "pass prefix='g_' for names that are free"
            )
        values = [entries[name] for entries in cells]
        table = table.append_column(wanted.prefix + name, _column(values, as_tensors=wanted.output == "values"))
    return table


def _cells(block: Block, result: Any, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """Yield the new columns' values of each row, at its real positions: padding belongs to the batch and not to the row."""
    is_attribution = isinstance(result, Attribution)
    output = "scores" if is_attribution else wanted.output
    saliency = result.saliency(wanted.kind) if output == "saliency" else None
    for row, real in enumerate(block.real):
        cells: dict[str, Any] = {"ids": result.ids[row, real]}
        if result.tokens is not None:
            cells["tokens"] = [result.tokens[row][position] for position in np.flatnonzero(real)]
        cells["objective"] = float(result.objective[row])
        if block.inputs.max_length is not None:
            cells["truncated"] = int(result.provenance["truncated"][row])
        if saliency is not None:
            cells["saliency"] = saliency[row, real]
        elif is_attribution:
            further = {name: getattr(result, name) for name in ("baseline_objective", "delta", "error")}
            cells["scores"] = result.scores[row, real].astype(np.float64)
            cells |= {name: float(values[row]) for name, values in further.items() if values is not None}
        elif output == "tables":
            table = table_of(result, result.ids[row, real], result.values[row, real])
            cells |= {"rows": table.rows, "values": table.values, "vocab": table.shape[0]}
        else:
            cells["values"] = _tensor(result.values[row, real], wanted.length or 0, block, row)
        yield cells


def table_of(result: EmbeddingGradients, ids: np.ndarray, values: np.ndarray) -> RowSparse:
    """Return the gradient of the table of a result's point, from some of its ids and values."""
    if result.vocab is None:
        result.table()  # raises and says why there is no table
    assert result.vocab is not None
    return scatter(ids, values, result.vocab)


def _tensor(values: np.ndarray, length: int, block: Block, row: int) -> np.ndarray:
    if len(values) > length:
        raise BatchError(
            f"{block.name(row)} has {len(values)} positions, but length is {length}: raise length, or cut the texts with "
            "max_length"
        )
    return np.concatenate([values, np.zeros((length - len(values), values.shape[1]), values.dtype)])


def _column(values: list[Any], as_tensors: bool) -> pa.Array:
    if np.ndim(values[0]) < 2:
        return pa.array(values)
    if as_tensors:
        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.stack(values))
    row_type = pa.list_(pa.from_numpy_dtype(values[0].dtype), values[0].shape[1])
    return pa.array([list(matrix) for matrix in values], pa.list_(row_type))
