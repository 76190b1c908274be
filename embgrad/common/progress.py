"""Report the progress of long calls, to a user's function or on the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from embgrad.errors import EmbgradError

__all__ = ["Progress", "bar", "reporter"]

#: A function of the number of examples done and the total, which is None for a stream of unknown length.
Progress = Callable[[int, Any], None]


@contextlib.contextmanager
def reporter(progress: Any, unit: str = "examples") -> Iterator[Progress]:
    """Yield the function to which a call reports its progress.

    Args:
        progress: a function of (done, total); True for a line on stderr, if that is a terminal; False or None for no report.
    """
    is_flag = isinstance(progress, (bool, np.bool_))
    if progress is None or (is_flag and not progress):
        yield _ignore
    elif is_flag:
        with bar(unit) as report:
            yield report
    elif callable(progress):
        yield progress
    else:
        raise EmbgradError(f"progress is {progress!r}: expected True, or a function that takes (done, total)")


@contextlib.contextmanager
def bar(text: str, console: Any = None) -> Iterator[Progress]:
    """Show a progress bar on stderr, if that is a terminal: Rich's if it is installed, else a line of numbers.

    Args:
        console: Rich's console to draw on; None for stderr.
    """
    stream = console.file if console is not None else sys.stderr
    if stream is None or not stream.isatty():
        yield _ignore
        return
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        with _figures(text, stream) as report:
            yield report
        return
    from rich.console import Console

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console or Console(file=stream), transient=True) as drawn:
        task = drawn.add_task(text, total=None)
        yield lambda done, total: drawn.update(task, completed=done, total=total)


@contextlib.contextmanager
def _figures(text: str, stream: Any) -> Iterator[Progress]:
    """Show a line of numbers that is overwritten at each report and erased on exit."""
    written = 0

    def report(done: int, total: int | None) -> None:
        nonlocal written
        line = f"{text}: {done}" + ("" if total is None else f" of {total}")
        written = max(written, len(line))
        stream.write(f"\r{line}")
        stream.flush()

    try:
        yield report
    finally:
        stream.write("\r" + " " * written + "\r")
        stream.flush()


def _ignore(done: int, total: int | None) -> None:
    """Ignore the report."""
