"""Text files and JSON lines as rows of a Ray dataset, with errors that name the file and line."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow
from pyarrow.json import ParseOptions, ReadOptions, read_json
from ray.data.datasource import FileBasedDatasource

from embgrad.errors import FileFormatError, brief
from embgrad.inputs.text_file import MARK, text_lines
from embgrad.ray.schemas import conformed

__all__ = ["JsonLines", "JsonTypes", "TextLines", "json_table"]

#: The largest piece of a file that Arrow reads as one, in bytes.
LARGEST: Final = 2**31 - 1

#: Matches digits that may form a whole number beyond a float's precision, or beyond 64 bits.
LONG: Final = re.compile(rb"(?<![\d.])\d{16,}(?![\d.eE])")

#: The deepest allowed nesting of lists and objects. Python raises at hundreds of levels, and Arrow crashes at thousands.
DEEPEST: Final = 100

#: The change in nesting depth at each byte.
STEPS: Final = np.zeros(256, np.int8)
STEPS[list(b"[{")], STEPS[list(b"]}")] = 1, -1

#: Matches a JSON string, in which brackets do not count.
STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')

#: Matches the beginning of the next object.
NON_SPACE: Final = re.compile(r"\S")

#: The number of bytes that are examined at once.
CHUNK: Final = 2**20


class TextLines(FileBasedDatasource):  # type: ignore[misc]  # Ray is not typed for mypy
    """The datasource of text files: each line that is not blank becomes a row of the column "text"."""

    def _read_stream(self, f: Any, path: str) -> Iterator[pyarrow.Table]:
        """Yield the rows of one file; called by Ray in a task."""
        texts, _ = text_lines(_content(f, path), path)
        yield pyarrow.table({"text": pyarrow.array([text for _, text in texts], pyarrow.string())})


class JsonTypes(FileBasedDatasource):  # type: ignore[misc]
    """The datasource of JSON files' schemas: one row for each file, with the columns `path` and `schema`."""

    def _read_stream(self, f: Any, path: str) -> Iterator[pyarrow.Table]:
        """Yield the rows of one file; called by Ray in a task."""
        content = _content(f, path)
        if content.strip():
            yield pyarrow.table({"path": [path], "schema": [json_table(content, path).schema.serialize().to_pybytes()]})


class JsonLines(FileBasedDatasource):  # type: ignore[misc]
    """The datasource of JSON files, with one object a line or one list of objects: each object becomes a row.

    Args:
        paths: the paths of the files.
        schema: the schema of all files, as `unified` returns it; None for a single file, which has its own.
    """

    def __init__(self, paths: list[str], schema: pyarrow.Schema | None = None) -> None:
        super().__init__(paths)
        self._schema = schema

    def _read_stream(self, f: Any, path: str) -> Iterator[pyarrow.Table]:
        """Yield the rows of one file; called by Ray in a task."""
        content = _content(f, path)
        if content.strip():
            table = json_table(content, path)
            yield table if self._schema is None else conformed(table, self._schema, path)


def _content(f: Any, path: str) -> bytes:
    """Return all bytes of a file, decompressed as its suffix says."""
    try:
        content: bytes = f.readall()
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{path} cannot be read ({error}): expected a complete file, compressed as its suffix says"
        ) from None
    return content


def json_table(content: bytes, path: str) -> pyarrow.Table:
    """Return the rows of one file, with a column for each name.

    Args:
        content: the file's bytes.
        path: the file's name in messages.

    Raises:
        FileFormatError: a line is not an object, or the values of a column are of incompatible types.
    """
    content = _utf8(content, path)
    _expect_flat(content, path)
    _expect_exact(content, path)
    # In one block of any length: Arrow refuses objects that span two blocks.
    options = ReadOptions(use_threads=False, block_size=min(len(content), LARGEST))
    try:
        table = _read(content, options)
        _expect_unrounded(content, path, table.schema)
        return table
    except pyarrow.ArrowInvalid as error:
        rows = _objects_of_list(content)
        if rows is None:
            _expect_objects(content, path)
            raise _type_error(path, error) from None
    names = list(dict.fromkeys(name for row in rows for name in row))  # Arrow would use those of the first row alone
    try:
        return pyarrow.Table.from_pylist([{name: row.get(name) for name in names} for row in rows])
    except pyarrow.ArrowException as error:
        raise _type_error(path, error) from None


def _utf8(content: bytes, path: str) -> bytes:
    """Return the content without a byte order mark, checked to be UTF-8; Arrow would pass invalid bytes on."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        text_lines(content, path)  # raises and names the line
    return content.removeprefix(MARK)


def _expect_exact(content: bytes, path: str) -> None:
    """Check that whole numbers fit into 64 bits; Arrow would round them, since no integer column holds them."""
    if not LONG.search(content):
        return
    lines = [(f"{path}, line {number}", line) for number, line in enumerate(content.splitlines(), 1) if line.strip()]
    for where, text in (*lines, (path, content)):
        try:
            json.loads(text, parse_int=_int64)
        except OverflowError as error:
            raise FileFormatError(
                f'{where} holds the whole number {error}, which does not fit into 64 bits: write it as text, "{error}"'
            ) from None
        except ValueError:  # a line that is not JSON is reported by `json_table`, or belongs to a list
            continue


def _expect_flat(content: bytes, path: str) -> None:
    """Check that lists and objects are not nested too deeply."""
    if _depth(content) <= DEEPEST:
        return
    is_list = content.lstrip().startswith(b"[")
    depth = max(_depth(STRING.sub(b"", part)) for part in ([content] if is_list else content.splitlines()))
    if depth > DEEPEST:
        raise FileFormatError(
            f"{path} nests lists and objects {depth} deep: expected at most {DEEPEST}; write deeper levels as text"
        )


def _depth(content: bytes) -> int:
    """Return the largest number of brackets that are open at once."""
    deepest = depth = 0
    for start in range(0, len(content), CHUNK):
        levels = depth + np.cumsum(STEPS[np.frombuffer(content[start : start + CHUNK], np.uint8)], dtype=np.int64)
        deepest, depth = max(deepest, int(levels.max())), int(levels[-1])
    return deepest


def _expect_unrounded(content: bytes, path: str, schema: pyarrow.Schema) -> None:
    """Check that Arrow has not rounded whole numbers in columns that other values made float columns."""
    if not LONG.search(content):
        return
    text, end, decoder = content.decode("utf-8"), 0, json.JSONDecoder()
    while begin := NON_SPACE.search(text, end):
        row, end = decoder.raw_decode(text, begin.start())
        for field in schema:
            number = _rounded_number(row.get(field.name), field.type)
            if number is not None:
                raise FileFormatError(
                    f"{path} holds the whole number {number} in the column {field.name!r}, which also holds fractions and "
                    "cannot hold this number exactly: write it as text, or in a column of whole numbers"
                )


def _rounded_number(value: Any, dtype: pyarrow.DataType) -> int | None:
    """Return a whole number in the value that the type's floats cannot hold, or None."""
    if isinstance(value, int) and pyarrow.types.is_floating(dtype):
        return None if int(float(value)) == value else value
    items: list[tuple[Any, pyarrow.DataType]] = []
    if isinstance(value, list) and pyarrow.types.is_list(dtype):
        items = [(item, dtype.value_type) for item in value]
    elif isinstance(value, dict) and pyarrow.types.is_struct(dtype):
        items = [(value.get(field.name), field.type) for field in dtype]
    return next((number for item, item_type in items if (number := _rounded_number(item, item_type)) is not None), None)


def _int64(digits: str) -> int:
    number = int(digits)
    if not -(2**63) <= number < 2**63:
        raise OverflowError(digits)
    return number


def _read(content: bytes, options: ReadOptions) -> pyarrow.Table:
    """Return the rows, with strings kept as strings: Arrow converts a column to times where all of its texts look like times."""
    table = read_json(io.BytesIO(content), read_options=options)
    schema = pyarrow.schema([field.with_type(_json_type(field.type)) for field in table.schema])
    if schema.equals(table.schema):
        return table
    return read_json(io.BytesIO(content), read_options=options, parse_options=ParseOptions(explicit_schema=schema))


def _json_type(dtype: pyarrow.DataType) -> pyarrow.DataType:
    """Return the type that a column has in JSON itself, which knows no times."""
    if pyarrow.types.is_temporal(dtype):
        return pyarrow.string()
    if pyarrow.types.is_list(dtype):
        return pyarrow.list_(_json_type(dtype.value_type))
    if pyarrow.types.is_struct(dtype):
        return pyarrow.struct([field.with_type(_json_type(field.type)) for field in dtype])
    return dtype


def _objects_of_list(content: bytes) -> list[Any] | None:
    """Return the objects of a file that is one list of objects, or None for other files."""
    try:
        rows = json.loads(content)
    except ValueError:
        return None
    return rows if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) else None


def _expect_objects(content: bytes, path: str) -> None:
    for number, line in enumerate(content.splitlines(), 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except ValueError as error:
            raise FileFormatError(
                f"{path}, line {number} is not valid JSON ({error}): {brief(line.decode(errors='replace'))}; expected an "
                "object a line"
            ) from None
        if not isinstance(row, dict):
            raise FileFormatError(
                f'{path}, line {number} is {brief(row)}: expected an object, such as {{"text": "a sentence"}}'
            )


def _type_error(path: str, error: Exception) -> FileFormatError:
    return FileFormatError(f"{path} cannot be read ({error}): expected values of one type in each column, on all lines")
