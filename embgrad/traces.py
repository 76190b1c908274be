"""Keeps compiled traces of models: few of each, no longer than the model lives, and one thread makes each."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

__all__ = ["Traces"]

Trace = TypeVar("Trace")


class Traces(Generic[Trace]):
    """The traces of all models, the longest unused of a model going first.

    A trace must not keep its model alive: whoever makes it refers to the model weakly. One thread may use a trace at a time
    while it holds the model's lock; the table itself is safe to use from several threads.

    Args:
        limit: how many traces are kept of one model.
    """

    def __init__(self, limit: int = 16) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._of: dict[tuple[int, ...], tuple[tuple[Any, ...], OrderedDict[Hashable, Trace]]] = {}

    def get(self, parts: Sequence[object], key: Hashable, make: Callable[[], Trace]) -> Trace:
        """The trace of a model under a key, made where there is none. What `make` raises is kept in no way.

        Args:
            parts: the model's parts.
            key: everything that the trace depends on, beside the shapes and values that it takes.
            make: makes the trace.

        Raises:
            TypeError: a part cannot be referred to weakly.
        """
        kept = self._kept(parts)
        with self._lock:
            if key in kept:
                kept.move_to_end(key)
                return kept[key]
        made = make()
        with self._lock:
            kept[key] = made
            while len(kept) > self.limit:
                kept.popitem(last=False)
        return made

    def count(self, parts: Sequence[object]) -> int:
        """How many traces are kept of a model."""
        with self._lock:
            known = self._of.get(tuple(map(id, parts)))
            return 0 if known is None else len(known[1])

    def forget(self, parts: Sequence[object]) -> None:
        """Drop the traces of a model."""
        with self._lock:
            self._of.pop(tuple(map(id, parts)), None)

    def _kept(self, parts: Sequence[object]) -> OrderedDict[Hashable, Trace]:
        ids = tuple(map(id, parts))
        with self._lock:
            known = self._of.get(ids)
            if known is not None and all(one() is part for one, part in zip(known[0], parts, strict=True)):
                return known[1]
            # The traces go with the first part that does. A callback may come in the middle of anything: it takes no lock.
            references = tuple(weakref.ref(part, lambda _: self._of.pop(ids, None)) for part in parts)
            kept: OrderedDict[Hashable, Trace] = OrderedDict()
            self._of[ids] = (references, kept)
            return kept
