"""A record of the arrays of models that passes replace or write to, such as a state that is carried from call to call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from embgrad.toolkit.code import is_installed

__all__ = ["Changes", "changes_recorded", "is_recorded", "may_be_state", "record_again", "record_change", "record_kept"]


@dataclass(frozen=True)
class Changes:
    """The arrays that passes changed, and those that the model keeps, which another pass may change.

    Attributes:
        names: the names of the arrays that a pass found and left as others; the keys are in order.
        numbers: the numbers of examples of which the model may keep a state, by the shapes of its arrays that are no weights.
    """

    names: dict[str, None] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)


#: The record, while passes are recorded in this context.
_changes: Final[ContextVar[Changes | None]] = ContextVar("changes", default=None)


@contextlib.contextmanager
def changes_recorded() -> Iterator[Changes]:
    """Record what passes change while the context is open: yield the record.

    A backend restores what a pass changes, and calls `record_change` for each array that a pass found and left as another, and
    `record_kept` for those that a pass could change.
    """
    changes = Changes()
    token = _changes.set(changes)
    try:
        yield changes
    finally:
        _changes.reset(token)


def is_recorded() -> bool:
    """Return whether changes are recorded, so that a comparison is worth its time."""
    return _changes.get() is not None


def record_change(name: str) -> None:
    """Record that a pass changed an array of the model, by its name."""
    changes = _changes.get()
    if changes is not None:
        changes.names[name] = None


def record_again(earlier: Changes) -> None:
    """Record what an earlier pass changed, in whose place a compiled trace runs."""
    changes = _changes.get()
    if changes is not None:
        changes.names.update(earlier.names)
        changes.numbers.update(earlier.numbers)


def record_kept(arrays: Iterable[Any]) -> None:
    """Record the arrays that a model keeps and that are no weights, of any framework: those that a pass could change.

    Where such an array holds a state of each example, the examples are on its first axis, or on the second behind layers or
    positions. Most arrays of one axis are constants, such as frequencies, and so are most arrays of whole numbers.
    """
    changes = _changes.get()
    if changes is None:
        return
    for array in arrays:
        shape = tuple(array.shape)
        if len(shape) > 1 and "float" in str(array.dtype):
            changes.numbers.update(size for size in shape[: 1 if len(shape) == 2 else 2] if size)


def may_be_state(owner: Any, *, trainable: bool) -> bool:
    """Return whether a pass may write to a variable: it is not trained, or of a class of the user's. Frozen layers hold weights.

    Args:
        owner: the module that holds the variable.
        trainable: whether the variable says of itself that it is trained.
    """
    return not is_installed(type(owner).__module__) or (not trainable and getattr(owner, "trainable", True))
