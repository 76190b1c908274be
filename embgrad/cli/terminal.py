"""What a command writes to: its own stdout, which nothing else reaches, and stderr for everything that is no answer."""

from __future__ import annotations

import codecs
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

#: How wide text is laid out where there is no terminal and COLUMNS does not say.
WIDTH: Final = 100

#: Our own signs for terminals that cannot show them; others are told by their code.
IN_ASCII: Final[Mapping[str, str]] = {
    "×": "x",
    "–": "-",
    "—": "-",
    "…": "...",
    "∂": "d",
    "Σ": "sum ",
    "‖": "|",
    "−": "-",
    "≤": "<=",
    "≥": ">=",
    "→": "->",
    "√": "sqrt",
    "’": "'",
    "·": "-",
    "✓": "+",
    "✗": "x",
}


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """What stands for characters that the terminal's encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    given = error.object[error.start : error.end]
    return "".join(IN_ASCII.get(one) or one.encode("ascii", "backslashreplace").decode() for one in given), error.end


codecs.register_error("embgrad", _in_ascii)


class Terminal:
    """A command's answer goes to `out` (text, tables) or `binary`; notes, warnings and progress go to stderr.

    Args:
        stream: the command's own stdout.
        as_json: only JSON goes to stdout.
        debug: errors are shown with their traceback, and the frameworks' warnings are let through.
    """

    def __init__(self, stream: TextIO, *, as_json: bool = False, debug: bool = False) -> None:
        self.stream = stream
        self.as_json = as_json
        self.debug = debug
        self.out = _console(stream)
        self.err = _console(sys.stderr)

    @property
    def coloured(self) -> bool:
        """Whether the answer may be told by colour; sixteen colours are too few for a scale."""
        return self.out.color_system in ("256", "truecolor") and not self.out.no_color

    @property
    def binary(self) -> BinaryIO:
        """The command's own stdout for bytes."""
        self.stream.flush()
        buffer: BinaryIO = self.stream.buffer
        return buffer

    def say(self, text: Any = "", style: str = "", indent: int = 0) -> None:
        """A line of the answer for people, or a table; nothing where only JSON is wanted."""
        if self.as_json:
            return
        from rich.padding import Padding

        shown = self.text(text) if isinstance(text, str) else text
        self.out.print(
            Padding(shown, (0, 0, 0, indent), expand=False) if indent else shown, style=style, soft_wrap=False
        )

    def text(self, text: str, style: str = "") -> Any:
        """Text that is no markup, for a table."""
        from rich.text import Text

        return Text(visible_lines(text), style=style)

    def give(self, answer: Mapping[str, Any]) -> None:
        """The answer for machines, where it is wanted."""
        if self.as_json:
            self.stream.write(json.dumps(plain(answer), indent=2, allow_nan=False) + "\n")

    def note(self, text: str) -> None:
        """A line on stderr that is no part of the answer."""
        self.err.print(visible(f"note: {text}"), style="dim", soft_wrap=True)

    def warn(self, text: str) -> None:
        """A line on stderr about what changes the meaning of the answer."""
        self.err.print(visible(f"warning: {text}"), style="yellow", soft_wrap=True)

    def fail(self, text: str) -> None:
        """The line on stderr that says why there is no answer."""
        self.err.print(visible(f"error: {' '.join(text.split())}"), style="bold red", soft_wrap=True)

    @contextlib.contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """While something goes on that takes long: on a terminal a line that says so."""
        if not self.err.is_terminal or self.err.is_dumb_terminal:
            yield
            return
        with self.err.status(self.text(visible(text))):  # a string would be read as Rich's markup
            yield

    @contextlib.contextmanager
    def progress(self, text: str) -> Iterator[Callable[[int, int], None]]:
        """A bar on a terminal; what it gives is told how much is done, of how much."""
        from embgrad.common.progress import bar

        with bar(visible(text), self.err) as report:
            yield report


@contextlib.contextmanager
def own_stdout() -> Iterator[TextIO]:
    """The process's stdout for the command alone: what frameworks print meanwhile, in Python or in C, goes to stderr."""
    given = sys.stdout
    if given is None:  # it was closed before we began
        with open(os.devnull, "w", encoding="utf-8") as nowhere:
            yield nowhere
        return
    given.flush()
    if _descriptor(given) != 1:
        with contextlib.redirect_stdout(sys.stderr), _any_character(given):
            yield given
            given.flush()
        return
    kept = os.dup(1)
    binary = os.fdopen(kept, "wb", closefd=True)
    stream = io.TextIOWrapper(binary, encoding=given.encoding, errors="embgrad", write_through=False)
    _onto_stderr()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield stream
            stream.flush()
    finally:
        _put_back(stream)


def plain(value: Any) -> Any:
    """What JSON can hold: NumPy's numbers and arrays as Python's; null for what is not finite, which JSON has no word for."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _console(stream: TextIO | None) -> Any:
    """Rich's console; it heeds NO_COLOR, FORCE_COLOR and TERM itself."""
    from rich.console import Console

    console = Console(file=stream, markup=False, highlight=False, emoji=False)
    console.on_broken_pipe = _reader_gone  # Rich's own would leave the process with 1, which says that two differ
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        console.width = max(int(columns), 10)
    elif stream is None or not stream.isatty():
        console.width = WIDTH
    return console


def _reader_gone() -> None:
    raise BrokenPipeError


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):  # a stream in memory has none
        return None


@contextlib.contextmanager
def _any_character(stream: TextIO) -> Iterator[None]:
    """While open, the stream takes characters that its encoding lacks."""
    if not isinstance(stream, io.TextIOWrapper):
        yield
        return
    before = stream.errors
    stream.reconfigure(errors="embgrad")
    try:
        yield
    finally:
        stream.reconfigure(errors=before)


def _onto_stderr() -> None:
    """Let descriptor 1 be what descriptor 2 is, or nowhere where that is closed."""
    try:
        os.dup2(2, 1)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


def _put_back(stream: io.TextIOWrapper) -> None:
    """Let descriptor 1 be the process's stdout again; where its reader has gone, nowhere, so that nothing is said at exit."""
    sys.stdout.flush()
    os.dup2(stream.fileno(), 1)
    try:
        stream.close()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)
