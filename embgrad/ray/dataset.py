"""The input dataset, from Ray or from files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset
import ray.data

from embgrad.errors import BatchError, EmbgradError, FileFormatError, did_you_mean, listed
from embgrad.ray.failures import cause_of, plain_errors
from embgrad.ray.line_files import JsonLines, JsonTypes, TextLines
from embgrad.ray.schemas import unified

__all__ = ["dataset_of", "expect_no_query", "readable"]


Reader = Callable[[list[str]], Any]


def _texts(paths: list[str]) -> Any:
    return ray.data.read_datasource(TextLines(paths))


def _json_lines(paths: list[str]) -> Any:
    if len(paths) == 1:
        return ray.data.read_datasource(JsonLines(paths))
    types = ray.data.read_datasource(JsonTypes(paths)).iter_rows()
    schemas = sorted((row["path"], pa.ipc.read_schema(pa.py_buffer(row["schema"]))) for row in types)
    return ray.data.read_datasource(JsonLines(paths, unified(schemas)))


def _parquet(paths: list[str]) -> Any:
    for path in paths:
        expect_no_query(path)
    try:
        return ray.data.read_parquet(paths)
    except pa.ArrowTypeError:  # which names neither the files nor the other type
        datasets = [pyarrow.dataset.dataset(path, partitioning=None, exclude_invalid_files=True) for path in paths]
        unified([(file.path, file.physical_schema) for dataset in datasets for file in dataset.get_fragments()])
        raise


def expect_no_query(path: str) -> None:
    """Check that a local path has no question mark, behind which Ray would not find Parquet files.

    Raises:
        FileFormatError: the path holds a question mark.
    """
    if "?" in path and "://" not in path:
        raise FileFormatError(f"the path {path} holds a '?', after which Ray finds no Parquet files: rename it")


#: The functions that read files, by the suffix of the name.
READERS: Final[Mapping[str, Reader]] = {
    ".parquet": _parquet,
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".json": _json_lines,
    ".txt": _texts,
}


def dataset_of(source: Any) -> Any:
    """Return a Ray dataset: the argument itself, or the rows of the given files.

    Args:
        source: a `ray.data.Dataset`, or one or more paths of Parquet files (or a folder of them), JSON lines, or text files with
            one text a line, which become the column "text". Ray's addresses, such as s3://bucket/name.parquet, are paths too.

    Raises:
        BatchError: `source` is neither a dataset nor paths.
        FileFormatError: a file does not exist, is named twice, or is of another format; or the types of a column differ from
            file to file.
    """
    if isinstance(source, ray.data.Dataset):
        return source
    paths = [source] if isinstance(source, (str, Path)) else source
    if not isinstance(paths, Sequence) or not paths or not all(isinstance(path, (str, Path)) for path in paths):
        raise BatchError(
            f"the dataset is a {type(source).__name__}: expected a ray.data.Dataset, or the paths of Parquet, JSON lines or text "
            "files; ray.data.from_items makes one of a list of dicts"
        )
    readers = {_reader(str(path)) for path in paths}
    if len(readers) > 1:
        raise FileFormatError(f"the files {listed(map(str, paths))} are of different formats: pass files of one format")
    addresses = [_address(str(path)) for path in paths]
    twice = next((path for path in addresses if addresses.count(path) > 1), None)
    if twice is not None:
        raise FileFormatError(
            f"{twice} is named more than once, but Ray reads a Parquet file only once: name each file once. To repeat its rows, "
            "copy it under another name"
        )
    with readable(source), plain_errors():
        return readers.pop()(addresses)


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
        raise FileFormatError(
            f"{listed(map(str, paths))} cannot be read: {cause_of(error).rstrip('.')}; expected files of Parquet, JSON lines or "
            "texts"
        ) from error


def _address(path: str) -> str:
    """Return the absolute path or address: the processes that read it may have another working directory."""
    return path if "://" in path else str(Path(path).absolute())


def _reader(path: str) -> Reader:
    local = Path(path)
    if "://" not in path:
        if not local.exists():
            raise FileFormatError(f"{path} does not exist: expected a file of Parquet, JSON lines or texts")
        if local.is_dir():
            if next(local.rglob("*.parquet"), None) is None:
                raise FileFormatError(
                    f"{path} is a folder without a file of Parquet: expected one of these, or the names of the files themselves"
                )
            return READERS[".parquet"]
        if not local.is_file():
            raise FileFormatError(
                f"{path} is not a regular file: expected one of Parquet, JSON lines or texts, or a folder"
            )
    suffixes = [suffix for suffix in local.suffixes if suffix not in (".gz", ".bz2", ".zst", ".snappy")]
    suffix = suffixes[-1].lower() if suffixes else ""
    if suffix not in READERS:
        raise FileFormatError(
            f"{path} ends in {suffix!r}: expected one of {listed(READERS)}; for other files make a dataset with ray.data and "
            f"give that.{did_you_mean(suffix, READERS)}"
        )
    return READERS[suffix]
