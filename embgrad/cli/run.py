"""Running of a command: errors become one line and an exit code, warnings one line; other output goes to stderr."""

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

from embgrad.cli.terminal import Terminal, own_stdout
from embgrad.errors import EmbgradError
from embgrad.loading.errors import UsageError

__all__ = ["DIFFER", "FAILED", "OK", "execute", "in_own_process", "own_process"]

#: The exit codes, the same as those of `diff` and `cmp`.
OK: Final = 0
DIFFER: Final = 1
FAILED: Final = 2
INTERRUPTED: Final = 128 + signal.SIGINT
READER_GONE: Final = 141  # 128 + SIGPIPE, which Windows lacks

#: Warnings for the developers of libraries, which users of the command do not need.
TO_DEVELOPERS: Final = (DeprecationWarning, PendingDeprecationWarning, FutureWarning, ImportWarning, ResourceWarning)

#: Environment variables that make frameworks log errors only; values set by the user are kept.
QUIET: Final = {"TF_CPP_MIN_LOG_LEVEL": "3", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


#: Whether the process's own arguments are being run, see `own_process`.
_own_process: Final = ContextVar("own_process", default=False)


def own_process() -> bool:
    """Return whether the process runs only this command, so that process-wide settings affect nothing else."""
    return _own_process.get()


@contextlib.contextmanager
def in_own_process() -> Iterator[None]:
    """Mark, until exit, that the process runs only this command."""
    token = _own_process.set(True)
    try:
        yield
    finally:
        _own_process.reset(token)


def execute(work: Callable[[Terminal], int], *, as_json: bool = False, debug: bool = False) -> NoReturn:
    """Run a command's work and exit with its exit code."""
    import typer

    code = FAILED
    try:
        with own_stdout() as stream:
            terminal = Terminal(stream, as_json=as_json, debug=debug)
            with _quiet(terminal):
                code = _guard(work, terminal)
    except BrokenPipeError:
        code = READER_GONE
    raise typer.Exit(code)


def _guard(work: Callable[[Terminal], int], terminal: Terminal) -> int:
    """Run the work and return its exit code; print an error that it raises and return the error's exit code."""
    try:
        return work(terminal)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        terminal.fail("interrupted")
        return INTERRUPTED
    except SystemExit as error:  # from the model's code; its exit code must not be mistaken for the command's
        terminal.fail(f"the model's code called sys.exit({error.code!r}): expected it to return")
        return FAILED
    except Exception as error:  # the outermost level: any error of a model or a framework becomes one line
        terminal.fail(_one_line(error, terminal.debug))
        if isinstance(error, EmbgradError) and not isinstance(error, UsageError):
            terminal.note(error.see())
        if terminal.debug:
            traceback.print_exception(error, file=sys.stderr)
        return FAILED


def _one_line(error: Exception, debug: bool) -> str:
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
    """Silence frameworks' messages that are not for the user, until exit; print embgrad's warnings as lines."""
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
