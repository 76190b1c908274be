"""A least-recently-used cache of limited size."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["LRUCache"]

Value = TypeVar("Value")
Other = TypeVar("Other")


class LRUCache(Generic[Value]):
    """A thread-safe mapping that drops its least recently used entry when it exceeds its limit.

    Args:
        limit: the most entries.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, default: Other) -> Value | Other:
        """Return the entry and mark it most recently used, or `default`."""
        with self._lock:
            if key not in self._entries:
                return default
            self._entries.move_to_end(key)
            return self._entries[key]

    def put(self, key: Hashable, value: Value) -> None:
        """Set the entry and mark it most recently used."""
        gone: list[object] = []  # dropped values are freed after the lock: their finalizers may use this cache
        with self._lock:
            gone.append(self._entries.pop(key, None))
            self._entries[key] = value
            while len(self._entries) > self._limit:
                gone.append(self._entries.popitem(last=False))

    def get_or_make(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the entry, or compute and store it with `make`.

        Concurrent threads may each compute it. If `make` raises, nothing is stored.
        """
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        value = make()
        self.put(key, value)
        return value

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            gone, self._entries = self._entries, OrderedDict()
        gone.clear()
