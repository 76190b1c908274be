"""The output of a command: stdout for the answer alone, stderr for notes, warnings, errors and progress."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, Final, TextIO

from embgrad.common.text import visible, visible_lines

__all__ = ["Terminal", "own_stdout", "plain"]

#: The width of text without a terminal, if COLUMNS is not set.
WIDTH: Final = 100

#: What is printed for a character that the terminal's encoding lacks.
ESCAPED: Final = "backslashreplace"


class Terminal:
    """The output streams of a command: the answer goes to `out` or `binary`; notes, warnings and progress go to stderr.

    Args:
        debug: whether errors are shown with their traceback, and frameworks' warnings are shown.
    """

    def __init__(self, stream: TextIO, *, as_json: bool = False, debug: bool = False) -> None:
        self.stream = stream
        self.as_json = as_json
        self.debug = debug
        self.out = _console(stream)
        self.err = _console(sys.stderr)

    @property
    def coloured(self) -> bool:
        """Return whether tokens can be coloured by saliency; sixteen colours are too few for a scale."""
        return self.out.color_system in ("256", "truecolor") and not self.out.no_color

    @property
    def binary(self) -> BinaryIO:
        """The stdout of the command, for bytes."""
        self.stream.flush()
        buffer: BinaryIO = self.stream.buffer
        return buffer

    def say(self, text: Any = "", style: str = "", indent: int = 0) -> None:
        """Print a line or a table of the answer; with --json print nothing."""
        if self.as_json:
            return
        from rich.padding import Padding

        renderable = self.text(text) if isinstance(text, str) else text
        self.out.print(Padding.indent(renderable, indent) if indent else renderable, style=style, soft_wrap=False)

    def text(self, text: str, style: str = "") -> Any:
        """Return the text for a table, without interpreting it as markup."""
        from rich.text import Text

        return Text(visible_lines(text), style=style)

    def give(self, answer: Mapping[str, Any]) -> None:
        """Print the answer as JSON; without --json print nothing."""
        if self.as_json:
            self.stream.write(json.dumps(plain(answer), indent=2, allow_nan=False) + "\n")

    def note(self, text: str) -> None:
        """Print a remark on stderr that does not belong to the answer."""
        self.err.print(visible(f"note: {text}"), style="dim", soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning on stderr about something that changes the meaning of the answer."""
        self.err.print(visible(f"warning: {text}"), style="yellow", soft_wrap=True)

    def fail(self, text: str) -> None:
        """Print the error on stderr that explains why there is no answer."""
        self.err.print(visible(f"error: {' '.join(text.split())}"), style="bold red", soft_wrap=True)

    @contextlib.contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Show a status line on stderr during a long task; only on a terminal."""
        if not self.err.is_terminal or self.err.is_dumb_terminal:
            yield
            return
        with self.err.status(self.text(visible(text))):  # Rich would interpret a string as markup
            yield

    @contextlib.contextmanager
    def progress(self, text: str) -> Iterator[Callable[[int, int], None]]:
        """Show a progress bar on a terminal; yield a function of the numbers of examples done and in all."""
        from embgrad.common.progress import bar

        with bar(visible(text), self.err) as report:
            yield report


@contextlib.contextmanager
def own_stdout() -> Iterator[TextIO]:
    """Reserve stdout for the command: redirect what frameworks print, in Python or in C, to stderr until exit."""
    stdout = sys.stdout
    if stdout is None:  # stdout was closed before the process started
        with open(os.devnull, "w", encoding="utf-8") as null:
            yield null
        return
    stdout.flush()
    if _descriptor(stdout) != 1:
        with contextlib.redirect_stdout(sys.stderr), _any_character(stdout):
            yield stdout
            stdout.flush()
        return
    duplicate = os.dup(1)
    binary = os.fdopen(duplicate, "wb", closefd=True)
    stream = io.TextIOWrapper(binary, encoding=stdout.encoding, errors=ESCAPED, write_through=False)
    _redirect_to_stderr()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield stream
            stream.flush()
    finally:
        _restore_stdout(stream)


def plain(value: Any) -> Any:
    """Return the value for JSON: NumPy's numbers and arrays as Python's, and None for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _console(stream: TextIO | None) -> Any:
    """Return a Rich console for the stream; Rich itself respects NO_COLOR, FORCE_COLOR and TERM."""
    from rich.console import Console

    console = Console(file=stream, markup=False, highlight=False, emoji=False)
    console.on_broken_pipe = _raise_broken_pipe  # Rich would exit with code 1, which means that results differ
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        console.width = max(int(columns), 10)
    elif stream is None or not stream.isatty():
        console.width = WIDTH
    return console


def _raise_broken_pipe() -> None:
    raise BrokenPipeError


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):  # a stream in memory has no descriptor
        return None


@contextlib.contextmanager
def _any_character(stream: TextIO) -> Iterator[None]:
    """Let the stream accept characters that its encoding lacks, until exit."""
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    before = stream.errors
    stream.reconfigure(errors=ESCAPED)
    try:
        yield
    finally:
        stream.reconfigure(errors=before)


def _redirect_to_stderr() -> None:
    """Redirect file descriptor 1 to descriptor 2, or to the null device if that is closed."""
    try:
        os.dup2(2, 1)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)


def _restore_stdout(stream: io.TextIOWrapper) -> None:
    """Restore descriptor 1 to the process's stdout, or to the null device if the reader has closed the pipe.

    Python would otherwise report the closed pipe at exit.
    """
    sys.stdout.flush()
    os.dup2(stream.fileno(), 1)
    try:
        stream.close()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)
