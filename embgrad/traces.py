"""Keeps compiled traces of models: few of each, no longer than the model lives, and one thread makes each."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from embgrad.bounded import Bounded

__all__ = ["Traces", "UnsettledError"]

Trace = TypeVar("Trace")


class UnsettledError(Exception):
    """Each of many calls takes a trace of its own, which no later one uses; says so as "compile=True: ..." goes on."""


class _Of(Generic[Trace]):
    """The traces of one model.

    Attributes:
        references: to the model's parts.
        kept: by key.
        unused: how many keys have come since one for which there was a trace.
        last: the key that came last of those.
    """

    def __init__(self, references: tuple[Any, ...], limit: int) -> None:
        self.references = references
        self.kept: Bounded[Trace] = Bounded(limit)
        self.unused = 0
        self.last: Hashable = None


class Traces(Generic[Trace]):
    """The traces of all models, the longest unused of a model going first.

    A trace must not keep its model alive: whoever makes it refers to the model weakly. One thread may use a trace at a time
    while it holds the model's lock; the table itself is safe to use from several threads.

    Args:
        limit: how many traces are kept of one model.
        patience: after how many keys in a row that were each new one has to come twice for a trace; None for no such number.
    """

    def __init__(self, limit: int = 16, patience: int | None = None) -> None:
        self.limit = limit
        self.patience = patience
        self._lock = threading.Lock()
        self._of: dict[tuple[int, ...], _Of[Trace]] = {}

    def get(self, parts: Sequence[object], key: Hashable, make: Callable[[], Trace]) -> Trace:
        """The trace of a model under a key, made where there is none. What `make` raises is kept in no way.

        Args:
            parts: the model's parts.
            key: everything that the trace depends on, beside the shapes and values that it takes.
            make: makes the trace, which is not None.

        Raises:
            TypeError: a part cannot be referred to weakly.
            UnsettledError: as many keys as there is patience for were new before, and this one is, too.
        """
        known = self._known(parts)
        with self._lock:
            found = known.kept.get(key, None)
            if found is not None:
                known.unused = 0
                return found
            self._expect_patience(known, key)
        made = make()
        known.kept.put(key, made)
        return made

    def count(self, parts: Sequence[object]) -> int:
        """How many traces are kept of a model."""
        with self._lock:
            known = self._of.get(tuple(map(id, parts)))
            return 0 if known is None else len(known.kept)

    def forget(self, parts: Sequence[object]) -> None:
        """Drop the traces of a model."""
        with self._lock:
            self._of.pop(tuple(map(id, parts)), None)

    def _expect_patience(self, known: _Of[Trace], key: Hashable) -> None:
        came_before, known.last = known.unused > 0 and known.last == key, key
        known.unused += 1
        if self.patience is not None and known.unused > self.patience and not came_before:
            raise UnsettledError(
                f"the last {self.patience} calls each asked for something else, or read something else in the function call, and "
                "each would take a trace of its own"
            )

    def _known(self, parts: Sequence[object]) -> _Of[Trace]:
        ids = tuple(map(id, parts))
        with self._lock:
            known = self._of.get(ids)
            if known is not None and all(one() is part for one, part in zip(known.references, parts, strict=True)):
                return known
            # The traces go with the first part that does. A callback may come in the middle of anything: it takes no lock.
            references = tuple(weakref.ref(part, lambda _: self._of.pop(ids, None)) for part in parts)
            known = self._of[ids] = _Of(references, self.limit)
            return known
