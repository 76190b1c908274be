"""Injection of errors into forward and backward passes, at places that models and callbacks report."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

__all__ = ["UserError", "counting", "obtain", "raising"]


class UserError(Exception):
    """The error that stands for one raised by a user's code."""


#: How often each place was reached, and the errors to raise at places. Process-wide: backward passes may run in other threads.
_counts: Counter[str] = Counter()
_errors: dict[str, tuple[int, BaseException]] = {}


def obtain(place: str) -> None:
    """Report that a place was reached; models and callbacks call this wherever a test may interrupt them.

    Args:
        place: "forward" in the middle of a model's forward pass, "backward" in the middle of its pullback, or a callback's name.

    Raises:
        BaseException: the error that `raising` was given for the place.
    """
    number = _counts[place]
    _counts[place] += 1
    if place in _errors and number >= _errors[place][0]:
        raise _errors[place][1]


@contextlib.contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count how often each place is reached while the context is open."""
    _counts.clear()
    yield _counts


@contextlib.contextmanager
def raising(place: str, error: BaseException, times: int = 0) -> Iterator[None]:
    """Raise an error at a place once it has been reached `times` times before."""
    _counts.clear()
    _errors[place] = times, error
    try:
        yield
    finally:
        del _errors[place]
