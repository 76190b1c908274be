"""Write files so that they appear whole or not at all, and read files up to a size limit."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any, Final

from embgrad.errors import EmbgradError, brief

__all__ = [
    "MOST_JSON",
    "check_path",
    "naming",
    "once",
    "open_regular",
    "open_whole",
    "read_bounded",
    "read_json",
    "write_whole",
]

#: The most bytes of a checkpoint's JSON files: an index of shards has about 90 bytes for each weight.
MOST_JSON: Final = 2**24

#: The most bytes of a file's name that are used in the name of its temporary file.
MOST_NAME: Final = 200


def check_path(path: object, name: str = "path") -> Path:
    """Return an option that is a path as a `Path`."""
    if not isinstance(path, (str, os.PathLike)):
        raise EmbgradError(f"{name} is {brief(path)}: expected the path of a file or folder, as text or a pathlib.Path")
    if not os.fspath(path):
        raise EmbgradError(f"{name} is empty: expected the path of a file or folder; '.' is the current folder")
    if "\0" in str(os.fspath(path)):
        raise EmbgradError(
            f"{name} is {brief(path)}: expected a path without the character NUL, which no file's name has"
        )
    return Path(path)


def write_whole(path: str | Path, data: bytes, *, durable: bool = False) -> None:
    """Write a file; a reader sees the old file or the whole new one, never an incomplete one.

    Args:
        durable: return only when the file would survive a power failure.

    Raises:
        OSError: the folder cannot be written to.
    """
    with naming(path), open_whole(path, durable=durable) as file:
        file.write(data)


@contextlib.contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Let errors of the system name this path, and not a temporary file or none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def open_whole(path: str | Path, *, durable: bool = False) -> Iterator[BufferedWriter]:
    """Open a file to write, which appears under its name when the block ends, and not at all if the block raises an error.

    Args:
        durable: end only when the file would survive a power failure.

    Raises:
        OSError: the folder cannot be written to.
    """
    target = Path(path)
    if target.exists() and not target.is_file() and not target.is_dir():
        with target.open("wb") as file:  # a device or a pipe, which must not be replaced by a file
            yield file
        return
    # A name may have the system's maximal length: leave room for the prefix and suffix.
    name = os.fsencode(target.name)[:MOST_NAME].decode("utf-8", "ignore")
    temporary = target.parent / f".{name}.{secrets.token_hex(8)}.part"
    with naming(target):
        # Use the default permissions of new files, and never open a file that exists already.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with _as_file(handle) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        with naming(target):
            os.replace(temporary, target)
        if durable:
            _sync_folder(target.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _as_file(handle: int) -> BufferedWriter:
    """Return a file object for a descriptor; close the descriptor if that fails."""
    try:
        return os.fdopen(handle, "wb")
    except BaseException:
        os.close(handle)
        raise


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure, where the system supports it."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open a folder to sync it
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def open_regular(path: str | Path) -> Iterator[BufferedReader]:
    """Open a regular file for reading. Pipes and devices are refused: a pipe may block, and a device has no end.

    Raises:
        ValueError: it is not a regular file.
        OSError: it cannot be opened.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is not a regular file")
    # The file may have been replaced since the check: do not block on a pipe, and check again.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a regular file")
        yield file


def read_bounded(path: str | Path, most: int) -> bytes:
    """Return a regular file's bytes.

    Raises:
        ValueError: it is not a regular file, or is longer than `most` bytes.
        OSError: it cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it is {size} bytes long, more than the limit of {most}")
        return file.read(size)


def read_json(path: str | Path, most: int = MOST_JSON) -> Any:
    """Return the content of a JSON file. Parsed, it may take up to thirty times the file's length in memory.

    Raises:
        ValueError: it is not JSON in UTF-8, repeats a key, is nested too deeply, is not a regular file, or is longer than
            `most` bytes.
        OSError: it cannot be read.
    """
    try:
        return json.loads(read_bounded(path, most).decode("utf-8"), object_pairs_hook=once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object's pairs as a dict; raise an error for a repeated key, of which readers might use either value.

    Raises:
        ValueError: a key is repeated.
    """
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is repeated")
    return result
