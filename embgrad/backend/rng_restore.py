"""Random numbers that passes of embgrad's own draw are as if they had not been, but for those of the user's functions."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from embgrad.backend.rng import Beside

__all__ = ["SharedGenerator"]


class SharedGenerator:
    """A framework's own generator, or several, from which models and everybody else draw.

    Args:
        read: gives its state.
        write: makes a state, that `read` gave, its own.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self.read, self.write = read, write
        self.local = threading.local()

    def as_found(self) -> AbstractContextManager[Any]:
        """Meanwhile random numbers are drawn that will be drawn again.

        Unless another thread runs code of the user's meanwhile, such as a stream's source: what that draws would be drawn again,
        too.
        """
        return _Kept(self)

    @contextlib.contextmanager
    def of_the_user(self) -> Iterator[None]:
        """A function of the user's runs inside the pass: what it draws is drawn, or each call would draw the same noise."""
        kept = getattr(self.local, "kept", None)
        if kept is None:
            yield
            return
        inside = self.read()
        self.write(kept.state)
        try:
            yield
        finally:
            kept.state = self.read()
            self.write(inside)


class _Kept:
    """While it is entered.

    Attributes:
        state: of the generator, as it will be afterwards.
    """

    def __init__(self, generator: SharedGenerator) -> None:
        self._generator = generator

    def __enter__(self) -> None:
        self._beside = Beside()
        self.state = self._generator.read()
        local = self._generator.local
        self._outer, local.kept = getattr(local, "kept", None), self

    def __exit__(self, *told: object) -> None:
        self._generator.local.kept = self._outer
        if not self._beside.ran:
            self._generator.write(self.state)
