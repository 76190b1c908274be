"""Tells embgrad's own passes through a model from the user's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

__all__ = ["is_running", "running"]

_local = threading.local()


def is_running() -> bool:
    """Whether this thread is in a pass of embgrad's own."""
    return getattr(_local, "depth", 0) > 0


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Meanwhile this thread is in a pass of embgrad's own, which no capture hears of."""
    _local.depth = getattr(_local, "depth", 0) + 1
    try:
        yield
    finally:
        _local.depth -= 1
