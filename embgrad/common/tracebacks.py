"""Tracebacks of embgrad's errors without embgrad's own frames, of which only the last says something to users."""

from __future__ import annotations

from types import TracebackType
from typing import Final, TypeVar

__all__ = ["without_own_frames"]

Raised = TypeVar("Raised", bound=BaseException)

#: The packages whose frames are left out.
OWN: Final = frozenset({"embgrad", "embgrad_torch", "embgrad_tensorflow", "embgrad_gluon", "embgrad_jax"})

#: Modules of Python's through which these packages call one another.
BETWEEN: Final = frozenset({"contextlib", "functools"})


def without_own_frames(error: Raised) -> Raised:
    """Return an error that was just caught, after removing this package's frames from its traceback and those of its causes.

    The frames of the user, of the model and of its framework stay, and the frame that raised each error.
    """
    error.__traceback__ = _trimmed(error.__traceback__ and error.__traceback__.tb_next)
    seen, current = {id(error)}, error.__cause__ or error.__context__
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        current.__traceback__ = _trimmed(current.__traceback__)
        current = current.__cause__ or current.__context__
    return error


def _trimmed(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without own frames, except for the last frame."""
    entries: list[TracebackType] = []
    is_own = True
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        is_own = module.partition(".")[0] in OWN or (is_own and module in BETWEEN)
        if not is_own or trace.tb_next is None:
            entries.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for entry in reversed(entries):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept
