"""A record of the arrays of models that passes replace or write to, such as a state that is carried from call to call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

__all__ = ["changes_recorded", "is_recorded", "record_change"]

#: The names that were recorded, while passes are recorded in this context.
_names: Final[ContextVar[dict[str, None] | None]] = ContextVar("names", default=None)


@contextlib.contextmanager
def changes_recorded() -> Iterator[dict[str, None]]:
    """Record what passes change while the context is open: yield a dict, whose keys are the names, in order.

    A backend restores what a pass changes, and calls `record_change` for each array that a pass found and left as another.
    """
    names: dict[str, None] = {}
    token = _names.set(names)
    try:
        yield names
    finally:
        _names.reset(token)


def is_recorded() -> bool:
    """Return whether changes are recorded, so that a comparison is worth its time."""
    return _names.get() is not None


def record_change(name: str) -> None:
    """Record that a pass changed an array of the model, by its name."""
    names = _names.get()
    if names is not None:
        names[name] = None
