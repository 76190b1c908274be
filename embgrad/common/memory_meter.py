"""Meters of memory: the bytes in use and their peak, of the process from the Linux kernel, or of a device from its allocator."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from embgrad.errors import UnsupportedError

__all__ = ["MemoryMeter", "process_meter", "trim"]

#: Writing 5 to this file sets `VmHWM` to `VmRSS` (man 5 proc).
CLEAR: Final = Path("/proc/self/clear_refs")

#: The file that holds `VmRSS`, the resident size of the process, and `VmHWM`, its peak, in KiB.
STATUS: Final = Path("/proc/self/status")


@dataclass(frozen=True)
class MemoryMeter:
    """A meter of the memory in use on one device.

    Attributes:
        device: the device, such as "cpu" or "cuda:0".
        restart: forgets the peak, after memory that is no longer used has been released.
        read: returns the bytes in use and their peak since the last restart.
        holds_results: whether results in NumPy lie in this memory.
    """

    device: str
    restart: Callable[[], None]
    read: Callable[[], tuple[int, int]]
    holds_results: bool = False


def process_meter() -> MemoryMeter:
    """Return the meter of this process's resident size."""
    try:
        _restart()
        _read()
    except (OSError, KeyError) as error:
        raise UnsupportedError(
            f"the peak of this process's memory cannot be measured here ({type(error).__name__}: {error}): expected Linux, with "
            f"{CLEAR} that can be written and VmRSS and VmHWM in {STATUS}; run the call on such a system"
        ) from error
    return MemoryMeter("cpu", _restart, _read, holds_results=True)


def trim() -> None:
    """Give freed memory back to the operating system: glibc's heap for arrays of many sizes keeps growing otherwise."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)


def _restart() -> None:
    gc.collect()
    trim()
    CLEAR.write_text("5", encoding="ascii")


def _read() -> tuple[int, int]:
    sizes = dict(re.findall(r"^(VmRSS|VmHWM):\s*(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE))
    return int(sizes["VmRSS"]) * 1024, int(sizes["VmHWM"]) * 1024
