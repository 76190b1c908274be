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
ONE_TYPE = "expected values of one type in each column; bring them to one first"


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
    held: dict[str, list[tuple[str, pa.DataType]]] = {name: [] for _, schema in pieces for name in schema.names}
    for piece, schema in pieces:
        for name, known in held.items():
            kind = schema.field(name).type if name in schema.names else pa.null()
            if all(kind != one for _, one in known):
                known.append((piece, kind))
    return pa.schema([(name, _together(name, kinds)) for name, kinds in held.items()])


def _together(name: str, kinds: Sequence[tuple[str, pa.DataType]]) -> pa.DataType:
    first, found = kinds[0]
    for piece, kind in kinds[1:]:
        wider = _wider(found, kind)
        if wider is None:
            raise FileFormatError(
                f"the column {name!r} is of the type {found} in {first}, and {kind} in "
                f"{piece if piece != first else 'another'}: {ONE_TYPE}"
            )
        first, found = (first, found) if wider == found else (piece, wider)
    return found


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both unchanged, or None."""
    try:
        schema = pa.unify_schemas(
            [pa.schema([("", _listed(kind))]) for kind in (one, other)], promote_options="permissive"
        )
    except pa.ArrowException:
        return None
    wider = schema.field(0).type
    return wider if _kept(one, wider) and _kept(other, wider) else None


def _kept(kind: pa.DataType, wider: pa.DataType) -> bool:
    """Return whether values keep their meaning in the wider type; rounding of whole numbers is detected when they are cast."""
    if pa.types.is_struct(kind) and pa.types.is_struct(wider):
        return all(_kept(one.type, wider.field(one.name).type) for one in kind)
    if hasattr(kind, "value_type") and hasattr(wider, "value_type"):
        return _kept(kind.value_type, wider.value_type)
    text = (pa.types.is_string, pa.types.is_large_string)
    as_bytes = any(one(kind) for one in text) and not any(one(wider) for one in text)
    return not as_bytes and not (pa.types.is_decimal(kind) and pa.types.is_floating(wider))


def _listed(kind: pa.DataType) -> pa.DataType:
    """Return a tensor type, Arrow's or Ray's, as a type of nested lists, and other types unchanged."""
    if not isinstance(kind, pa.BaseExtensionType) or not hasattr(kind, "shape"):
        return kind
    made = kind.value_type
    for _ in kind.shape:
        made = pa.list_(made)
    return made


def conformed(rows: pa.Table, schema: pa.Schema, what: str) -> pa.Table:
    """Return the rows with the columns of the schema.

    Args:
        rows: one of the files or blocks given to `unified`.
        schema: the schema that `unified` returned.
        what: the name of the file or block in messages.

    Raises:
        FileFormatError: the column's type cannot hold a value.
    """
    made = []
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name not in rows.column_names:
            made.append(pa.nulls(rows.num_rows, kind))
            continue
        column = rows.column(name)
        try:
            listed = _listed(column.type)
            if column.type not in (kind, listed):
                column = pa.chunked_array([pa.array(python_values(rows, name), listed)])
            made.append(column.cast(kind))
        except pa.ArrowException as error:
            raise FileFormatError(
                f"the column {name!r} of {what} is of the type {column.type}, and {kind} elsewhere, which cannot hold all of "
                f"its values ({error}): {ONE_TYPE}"
            ) from None
    return pa.table(made, names=schema.names)


def expect_parquet(schema: pa.Schema) -> None:
    """Check that Parquet files can hold all columns.

    Raises:
        FileFormatError: they cannot hold the type of a column.
    """
    for name, kind in zip(schema.names, schema.types, strict=True):
        try:
            with parquet.ParquetWriter(io.BytesIO(), pa.schema([(name, kind)])):
                pass  # Arrow may be unable to write an empty table of tensors
        except pa.ArrowException as error:
            raise FileFormatError(
                f"the column {name!r} is of the type {kind}, which files of Parquet cannot hold ({error}): leave it out, or "
                "turn it into another"
            ) from None
