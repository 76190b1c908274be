"""Re-entrant locks: one for each model, held while its state is changed, and one for process-wide changes."""

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
#: The locks by the identity of their parts, each while somebody has it. They refer to no part: a dictionary of weights takes no
#: weak references, and would be kept for ever. Of two objects that have an identity one after the other, both have one lock.
_locks: weakref.WeakValueDictionary[int, threading.RLock] = weakref.WeakValueDictionary()


def model_lock(parts: Sequence[object]) -> AbstractContextManager[None]:
    """Hold the locks of all parts of a model, acquired in one order everywhere, so that threads cannot deadlock."""
    return held(locks_of(parts))


def locks_of(parts: Sequence[object]) -> list[threading.RLock]:
    """Return the locks of a model's parts in the order in which to acquire them. Each exists while a caller keeps it."""
    with _guard:
        return [_lock_of(part) for part in sorted(parts, key=id)]


class held:  # noqa: N801  # used like a function
    """Hold several locks, acquired in the given order."""

    def __init__(self, locks: Sequence[threading.RLock]) -> None:
        self._locks = locks
        self._taken: list[bool] = []

    def __enter__(self) -> None:
        try:  # extended in C, so that no signal arrives between acquiring a lock and recording it
            self._taken.extend(map(_acquire, self._locks))
        except BaseException:
            self._let_go()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self._let_go()

    def _let_go(self) -> None:
        collections.deque(map(_release, itertools.compress(self._locks, self._taken)), maxlen=0)
        self._taken.clear()


def _lock_of(part: object) -> threading.RLock:
    lock = _locks.get(id(part))
    if lock is None:
        lock = _locks[id(part)] = threading.RLock()
    return lock


def _renew() -> None:
    """Reset all locks in a forked child: the threads that held them do not exist there and could never release them."""
    locks: list[Any] = [_guard, process_lock, *_locks.values()]
    for lock in locks:
        lock._at_fork_reinit()  # as the standard library's modules do


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_renew)
