"""Files that appear whole or not at all; safetensors files, read and written as NumPy: nothing in them is ever run."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from embgrad.errors import EmbgradError, FileFormatError, brief

__all__ = ["expect_path", "read_tensors", "write_tensors", "write_whole"]


def expect_path(path: object, name: str = "path") -> None:
    """Refuse what is no path.

    Raises:
        EmbgradError: it is neither text nor a path.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise EmbgradError(f"{name} is {brief(path)}: expected the path of a file or folder, as text or a pathlib.Path")


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
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
        if durable:
            _sync_folder(target.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
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


def write_tensors(
    path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str], *, durable: bool = False
) -> None:
    """Write a safetensors file; a reader sees the old file or the whole new one, never a part.

    Args:
        path: where to.
        tensors: by name.
        metadata: text by name.
        durable: as in `write_whole`.

    Raises:
        OSError: the folder cannot be written to.
    """
    contiguous = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    write_whole(path, safetensors.numpy.save(contiguous, metadata=dict(metadata)), durable=durable)


def read_tensors(
    path: str | Path, kinds: Collection[str] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors and the metadata of a safetensors file. bfloat16 is widened to float32.

    Args:
        path: the file.
        kinds: the types that its tensors may have, as safetensors calls them, such as "F32"; None for any.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is no safetensors file, or a broken one, or holds tensors of other types.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: expected a safetensors file")
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError("it is no regular file")
        with safetensors.safe_open(str(path), framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            found = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118  # no mapping
            _expect_names_once(path)
            _expect_kinds(path, found, kinds)
            tensors = {name: file.get_tensor(name) for name, kind in found.items() if kind != "BF16"}
        if "BF16" in found.values():
            tensors.update(_read_bfloat16(path))
    except FileFormatError:
        raise
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise FileFormatError(f"{path} is no whole safetensors file: {error}; write or fetch it again") from error
    return tensors, metadata


def _expect_names_once(path: Path) -> None:
    """Refuse a header that names something twice, of which safetensors keeps the last and says nothing."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("its header has a name twice")
        return found

    with path.open("rb") as file:
        json.loads(file.read(int.from_bytes(file.read(8), "little")), object_pairs_hook=once)


def _expect_kinds(path: Path, found: Mapping[str, str], kinds: Collection[str] | None) -> None:
    wrong = [name for name, kind in found.items() if kinds is not None and kind not in kinds]
    if wrong:
        raise FileFormatError(
            f"{path} holds {brief(wrong[0])} of the type {found[wrong[0]]}: expected {' or '.join(kinds or ())}"
        )


def _read_bfloat16(path: Path) -> dict[str, np.ndarray]:
    """The bfloat16 tensors as float32: NumPy lacks the type, whose bits are float32's upper half."""
    found = {}
    for name, entry in safetensors.deserialize(path.read_bytes()):  # type: ignore[no-untyped-call]
        if entry["dtype"] == "BF16":
            halves = np.frombuffer(entry["data"], np.uint16).reshape(entry["shape"])
            found[name] = (halves.astype(np.uint32) << 16).view(np.float32)
    return found


def _umask() -> int:
    """The permissions that new files lack; `mkstemp` makes them private, and this file is the user's as any other."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
