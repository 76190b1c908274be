"""A table of no more than so many entries: the one that was not used for the longest goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Bounded"]

Value = TypeVar("Value")
Other = TypeVar("Other")


class Bounded(Generic[Value]):
    """What is remembered by key. It may be used from several threads at once.

    Args:
        limit: how many entries there are at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, default: Other) -> Value | Other:
        """The entry, which is used thereby; the default where there is none."""
        with self._lock:
            if key not in self._entries:
                return default
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: Hashable, value: Value) -> None:
        """From now on that is the entry."""
        gone: list[object] = []  # what goes is let go of behind the lock: what runs then may come here, too
        with self._lock:
            gone.append(self._entries.pop(key, None))
            self._entries[key] = value
            while len(self._entries) > self._limit:
                gone.append(self._entries.popitem(last=False))

    def made(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """The entry, made where there is none. Threads that ask at once may each make it; what it raises is kept in no way."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        value = make()
        self.put(key, value)
        return value

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            gone, self._entries = self._entries, OrderedDict()
        gone.clear()
