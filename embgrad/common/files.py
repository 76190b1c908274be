"""Files that appear whole or not at all, and are read up to a size."""

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

__all__ = ["MOST_JSON", "checked_path", "once", "opened", "read_bounded", "read_json", "write_whole"]

#: The most bytes of a checkpoint's files of JSON: an index of shards has some 90 a weight.
MOST_JSON: Final = 2**24

#: The bytes of a file's name that stand in the name of the one that is written beside it.
MOST_NAME: Final = 200


def checked_path(path: object, name: str = "path") -> Path:
    """An option that is a path.

    Raises:
        EmbgradError: it is neither text nor a path, or one that no file has.
    """
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
    """Write a file; a reader sees the old file or the whole new one, never a part.

    Args:
        path: where to.
        data: what.
        durable: come back only when it would outlast a power failure.

    Raises:
        OSError: the folder cannot be written to.
    """
    target = Path(path)
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)  # a device or a pipe, in whose place no file is wanted
        else:
            _write_beside(target, data, durable)
    except OSError as error:
        if error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(target)) from error  # and not the temporary file's name


def _write_beside(target: Path, data: bytes, durable: bool) -> None:
    # A name may be as long as the system lets it be: there has to be room for what is put around it.
    name = os.fsencode(target.name)[:MOST_NAME].decode("utf-8", "ignore")
    temporary = target.parent / f".{name}.{secrets.token_hex(8)}.part"
    # With the permissions of any file that the user makes, which the folder and the process say; nobody else's file.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with _as_file(handle) as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, target)
        if durable:
            _sync_folder(target.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _as_file(handle: int) -> BufferedWriter:
    """The file of a handle, which is closed where there can be none."""
    try:
        return os.fdopen(handle, "wb")
    except BaseException:
        os.close(handle)
        raise


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder outlast a power failure, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows has no handle of a folder to be written out
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[BufferedReader]:
    """A regular file, open to be read: a pipe would be waited for, and a device has no end.

    Raises:
        ValueError: it is something else.
        OSError: it cannot be opened.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is no regular file")
    # Of what has come into its place meanwhile nothing is waited for, either.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        yield file


def read_bounded(path: str | Path, most: int) -> bytes:
    """A regular file's bytes.

    Raises:
        ValueError: it is something else, or longer than `most`.
        OSError: it cannot be read.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it is {size} bytes long, and {most} is the most that is read")
        return file.read(size)


def read_json(path: str | Path, most: int = MOST_JSON) -> Any:
    """What a file of JSON holds; parsed, it may take up to thirty times the file's length.

    Raises:
        ValueError: it is no JSON in UTF-8, names a key twice, is nested too deeply, no regular file, or longer than `most`.
        OSError: it cannot be read.
    """
    try:
        return json.loads(read_bounded(path, most).decode("utf-8"), object_pairs_hook=once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys come once: of two, one reader would take the first and another the last."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found
