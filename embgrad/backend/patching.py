"""Stands in for a function of the framework, for the calls of one thread."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from embgrad.backend.locks import process_lock

__all__ = ["Interception"]

#: Takes the function that it stands in for and the arguments of a call.
Handler = Callable[..., Any]


class Interception:
    """An attribute that is replaced process-wide while any thread needs it; other threads' calls pass through.

    Args:
        owner: gives the module or class that holds the function, or a class that inherits it.
        name: the function's name in it.
    """

    def __init__(self, owner: Callable[[], Any], name: str) -> None:
        self._owner = owner
        self._name = name
        self._inside = 0
        self._inherited = False
        self._original: Any = None
        self._replacement: Any = None
        self._local = threading.local()

    @property
    def heard(self) -> bool:
        """Whether this thread's calls go to a handler."""
        return bool(self._local.__dict__.get("handlers"))

    @contextlib.contextmanager
    def by(self, handler: Handler) -> Iterator[None]:
        """This thread's calls go to the handler, as `handler(original, *args)`; the innermost handler has them."""
        handlers = self._local.__dict__.setdefault("handlers", [])
        self._enter()
        handlers.append(handler)
        try:
            yield
        finally:
            handlers.pop()
            self._leave()

    def _enter(self) -> None:
        with process_lock:
            if self._inside == 0:
                self._inherited = self._name not in vars(self._owner())
                self._original = getattr(self._owner(), self._name)
                self._replacement = _passing(self._original, self._local)
                setattr(self._owner(), self._name, self._replacement)
            self._inside += 1

    def _leave(self) -> None:
        with process_lock:
            self._inside -= 1
            # Whoever has put something of theirs on top meanwhile keeps it, and ours below lets everything through.
            if self._inside == 0 and vars(self._owner()).get(self._name) is self._replacement:
                if self._inherited:
                    delattr(self._owner(), self._name)
                else:
                    setattr(self._owner(), self._name, self._original)


def _passing(original: Any, local: threading.local) -> Callable[..., Any]:
    @functools.wraps(original, updated=())  # so that its signature can be told
    def replacement(*args: Any, **kwargs: Any) -> Any:
        handlers = getattr(local, "handlers", None)
        return handlers[-1](original, *args, **kwargs) if handlers else original(*args, **kwargs)

    return replacement
