"""One re-entrant lock a model while its state is changed, and one a process for what is process-wide."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["model_lock", "process_lock"]

#: Held while anything process-wide is changed. Re-entrant.
process_lock = threading.RLock()

_guard = threading.Lock()
_locks: dict[int, tuple[Any, threading.RLock]] = {}


@contextlib.contextmanager
def model_lock(parts: Sequence[object]) -> Iterator[None]:
    """Hold the locks of all parts of a model; in one order everywhere, so that two threads cannot wait for each other."""
    locks = _locks_of(sorted(parts, key=id))
    held = []
    try:
        for lock in locks:
            lock.acquire()
            held.append(lock)
        yield
    finally:
        while held:
            held.pop().release()


def _locks_of(parts: Sequence[object]) -> list[threading.RLock]:
    with _guard:
        return [_lock_of(part) for part in parts]


def _lock_of(part: object) -> threading.RLock:
    key = id(part)
    known = _locks.get(key)
    if known is not None and known[0]() is part:
        return known[1]
    lock = threading.RLock()
    _locks[key] = (_reference(part, key), lock)
    return lock


def _reference(part: object, key: int) -> Any:
    """A way to the part that does not keep it alive and takes its lock away with it."""
    try:
        return weakref.ref(part, lambda _: _locks.pop(key, None))
    except TypeError:  # no weak references to it: its lock stays, and so must it, or another could get its id
        return lambda: part
