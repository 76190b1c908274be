"""The rows of a run: a dataset of Ray, or files, whose errors name the file and line; and one schema for all of them."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import ray
import ray.data
from pyarrow import parquet
from ray.data.datasource import FileBasedDatasource

import embgrad.errors
from embgrad.errors import BatchError, EmbgradError, FileFormatError, brief, quote
from embgrad.inputs.text_file import MARK, text_lines
from embgrad.ray.columns import python_values

__all__ = [
    "address_of",
    "conform",
    "dataset_of",
    "expect_parquet",
    "json_table",
    "plain_errors",
    "readable",
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


def dataset_of(source: Any) -> Any:
    """Return a Ray dataset: the argument itself, or the rows of the given files.

    Args:
        source: a `ray.data.Dataset`, or one or more paths of Parquet files (or a folder of them), JSON lines, or text files with
            one text a line, which become the column "text". Ray's addresses, such as s3://bucket/name.parquet, are paths too.
    """
    if isinstance(source, ray.data.Dataset):
        return source
    paths = [source] if isinstance(source, (str, Path)) else source
    if not isinstance(paths, Sequence) or not paths or not all(isinstance(path, (str, Path)) for path in paths):
        raise BatchError(
            f"the dataset is a {type(source).__name__}: expected a ray.data.Dataset, or the paths of Parquet, JSON lines or text "
            "files; ray.data.from_items makes one of a list of dicts"
        )
    addresses = [address_of(path) for path in paths]
    readers = {READERS[_suffix(address)] for address in addresses}
    if len(readers) > 1:
        raise FileFormatError(f"the files {quote(map(str, paths))} are of different formats: pass files of one format")
    twice = next((path for path in addresses if addresses.count(path) > 1), None)
    if twice is not None:
        raise FileFormatError(
            f"{twice} is named more than once, but Ray reads a Parquet file only once: name each file once. To repeat its rows, "
            "copy it under another name"
        )
    with readable(source), plain_errors():
        return readers.pop()(addresses)


def address_of(path: str | Path) -> str:
    """Return the absolute path or address: the processes that read it may have another working directory."""
    if "://" in str(path):
        return str(path)
    if "?" in str(path):
        raise FileFormatError(f"the path {path} holds a '?', after which Ray finds no files: rename it")
    return str(Path(path).absolute())


def _suffix(address: str) -> str:
    """Return the suffix that names the format of a file, or of a folder's files."""
    local = Path(address)
    if "://" not in address:
        if not local.exists():
            raise FileFormatError(f"{address} does not exist: expected a file of Parquet, JSON lines or texts")
        if local.is_dir() and any(local.rglob("*.parquet")):
            return ".parquet"
        if not local.is_file():
            raise FileFormatError(
                f"{address} is not a regular file: expected one of Parquet, JSON lines or texts, or a folder of Parquet files"
            )
    suffixes = [suffix.lower() for suffix in local.suffixes if suffix not in (".gz", ".bz2", ".zst", ".snappy")]
    suffix = suffixes[-1] if suffixes else ""
    if suffix not in READERS:
        raise FileFormatError(
            f"{address} ends in {suffix!r}: expected one of {quote(READERS)}; for other files make a dataset with ray.data and "
            "give that"
        )
    return suffix


class Lines(FileBasedDatasource):  # type: ignore[misc]  # Ray is not typed for mypy
    """The datasource of files that are read whole.

    Args:
        parse: returns the rows of one file, from its bytes and its path.
    """

    def __init__(self, paths: list[str], parse: Callable[[bytes, str], pa.Table]) -> None:
        super().__init__(paths)
        self._parse = parse

    def _read_stream(self, f: Any, path: str) -> Iterator[pa.Table]:
        """Yield the rows of one file; called by Ray in a task."""
        try:
            content = f.readall()
        except (OSError, ValueError) as error:
            raise FileFormatError(
                f"{path} cannot be read ({error}): expected a complete file, compressed as its suffix says"
            ) from None
        table = self._parse(content, path)
        if table.num_rows:
            yield table


def _texts(paths: list[str]) -> Any:
    def texts(content: bytes, path: str) -> pa.Table:
        return pa.table({"text": pa.array([text for _, text in text_lines(content, path)[0]], pa.string())})

    return ray.data.read_datasource(Lines(paths, texts))


def _json_lines(paths: list[str]) -> Any:
    if len(paths) == 1:
        return ray.data.read_datasource(Lines(paths, json_table))

    def types(content: bytes, path: str) -> pa.Table:
        return pa.table({"schema": [json_table(content, path).schema.serialize().to_pybytes()]})

    rows = ray.data.read_datasource(Lines(paths, types)).iter_rows()
    schema = unify([pa.ipc.read_schema(pa.py_buffer(row["schema"])) for row in rows])
    return ray.data.read_datasource(Lines(paths, lambda *file: conform(json_table(*file), schema)))


#: The functions that read files, by the suffix of the name.
READERS: Final[Mapping[str, Callable[[list[str]], Any]]] = {
    ".parquet": ray.data.read_parquet,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_lines,
    ".txt": _texts,
}


def json_table(content: bytes, path: str) -> pa.Table:
    """Return the rows of a file with one object a line, or of a file that is one list of objects.

    Python reads the objects, and not Arrow, which rounds long numbers and takes texts for times.
    """
    lines, where, rows = text_lines(content, path)[0], path, []
    try:
        if lines and lines[0][1].lstrip().startswith("["):
            rows = [_object(row) for row in _parse(content.removeprefix(MARK))]
        else:
            for number, line in lines:
                where = f"{path}, line {number}"
                rows.append(_object(_parse(line)))
        columns = {}
        for name in dict.fromkeys(name for row in rows for name in row):
            where = f"the column {name!r} of {path}"
            columns[name] = column = pa.array([row.get(name) for row in rows])
            # Arrow cannot send types of deep lists: this raises for them.
            pa.ipc.read_schema(pa.schema({name: column.type}).serialize())
    except (ValueError, RecursionError, OverflowError, OSError, pa.ArrowException) as error:
        raise FileFormatError(
            f"{where} cannot be read as JSON ({brief(str(error), 200)}): expected an object a line, with {ONE_TYPE}"
        ) from None
    return pa.table(columns)


def _parse(text: str | bytes) -> Any:
    return json.loads(text, object_pairs_hook=_with_unique_names)


def _with_unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError(f"an object has two values of one name, among {quote(name for name, _ in pairs)}")
    return values


def _object(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f"{brief(row)} is not an object")
    return row


def unify(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the schema that holds the columns of all files or blocks.

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
        raise FileFormatError(
            f"the columns of the files or blocks do not fit together ({error}): expected {ONE_TYPE}"
        ) from None
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
            f"a column's type in other files or blocks cannot hold a value ({error}): expected {ONE_TYPE}"
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
def readable(source: Any) -> Iterator[None]:
    """Raise errors of reading the given files as FileFormatError.

    Args:
        source: as in `dataset_of`.
    """
    try:
        yield
    except EmbgradError:
        raise
    except (OSError, ValueError, TypeError, KeyError, ray.exceptions.RayTaskError) as error:
        if isinstance(source, ray.data.Dataset):  # the error comes from the user's functions
            raise
        paths = [source] if isinstance(source, (str, Path)) else source
        cause = re.split(ADDED, str(getattr(error, "cause", None) or error))[0].strip().partition("\n")[0]
        raise FileFormatError(
            f"{quote(map(str, paths))} cannot be read: {cause.rstrip('.')}; expected files of Parquet, JSON lines or texts"
        ) from error


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
