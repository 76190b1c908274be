"""Raises errors in the middle of a forward or a backward pass, on purpose: models and callbacks say here where they are."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

__all__ = ["UserError", "come_by", "counting", "raising"]


class UserError(Exception):
    """What the user's own code raises."""


#: How often each place was come by, and where so something is raised. Of the process: backward passes may run in other threads.
_counts: Counter[str] = Counter()
_errors: dict[str, tuple[int, BaseException]] = {}


def come_by(place: str) -> None:
    """What a model or a callback calls where it may be interrupted.

    Args:
        place: "forward" in the middle of a model's forward pass, "backward" in the middle of its pullback, or a callback's name.

    Raises:
        BaseException: what `raising` was given for the place.
    """
    number = _counts[place]
    _counts[place] += 1
    if place in _errors and number >= _errors[place][0]:
        raise _errors[place][1]


@contextlib.contextmanager
def counting() -> Iterator[Counter[str]]:
    """How often each place is come by meanwhile."""
    _counts.clear()
    yield _counts


@contextlib.contextmanager
def raising(place: str, error: BaseException, times: int = 0) -> Iterator[None]:
    """The error is raised at a place, once that was come by so many times."""
    _counts.clear()
    _errors[place] = times, error
    try:
        yield
    finally:
        del _errors[place]
