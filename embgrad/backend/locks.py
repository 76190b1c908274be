"""One re-entrant lock a model while its state is changed, and one a process for what is process-wide."""

from __future__ import annotations

import collections
import itertools
import os
import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

__all__ = ["held", "locks_of", "model_lock", "process_lock"]

#: Held while anything process-wide is changed. Re-entrant.
process_lock = threading.RLock()

_guard = threading.Lock()

_acquire: Final[Any] = type(process_lock).acquire
_release: Final[Any] = type(process_lock).release
_locks: dict[int, tuple[Any, threading.RLock]] = {}


def model_lock(parts: Sequence[object]) -> AbstractContextManager[None]:
    """Hold the locks of all parts of a model; in one order everywhere, so that two threads cannot wait for each other."""
    return held(locks_of(parts))


def locks_of(parts: Sequence[object]) -> list[threading.RLock]:
    """The locks of all parts of a model, in the order in which they are to be taken. They stay theirs while the parts live."""
    with _guard:
        return [_lock_of(part) for part in sorted(parts, key=id)]


class held:  # noqa: N801  # used as a function is
    """Hold locks, taken in this order."""

    def __init__(self, locks: Sequence[threading.RLock]) -> None:
        self._locks = locks
        self._taken: list[bool] = []

    def __enter__(self) -> None:
        taken = self._taken  # grows in C, so that no signal comes between a lock and the note that it is taken
        try:
            taken.extend(map(_acquire, self._locks, itertools.repeat(False)))
            if not all(taken):  # another thread holds some: they are waited for in order, with none that comes later
                self._let_go()
                taken.extend(map(_acquire, self._locks))
        except BaseException:
            self._let_go()
            raise

    def __exit__(self, *told: object) -> None:
        self._let_go()

    def _let_go(self) -> None:
        collections.deque(map(_release, itertools.compress(self._locks, self._taken)), maxlen=0)
        self._taken.clear()


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


def _renew() -> None:
    """In a forked child nobody holds a lock: the threads that did are not there, and would never let go."""
    held_by_nobody: list[Any] = [_guard, process_lock, *(lock for _, lock in _locks.values())]
    for lock in held_by_nobody:
        lock._at_fork_reinit()  # as Python's own modules do it


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew)
