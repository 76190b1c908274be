"""One schema for all blocks of a dataset, as Parquet files need, unified where that changes no value."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
from pyarrow import parquet

from embgrad.errors import FileFormatError
from embgrad.ray.row_columns import python_values

__all__ = ["conformed", "expect_parquet", "unified"]

#: The advice about a column whose values are of several types.
ONE_TYPE = "expected values of one type in each column; convert them first"


def unified(pieces: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """Return the schema that holds the columns of all files or blocks.

    It has numbers in the wider type, nulls for missing columns, and lists for tensors whose shapes differ.

    Args:
        pieces: for each file or block, its name in messages and its schema.

    Raises:
        FileFormatError: the types of a column are incompatible, or two columns have the same name.
    """
    for piece, schema in pieces:
        for name in schema.names:
            if schema.names.count(name) > 1:
                raise FileFormatError(
                    f"{piece} has {schema.names.count(name)} columns called {name!r}: expected a name for each; rename them"
                )
    types_by_name: dict[str, list[tuple[str, pa.DataType]]] = {
        name: [] for _, schema in pieces for name in schema.names
    }
    for piece, schema in pieces:
        for name, types in types_by_name.items():
            dtype = schema.field(name).type if name in schema.names else pa.null()
            if all(dtype != other for _, other in types):
                types.append((piece, dtype))
    return pa.schema([(name, _common_type(name, types)) for name, types in types_by_name.items()])


def _common_type(name: str, types: Sequence[tuple[str, pa.DataType]]) -> pa.DataType:
    origin, common = types[0]
    for piece, dtype in types[1:]:
        wider = _wider(common, dtype)
        if wider is None:
            raise FileFormatError(
                f"the column {name!r} is of the type {common} in {origin}, and {dtype} in "
                f"{piece if piece != origin else 'another'}: {ONE_TYPE}"
            )
        origin, common = (origin, common) if wider == common else (piece, wider)
    return common


def _wider(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both unchanged, or None."""
    try:
        schema = pa.unify_schemas(
            [pa.schema([("", _as_lists(dtype))]) for dtype in (first, second)], promote_options="permissive"
        )
    except pa.ArrowException:
        return None
    wider = schema.field(0).type
    return wider if _is_lossless(first, wider) and _is_lossless(second, wider) else None


def _is_lossless(dtype: pa.DataType, wider: pa.DataType) -> bool:
    """Return whether values keep their meaning in the wider type; rounding of whole numbers is detected when they are cast."""
    if pa.types.is_struct(dtype) and pa.types.is_struct(wider):
        return all(_is_lossless(field.type, wider.field(field.name).type) for field in dtype)
    if hasattr(dtype, "value_type") and hasattr(wider, "value_type"):
        return _is_lossless(dtype.value_type, wider.value_type)
    text = (pa.types.is_string, pa.types.is_large_string)
    as_bytes = any(is_text(dtype) for is_text in text) and not any(is_text(wider) for is_text in text)
    return not as_bytes and not (pa.types.is_decimal(dtype) and pa.types.is_floating(wider))


def _as_lists(dtype: pa.DataType) -> pa.DataType:
    """Return a tensor type, Arrow's or Ray's, as a type of nested lists, and other types unchanged."""
    if not isinstance(dtype, pa.BaseExtensionType) or not hasattr(dtype, "shape"):
        return dtype
    nested = dtype.value_type
    for _ in dtype.shape:
        nested = pa.list_(nested)
    return nested


def conformed(rows: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """Return the rows with the columns of the schema.

    Args:
        rows: one of the files or blocks given to `unified`.
        schema: the schema that `unified` returned.
        what: the name of the file or block in messages.

    Raises:
        FileFormatError: the column's type cannot hold a value.
    """
    columns = []
    for name, dtype in zip(schema.names, schema.types, strict=True):
        if name not in rows.column_names:
            columns.append(pa.nulls(rows.num_rows, dtype))
            continue
        column = rows.column(name)
        try:
            as_lists = _as_lists(column.type)
            if column.type not in (dtype, as_lists):
                column = pa.chunked_array([pa.array(python_values(rows, name), as_lists)])
            columns.append(column.cast(dtype))
        except pa.ArrowException as error:
            raise FileFormatError(
                f"the column {name!r} of {what} is of the type {column.type}, and {dtype} elsewhere, which cannot hold all of "
                f"its values ({error}): {ONE_TYPE}"
            ) from None
    return pa.table(columns, names=schema.names)


def expect_parquet(schema: pa.Schema) -> None:
    """Check that Parquet files can hold all columns.

    Raises:
        FileFormatError: they cannot hold the type of a column.
    """
    for name, dtype in zip(schema.names, schema.types, strict=True):
        try:
            with parquet.ParquetWriter(io.BytesIO(), pa.schema([(name, dtype)])):
                pass  # Arrow may be unable to write an empty table of tensors
        except pa.ArrowException as error:
            raise FileFormatError(
                f"the column {name!r} is of the type {dtype}, which Parquet files cannot hold ({error}): remove it, or "
                "convert it to another type"
            ) from None
