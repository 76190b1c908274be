"""Hands memory that is free back to the system: a heap of arrays of ever other sizes keeps more and more of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Final

__all__ = ["EVERY", "trim"]

#: After how many results: often enough that little gathers, and seldom enough to cost nothing.
EVERY: Final = 25


def trim() -> None:
    """Hand it back, where the C library can be asked to; nothing that is in use changes."""
    trimmed = _malloc_trim()
    if trimmed is not None:
        trimmed(0)


@cache
def _malloc_trim() -> Callable[[int], Any] | None:
    """glibc's own function; other systems' allocators have none, and need none."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    try:
        function: Callable[[int], Any] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    except OSError:
        return None
    return function
