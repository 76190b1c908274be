"""Random generators: their states, and restoring them after passes of embgrad's own."""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np

__all__ = ["Beside", "SharedGenerator", "drawn", "generators_kept", "is_generator", "states_of", "user_code_beside"]

#: How often code of the user's has begun to run, and has ended, in threads beside those that passes are made in.
_beside: Final = [0, 0]
_counting: Final = threading.Lock()


@contextlib.contextmanager
def user_code_beside() -> Iterator[None]:
    """Code of the user's runs, maybe beside a pass, and what it draws is drawn: a generator for all threads is its to move."""
    with _counting:
        _beside[0] += 1
    try:
        yield
    finally:
        with _counting:
            _beside[1] += 1


class Beside:
    """Tells whether code of the user's has run since this was made, or does so."""

    def __init__(self) -> None:
        self._first = tuple(_beside)

    @property
    def ran(self) -> bool:
        """Whether it has or does."""
        return self._first[0] != self._first[1] or tuple(_beside) != self._first


def drawn() -> Hashable:
    """Stands for what has been drawn so far."""
    _, numbers, place, *_ = np.random.get_state(legacy=True)
    return random.getstate(), np.asarray(numbers).tobytes(), place


@contextlib.contextmanager
def generators_kept(*others: random.Random | None) -> Iterator[None]:
    """The generators come back to where they stood; the others are a framework's own of Python's kind, None where it has none."""
    own = [one for one in others if one is not None]
    of_python, of_numpy, of_others = random.getstate(), np.random.get_state(), [one.getstate() for one in own]
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
        for one, state in zip(own, of_others, strict=True):
            one.setstate(state)


@functools.lru_cache(maxsize=1024)
def is_generator(kind: type) -> bool:
    """Whether values of a type are generators that a model may have of its own."""
    # NumPy imports these when they are first asked for.
    return issubclass(kind, (random.Random, np.random.Generator, np.random.RandomState))


def states_of(generators: Iterable[Any]) -> list[Any]:
    """Where generators stand, as what can be compared; what the system draws from stands nowhere twice."""
    return [object() if isinstance(one, random.SystemRandom) else pickle.dumps(_state_of(one)) for one in generators]


def _state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if isinstance(generator, random.Random) else generator.get_state()


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
