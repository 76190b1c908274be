"""Searches in the terminal: the texts before and after, with changed tokens in colours, or in the brackets of `wdiff`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from embgrad.common.text import visible_lines
from embgrad.results.search_lines import Marked, SearchLine
from embgrad.results.terminal import print_parts, style

__all__ = ["fragments", "legend", "print_search"]

#: The brackets around a token that was removed, and around one that was put in, as the program `wdiff` writes them.
BRACKETS: Final = (("[-", "-]"), ("{+", "+}"))


def print_search(title: str, lines: Sequence[SearchLine]) -> None:
    """Print the title and the examples, coloured where the terminal and `NO_COLOR` allow it and Rich is installed."""
    print_parts(lambda coloured: _parts(title, lines, coloured))


def _parts(title: str, lines: Sequence[SearchLine], coloured: bool) -> Iterator[tuple[str, str]]:
    yield f"{title}\n", "bold"
    for line in lines:
        yield from fragments(line, coloured)
    yield f"{legend(coloured)}\n", "dim"


def legend(coloured: bool) -> str:
    """Return the legend of the colours or brackets."""
    return "blue: replaced or deleted, orange: put in" if coloured else "[-…-]: replaced or deleted, {+…+}: put in"


def fragments(line: SearchLine, coloured: bool) -> Iterator[tuple[str, str]]:
    """Yield the parts of an example with their styles, in Rich's words: its summary, and the texts before and after."""
    outcome = f"; {line.outcome}" if line.outcome else ""
    yield f"example {line.example}: {line.summary}{outcome}\n", "dim"
    for name, side, tokens in (("before", 0, line.before), ("after ", 1, line.after)):
        yield f"{name}  ", "dim"
        yield from _painted(tokens, side, coloured)
        yield "\n", ""


def _painted(tokens: Sequence[Marked], side: int, coloured: bool) -> Iterator[tuple[str, str]]:
    for index, (piece, change) in enumerate(tokens):
        yield (piece.before if index else ""), ""
        text = visible_lines(piece.text)
        if change is None:
            yield text, "dim" if piece.special else ""
        elif coloured:
            yield text, style(1.0 if side else -1.0, signed=True)
        else:
            yield text.join(BRACKETS[side]), ""
