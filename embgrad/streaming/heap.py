"""Returns free memory to the system: a heap on which arrays of many sizes come and go retains more and more of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Final

__all__ = ["EVERY", "trim"]

#: The number of results after which memory is returned: often enough to bound it, and seldom enough to cost nothing.
EVERY: Final = 25


def trim() -> None:
    """Return free memory to the system where the C library has a function for it."""
    trimmed = _malloc_trim()
    if trimmed is not None:
        trimmed(0)


@cache
def _malloc_trim() -> Callable[[int], Any] | None:
    """Return glibc's `malloc_trim`, or None: other allocators have no such function, and need none."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    try:
        function: Callable[[int], Any] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except OSError:
        return None
    return function
