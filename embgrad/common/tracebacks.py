"""Tests of tracebacks: whether an error is a mistake in embgrad's own code, and which frames are the user's and the model's."""

from __future__ import annotations

import sys
from opcode import opname
from types import TracebackType
from typing import Final, TypeVar

__all__ = ["errors_of_model", "without_own_frames"]

Raised = TypeVar("Raised", bound=BaseException)

#: The packages whose frames are embgrad's own.
OWN: Final = frozenset({"embgrad", "embgrad_torch", "embgrad_tensorflow", "embgrad_gluon", "embgrad_jax"})

#: Modules of Python's through which these packages call one another.
BETWEEN: Final = frozenset({"contextlib", "functools"})

#: The classes of errors that Python raises for mistakes in code; embgrad's errors are subclasses of some, and none of these.
MISTAKES: Final = frozenset(
    {AssertionError, AttributeError, IndexError, KeyError, NameError, TypeError, UnboundLocalError}
)


def errors_of_model() -> tuple[type[Exception], ...]:
    """Return the classes for an `except` clause behind a pass that may fail: none where embgrad's own code made a mistake.

    A probe runs a model on another batch than the user's, which the model, its framework and embgrad's checks may refuse by any
    error. A mistake in embgrad's own code is no such answer, and is raised.
    """
    error = sys.exc_info()[1]
    return () if error is not None and _is_own_mistake(error) else (Exception,)


def _is_own_mistake(error: BaseException) -> bool:
    """Return whether embgrad's own code raised an error of a mistake, and not what it called.

    A call as the last instruction says that a function without frames raised the error, such as one of a framework written in C,
    or that a user's function has another signature.
    """
    trace = error.__traceback__
    if trace is None or type(error) not in MISTAKES:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    instruction = opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]]
    return _is_own(trace) and not instruction.startswith(("CALL", "PRECALL"))


def _is_own(trace: TracebackType) -> bool:
    """Return whether a frame is embgrad's own; models that come with its tests are not."""
    package, _, module = _module(trace).partition(".")
    return package in OWN and module.partition(".")[0] != "testing"


def _module(trace: TracebackType) -> str:
    return str(trace.tb_frame.f_globals.get("__name__", ""))


def without_own_frames(error: Raised) -> Raised:
    """Return an error that was just caught, after removing this package's frames from its traceback and those of its causes.

    The frames of the user, of the model and of its framework stay, and the frame that raised each error.
    """
    error.__traceback__ = _trim(error.__traceback__ and error.__traceback__.tb_next)
    seen, current = {id(error)}, error.__cause__ or error.__context__
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        current.__traceback__ = _trim(current.__traceback__)
        current = current.__cause__ or current.__context__
    return error


def _trim(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without own frames, except for the last frame."""
    entries: list[TracebackType] = []
    is_own = True
    while trace is not None:
        module = _module(trace)
        is_own = module.partition(".")[0] in OWN or (is_own and module in BETWEEN)
        if not is_own or trace.tb_next is None:
            entries.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for entry in reversed(entries):
        kept = TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return kept
