"""How a command is run: errors become one line and an exit code, warnings one line, and chatter stays off stdout."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final, NoReturn

from embgrad.cli.errors import UsageError
from embgrad.cli.terminal import Terminal, own_stdout
from embgrad.errors import EmbgradError

__all__ = ["DIFFER", "FAILED", "OK", "execute", "in_own_process", "own_process"]

#: The exit codes; `diff` and `cmp` have the same.
OK: Final = 0
DIFFER: Final = 1
FAILED: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT
READER_GONE: Final = 141  # 128 + SIGPIPE, which Windows lacks

#: What libraries say to their developers, and not to who uses them.
TO_DEVELOPERS: Final = (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning, ResourceWarning)

#: Says to frameworks that they are to log errors alone; what the user has set stays.
QUIET: Final = {"TF_CPP_MIN_LOG_LEVEL": "3", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


#: The process's own arguments are run, see `own_process`.
_own: Final = ContextVar("own", default=False)


def own_process() -> bool:
    """Return whether the process runs this one command, so that what is set for the whole of it harms nobody else."""
    return _own.get()


@contextlib.contextmanager
def in_own_process() -> Iterator[None]:
    """Meanwhile the process runs one command."""
    token = _own.set(True)
    try:
        yield
    finally:
        _own.reset(token)


def execute(work: Callable[[Terminal], int], *, as_json: bool = False, debug: bool = False) -> NoReturn:
    """Do a command's work and leave with its exit code.

    Args:
        work: the command; gives the exit code.
        as_json: only JSON goes to stdout.
        debug: errors are shown with their traceback.
    """
    import typer

    code = FAILED
    try:
        with own_stdout() as stream:
            terminal = Terminal(stream, as_json=as_json, debug=debug)
            with _quiet(terminal):
                code = _guarded(work, terminal)
    except BrokenPipeError:
        code = READER_GONE
    raise typer.Exit(code)


def _guarded(work: Callable[[Terminal], int], terminal: Terminal) -> int:
    """The work's exit code, or that of the error that it ended with, which is told."""
    try:
        return work(terminal)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        terminal.fail("interrupted")
        return INTERRUPTED
    except SystemExit as error:  # a model's own code; its code must not be taken for an answer
        terminal.fail(f"the model's code left with sys.exit({error.code!r}): expected it to return")
        return FAILED
    except Exception as error:  # the command's edge: whatever a model or a framework raises becomes a line
        terminal.fail(_told(error, terminal.debug))
        if isinstance(error, EmbgradError) and not isinstance(error, UsageError):
            terminal.note(error.see())
        if terminal.debug:
            traceback.print_exception(error, file=sys.stderr)
        return FAILED


def _told(error: Exception, debug: bool) -> str:
    if isinstance(error, EmbgradError):
        return error.message
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return str(error)
    hint = "" if debug else " (--debug shows where)"
    return f"{type(error).__name__}: {error}{hint}"


@contextlib.contextmanager
def _quiet(terminal: Terminal) -> Iterator[None]:
    """While it is open, frameworks keep to themselves what is not for the user; embgrad's warnings are lines."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if terminal.debug:
        yield
        return

    def show(message: Any, category: Any, *_: Any, **__: Any) -> None:
        terminal.warn(" ".join(str(message).split()))

    with warnings.catch_warnings():
        for category in (*TO_DEVELOPERS, SyntaxWarning):
            warnings.simplefilter("ignore", category)
        warnings.showwarning = show
        yield
