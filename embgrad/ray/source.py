"""The rows of a run: a dataset of Ray, with one schema for all of its blocks."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
import ray.data
from pyarrow import parquet

import embgrad.errors
from embgrad.errors import BatchError, EmbgradError, FileFormatError
from embgrad.ray.columns import python_values

__all__ = [
    "address_of",
    "conform",
    "expect_dataset",
    "expect_parquet",
    "plain_errors",
    "unify",
]

#: The beginning of the text that Ray appends to the message of an error in a task.
ADDED = r"\nFailed to [^\n]+ after \d+/\d+ attempts"

#: An embgrad error in the text of a traceback: the module and the name of its class, and the message up to the line that names
#: its page or, for classes that have none, to the next error, to what Ray appends or to the end.
IN_TEXT = re.compile(
    rf"^(embgrad[\w.]*)\.(\w+): (.*?)(?=\nsee docs/errors/|\n\s*\n(?:The above|During handling)|{ADDED}|\Z)",
    re.DOTALL | re.MULTILINE,
)

#: The advice about a column whose values are of several types.
ONE_TYPE = "values of one type in each column; convert them first"


def expect_dataset(rows: Any) -> None:
    """Refuse rows that are no dataset of Ray."""
    if not isinstance(rows, ray.data.Dataset):
        raise BatchError(
            f"the dataset is a {type(rows).__name__}: expected a ray.data.Dataset. Make one of files by ray.data.read_parquet, "
            "read_json or read_text, or of a list of dicts by ray.data.from_items"
        )


def address_of(path: str | Path) -> str:
    """Return the absolute path or address: the processes that read it may have another working directory."""
    if "://" in str(path):
        return str(path)
    if "?" in str(path):
        raise FileFormatError(f"the path {path} holds a '?', after which Ray finds no files: rename it")
    return str(Path(path).absolute())


def unify(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the schema that holds the columns of all blocks.

    It has numbers in the wider type, nulls for missing columns, and lists for tensors where their types differ.
    """
    types = [dict(zip(schema.names, schema.types, strict=True)) for schema in schemas]
    differ = {name for own in types for name, dtype in own.items() if any(other.get(name) != dtype for other in types)}
    narrow = [
        pa.schema([(field.name, _as_lists(field.type) if field.name in differ else field.type) for field in schema])
        for schema in schemas
    ]
    try:
        wider = pa.unify_schemas([pa.schema([]), *narrow], promote_options="permissive")
        for field in itertools.chain(*narrow):
            if not _is_lossless(field.type, wider.field(field.name).type):
                raise pa.ArrowTypeError(f"{field.name} is {field.type}, and would be {wider.field(field.name).type}")
    except pa.ArrowException as error:
        raise FileFormatError(f"the columns of the blocks do not fit together ({error}): expected {ONE_TYPE}") from None
    return wider


def _is_lossless(dtype: pa.DataType, wider: pa.DataType) -> bool:
    """Return whether values keep their meaning in the wider type; rounding of whole numbers is detected when they are cast."""
    if pa.types.is_struct(dtype) and pa.types.is_struct(wider):
        return all(_is_lossless(field.type, wider.field(field.name).type) for field in dtype)
    if hasattr(dtype, "value_type") and hasattr(wider, "value_type"):
        return _is_lossless(dtype.value_type, wider.value_type)
    to_bytes = pa.types.is_string(dtype) and (pa.types.is_binary(wider) or pa.types.is_large_binary(wider))
    return not to_bytes and not (pa.types.is_decimal(dtype) and pa.types.is_floating(wider))


def _as_lists(dtype: pa.DataType) -> pa.DataType:
    """Return a tensor type, Arrow's or Ray's, as a type of nested lists, and other types unchanged."""
    if not isinstance(dtype, pa.BaseExtensionType) or not hasattr(dtype, "shape"):
        return dtype
    nested = dtype.value_type
    for _ in dtype.shape:
        nested = pa.list_(nested)
    return nested


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with the columns of the schema that `unify` returned."""
    for number, field in enumerate(rows.schema):
        lists = _as_lists(field.type)
        if lists != field.type != schema.field(field.name).type:
            rows = rows.set_column(number, field.name, pa.array(python_values(rows, field.name), lists))
    try:
        return pa.concat_tables([pa.Table.from_batches([], schema), rows], promote_options="permissive")
    except pa.ArrowException as error:
        raise FileFormatError(
            f"a column's type in other blocks cannot hold a value ({error}): expected {ONE_TYPE}"
        ) from None


def expect_parquet(schema: pa.Schema) -> None:
    """Check that Parquet files can hold all columns."""
    try:
        parquet.ParquetWriter(io.BytesIO(), schema).close()  # Arrow may be unable to write an empty table of tensors
    except pa.ArrowException as error:
        raise FileFormatError(
            f"Parquet files cannot hold the columns of the dataset ({error}): remove the column, or convert it to another type"
        ) from None


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Raise an error of embgrad from an actor as itself, and not wrapped in an error of Ray.

    Use it around code that consumes the dataset of `embgrad.ray.gradients`; `write` and `table` use it themselves.
    """
    try:
        yield
    except Exception as error:
        is_own = isinstance(error, EmbgradError) and type(error).__module__.startswith("embgrad")
        original = None if is_own else _embgrad_error(error)
        if original is None:
            raise
        raise original from None


def _embgrad_error(error: BaseException | None) -> EmbgradError | None:
    """Return the embgrad error inside an error of Ray, or None where there is none.

    Ray Data passes on the text of an exception raised in an actor, and not the exception itself.
    """
    while error is not None:
        cause = getattr(error, "cause", None)
        if isinstance(cause, EmbgradError):
            cause.args = tuple(re.split(ADDED, text)[0] if isinstance(text, str) else text for text in cause.args)
            return cause
        matches = IN_TEXT.findall(str(error))
        if matches:
            module, name, message = matches[-1]  # its causes come before it
            cls = getattr(sys.modules.get(module, embgrad.errors), name, EmbgradError)
            error_class: type[EmbgradError] = cls if issubclass(cls, EmbgradError) else EmbgradError
            return error_class(message.rstrip())
        error = error.__cause__ or error.__context__
    return None
