"""Read and write safetensors files as NumPy arrays; the header is checked against the file before it is used."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import safetensors.numpy

from embgrad.common.files import once, open_regular, write_whole
from embgrad.errors import EmbgradError, FileFormatError, brief, quote

__all__ = [
    "MOST_AXES",
    "MOST_HEADER",
    "TYPES",
    "Entry",
    "Header",
    "open_tensors",
    "read_array",
    "read_shapes",
    "read_tensors",
    "write_tensors",
]

#: The most bytes of a header. A result's tokens are in it, 10 bytes each in English and 20 in Chinese, so there is room for
#: over 1.5 million tokens. BERT large's header has 40,000 bytes. Parsed, a header takes up to thirty times its length.
MOST_HEADER: Final = 2**25

#: The most axes of an array: the smallest limit among NumPy's versions.
MOST_AXES: Final = 32

#: The NumPy dtypes of safetensors' dtypes. bfloat16, which NumPy lacks, is read as the upper 16 bits of a float32.
TYPES: Final[Mapping[str, str]] = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "BF16": "<u2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
}

_FIELDS: Final = frozenset({"dtype", "shape", "data_offsets"})


class Entry(NamedTuple):
    """One array of the file: its safetensors dtype, its shape, and its first and end byte, counted from the file's start."""

    kind: str
    shape: tuple[int, ...]
    start: int
    end: int


class Header(NamedTuple):
    """The arrays of a file by name, and its text metadata."""

    entries: dict[str, Entry]
    metadata: dict[str, str]


def read_header(file: BufferedReader, size: int) -> Header:
    """Return the header of a safetensors file of the given size in bytes.

    Every byte after the header belongs to one array, as its dtype and shape require, so no array can claim missing bytes.
    """
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise ValueError(f"its header should be {length} bytes long, but the file has only {size}")
    if length > MOST_HEADER:
        raise ValueError(f"its header is {length} bytes long, more than the limit of {MOST_HEADER}")
    text = file.read(length)
    if len(text) != length:
        raise ValueError("it was shortened while it was read")
    try:
        read = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None
    if not isinstance(read, dict):
        raise ValueError(f"its header is {brief(read)}, which is not an object")
    metadata = _metadata(read.pop("__metadata__", None))
    entries = {name: _entry(name, fields, 8 + length) for name, fields in read.items()}
    _expect_text(entries)
    _expect_all(entries, 8 + length, size)
    return Header(entries, metadata)


def read_array(file: BufferedReader, entry: Entry) -> np.ndarray:
    """Return an array of the file, bfloat16 as float32."""
    array = np.empty(entry.shape, TYPES[entry.kind])
    if array.size:
        file.seek(entry.start)
        if file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
            raise ValueError("it was shortened while it was read")
    if entry.kind == "BF16":
        return (array.reshape(-1).astype(np.uint32) << 16).view(np.float32).reshape(array.shape)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _metadata(metadata: Any) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError(f"its __metadata__ is {brief(metadata)}, and not a dict of texts")
    _expect_text((*metadata, *metadata.values()))
    return metadata


def _entry(name: str, fields: Any, first: int) -> Entry:
    if not isinstance(fields, dict) or not _FIELDS.issuperset(fields) or len(fields) != len(_FIELDS):
        raise ValueError(f"its entry for {brief(name)} is {brief(fields)}: expected dtype, shape and data_offsets")
    kind, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(kind, str) or kind not in TYPES:
        raise ValueError(f"{brief(name)} is of the type {brief(kind)}: expected one of {quote(TYPES, len(TYPES))}")
    if not _is_sizes(shape) or len(shape) > MOST_AXES:
        raise ValueError(f"{brief(name)} has the shape {brief(shape)}: expected up to {MOST_AXES} whole numbers")
    if not _is_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{brief(name)} has the data_offsets {brief(offsets)}: expected its begin and its end")
    needed = math.prod(shape) * np.dtype(TYPES[kind]).itemsize
    if offsets[1] - offsets[0] != needed:
        raise ValueError(
            f"{brief(name)} of the shape {brief(shape)} and type {kind} needs {needed} bytes, but has "
            f"{offsets[1] - offsets[0]}"
        )
    return Entry(kind, tuple(shape), first + offsets[0], first + offsets[1])


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and 0 <= size < 2**63 for size in value)


def _expect_all(entries: Mapping[str, Entry], first: int, size: int) -> None:
    """Raise an error for arrays that overlap, leave gaps or exceed the file, and for bytes that belong to no array."""
    expected = first
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != expected:
            raise ValueError(
                f"{brief(name)} begins at byte {entry.start}, where {expected} is expected: arrays overlap, or leave gaps"
            )
        expected = entry.end
    if expected != size:
        raise ValueError(f"its arrays end at byte {expected}, but the file has {size} bytes")


def _expect_text(texts: Any) -> None:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"its header holds {error.object[error.start]!r}, which is not a character") from None


def write_tensors(
    path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str], *, durable: bool = False
) -> None:
    """Write a safetensors file; a reader sees the old file or the whole new one, never an incomplete one.

    Args:
        durable: see `write_whole`.

    Raises:
        EmbgradError: there is more text than `read_tensors` would read.
        OSError: the folder cannot be written to.
    """
    contiguous = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    length = sum(map(len, metadata.values()))
    if length <= MOST_HEADER:  # beyond, safetensors may have a limit of its own
        data = safetensors.numpy.save(contiguous, metadata=dict(metadata))
        length = int.from_bytes(data[:8], "little")
    if length > MOST_HEADER:
        raise EmbgradError(
            f"{path} would have a header of {length} bytes or more, which holds the tokens' texts, but at most {MOST_HEADER} "
            "can be read back: write fewer examples to one file"
        )
    write_whole(path, data, durable=durable)


def read_tensors(
    path: str | Path, kinds: Collection[str] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file. bfloat16 is widened to float32.

    This takes the tensors' memory, which is bounded by the file's size, and briefly up to thirty times the header's length.

    Args:
        kinds: the dtypes that its tensors may have, by their safetensors names, such as "F32"; None for any.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is not a safetensors file, is broken, or holds tensors of other dtypes.
    """
    path = Path(path)
    with open_tensors(path) as (file, header):
        _expect_kinds(path, header.entries, kinds)
        return {name: read_array(file, entry) for name, entry in header.entries.items()}, header.metadata


def read_shapes(path: str | Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a safetensors file's tensors. Only the header is read, and checked against the file's length.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is not a safetensors file, or is broken.
    """
    with open_tensors(Path(path)) as (_, header):
        return {name: entry.shape for name, entry in header.entries.items()}


@contextlib.contextmanager
def open_tensors(path: Path) -> Iterator[tuple[BufferedReader, Header]]:
    """Open a safetensors file, and yield it with its header, for `read_array`."""
    try:
        with open_regular(path) as file:
            yield file, read_header(file, os.fstat(file.fileno()).st_size)
    except FileFormatError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        what = "is a symbolic link to a missing file" if path.is_symlink() else "does not exist"
        raise FileNotFoundError(f"{path} {what}: expected a safetensors file") from None
    except (OSError, ValueError) as error:
        raise FileFormatError(
            f"{path} is not a complete safetensors file: {_why(error)}; write or fetch it again"
        ) from error


def _why(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _expect_kinds(path: Path, entries: Mapping[str, Entry], kinds: Collection[str] | None) -> None:
    wrong = [name for name, entry in entries.items() if kinds is not None and entry.kind not in kinds]
    if wrong:
        raise FileFormatError(
            f"{path} holds {brief(wrong[0])} of the type {entries[wrong[0]].kind}: expected {' or '.join(kinds or ())}"
        )
