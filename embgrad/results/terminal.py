"""Scores in the terminal: as colours, or as digits without colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from embgrad.common.colours import shade, step
from embgrad.common.text import visible_lines
from embgrad.results.pieces import Line

__all__ = ["digit", "painted", "print_lines", "print_parts", "style"]

#: The largest digit, that of the largest score.
MOST: Final = 9


def style(share: float, signed: bool) -> str:
    """Return the style of a score in Rich's words, black or white on a colour; "" for none.

    Args:
        share: the score divided by the largest, -1 to 1.
        signed: whether scores may be below zero.
    """
    scale, level = shade(share, 1.0, signed)
    colours = step("light", scale, level) if scale else None
    return "" if colours is None else f"{colours.text} on {colours.background}"


def digit(share: float, signed: bool) -> str:
    """Return a score as a digit from 0 to 9, with its sign where scores have one; "?" where it is not finite."""
    if not math.isfinite(share):
        return "?"
    figure = round(MOST * max(-1.0, min(1.0, share)))
    return f"{figure:+d}" if signed and figure else str(abs(figure))


def print_lines(examples: Sequence[Sequence[Line]]) -> None:
    """Print the examples, coloured where the terminal and `NO_COLOR` allow it and Rich is installed, else with digits."""
    print_parts(lambda coloured: _fragments(examples, coloured))


def print_parts(parts_of: Callable[[bool], Iterable[tuple[str, str]]]) -> None:
    """Print texts with their styles, without a line end after the last.

    Args:
        parts_of: returns the texts with their styles, in Rich's words; its argument is whether they are coloured.
    """
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        for text, _ in parts_of(False):
            print(text, end="")
        return
    console = Console(highlight=False, soft_wrap=True)
    coloured = not console.no_color and console.color_system in ("256", "truecolor")
    console.print(Text.assemble(*parts_of(coloured)), end="")


def _fragments(examples: Sequence[Sequence[Line]], coloured: bool) -> Iterator[tuple[str, str]]:
    """Yield the parts of the output with their styles."""
    width = max((len(line.label) for lines in examples for line in lines), default=0)
    for lines in examples:
        for line in lines:
            if width:
                yield f"{line.label:{width}}  ", "bold"
            yield f"example {line.example}: {line.summary}; {_legend(line, coloured)}\n", "dim"
            yield from painted(line, coloured)
            yield "\n", ""


def painted(line: Line, coloured: bool) -> Iterator[tuple[str, str]]:
    """Yield the pieces of a line with their styles, in Rich's words."""
    for index, piece in enumerate(line.pieces):
        yield (piece.before if index else ""), ""
        text = visible_lines(piece.text)
        share = piece.score / line.largest if line.largest else piece.score
        if not piece.positions:
            yield text, ""
        elif piece.special:
            yield text + piece.note, "dim"
        elif coloured and math.isfinite(share):
            yield text, style(share, line.signed)
        else:
            yield f"{text}({digit(share, line.signed)})", ""


def _legend(line: Line, coloured: bool) -> str:
    if not line.largest:
        return "all scores are zero or not finite"
    if not coloured:
        return f"{MOST} is {line.largest:.4g}"
    return (
        f"orange up to {line.largest:.4g}, blue below zero"
        if line.signed
        else f"the darker, the more, up to {line.largest:.4g}"
    )
