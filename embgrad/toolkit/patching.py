"""Replacement of a framework's function for the calls of one thread."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from embgrad.toolkit.locks import process_lock

__all__ = ["Interception"]

#: Takes the replaced function and the arguments of a call, and returns the call's result.
Handler = Callable[..., Any]


class Interception:
    """A function that is replaced process-wide while any thread intercepts it; other threads' calls reach the original.

    A class method stays that of the class on which it is called, which a handler finds as `original.__self__`.

    Args:
        owner: returns the module or class that holds the function, or a class that inherits it.
        name: the function's name there.
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
        """Return whether this thread's calls are passed to a handler."""
        return bool(self._local.__dict__.get("handlers"))

    @contextlib.contextmanager
    def by(self, handler: Handler) -> Iterator[None]:
        """Pass this thread's calls to the innermost open handler, as `handler(original, *args, **kwargs)`."""
        handlers = self._local.__dict__.setdefault("handlers", [])
        self._enter()
        handlers.append(handler)
        try:
            yield
        finally:
            del handlers[max(at for at, other in enumerate(handlers) if other is handler)]  # contexts may overlap
            self._leave()

    def _enter(self) -> None:
        with process_lock:
            if self._inside == 0:
                owner = self._owner()
                self._inherited = self._name not in vars(owner)
                original = getattr(owner, self._name)
                if self._replacement is None or original != self._original:
                    self._original, self._replacement = original, _passing(original, self._local)
                setattr(owner, self._name, self._replacement)
            self._inside += 1

    def _leave(self) -> None:
        with process_lock:
            self._inside -= 1
            # If other code has patched the function in the meantime, its patch stays, with our replacement below it: without
            # handlers that calls the original.
            if self._inside == 0 and vars(self._owner()).get(self._name) is self._replacement:
                if self._inherited:
                    delattr(self._owner(), self._name)
                else:
                    setattr(self._owner(), self._name, self._original)


def _passing(original: Any, local: threading.local) -> Any:
    is_of_class = inspect.ismethod(original) and inspect.isclass(original.__self__)

    @functools.wraps(original, updated=())  # so that `inspect.signature` returns the original's signature
    def replacement(*args: Any, **kwargs: Any) -> Any:
        function = original
        if is_of_class:  # of the class on which it is called, perhaps a subclass
            cls, *rest = args
            function, args = types.MethodType(original.__func__, cls), tuple(rest)
        handlers = getattr(local, "handlers", None)
        return handlers[-1](function, *args, **kwargs) if handlers else function(*args, **kwargs)

    return classmethod(replacement) if is_of_class else replacement
