"""Random generators: their states, and context managers that restore them after embgrad's own passes."""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

__all__ = [
    "SharedGenerator",
    "draw_states",
    "is_generator",
    "preserve_generators",
    "states_of",
]


def draw_states() -> Hashable:
    """Return the states of Python's and NumPy's global generators, which change with every draw."""
    _, numbers, position, *_ = np.random.get_state(legacy=True)
    return random.getstate(), np.asarray(numbers).tobytes(), position


@contextlib.contextmanager
def preserve_generators(*others: random.Random | None) -> Iterator[None]:
    """Restore the states of Python's and NumPy's global generators on exit.

    Args:
        others: further generators to restore, such as a framework's `random.Random`; None is ignored.
    """
    generators = [generator for generator in others if generator is not None]
    python_state, numpy_state, states = (
        random.getstate(),
        np.random.get_state(),
        [generator.getstate() for generator in generators],
    )
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        for generator, state in zip(generators, states, strict=True):
            generator.setstate(state)


@functools.lru_cache(maxsize=1024)
def is_generator(cls: type) -> bool:
    """Return whether a type is a Python or NumPy random generator, such as a model may hold."""
    # NumPy imports these classes on first access, so they are not looked up at import time.
    return issubclass(cls, (random.Random, np.random.Generator, np.random.RandomState))


def states_of(generators: Iterable[Any]) -> list[Any]:
    """Return the states of generators as comparable objects; the state of a system generator never equals another."""
    return [
        object() if isinstance(generator, random.SystemRandom) else pickle.dumps(_state_of(generator))
        for generator in generators
    ]


def _state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


class SharedGenerator:
    """A framework's global generator, or several, from which models and all other code draw.

    Args:
        read: returns the generator's state.
        write: sets the generator to a state that `read` returned.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self.read, self.write = read, write
        self.local = threading.local()

    def preserve(self) -> AbstractContextManager[Any]:
        """Restore the generator's state on exit, see `for_user_code`."""
        return _Kept(self)

    @contextlib.contextmanager
    def for_user_code(self) -> Iterator[None]:
        """Let a user's function inside the pass draw from the state outside, and keep its draws.

        Otherwise each call of the function would draw the same noise.
        """
        record = getattr(self.local, "kept", None)
        if record is None:
            yield
            return
        inside = self.read()
        self.write(record.state)
        try:
            yield
        finally:
            record.state = self.read()
            self.write(inside)


class _Kept:
    """Restore a shared generator on exit, see `SharedGenerator.preserve`."""

    def __init__(self, generator: SharedGenerator) -> None:
        self._generator = generator

    def __enter__(self) -> None:
        self.state = self._generator.read()
        local = self._generator.local
        self._outer, local.kept = getattr(local, "kept", None), self

    def __exit__(self, *exc_info: object) -> None:
        self._generator.local.kept = self._outer
        self._generator.write(self.state)
