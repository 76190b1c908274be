"""Safetensors files, read and written as NumPy: whole or not at all, and nothing in them is ever run."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from embgrad.errors import FileFormatError

__all__ = ["read_tensors", "write_tensors"]


def write_tensors(path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file; a reader sees the old file or the whole new one, never a part.

    Raises:
        OSError: the folder cannot be written to.
    """
    target = Path(path)
    contiguous = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    data = safetensors.numpy.save(contiguous, metadata=dict(metadata))
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def read_tensors(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors and the metadata of a safetensors file. bfloat16 is widened to float32.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is no safetensors file, or a broken one.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist: expected a safetensors file")
    try:
        with safetensors.safe_open(str(path), framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118  # no mapping
            tensors = {name: file.get_tensor(name) for name, kind in kinds.items() if kind != "BF16"}
        if "BF16" in kinds.values():
            tensors.update(_read_bfloat16(path))
    except (safetensors.SafetensorError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise FileFormatError(f"{path} is no whole safetensors file: {error}; write or fetch it again") from error
    return tensors, metadata


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
