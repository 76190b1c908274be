"""Tells embgrad's own passes through a model from the user's."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Final

__all__ = ["is_running", "running"]

_local = threading.local()


def is_running() -> bool:
    """Whether this thread is in a pass of embgrad's own."""
    return getattr(_local, "depth", 0) > 0


class _Running:
    def __enter__(self) -> None:
        _local.depth = getattr(_local, "depth", 0) + 1

    def __exit__(self, *told: object) -> None:
        _local.depth -= 1


_running: Final = _Running()


def running() -> AbstractContextManager[None]:
    """Meanwhile this thread is in a pass of embgrad's own, which no capture hears of."""
    return _running
