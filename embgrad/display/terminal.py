"""Lines in the terminal: scores as colours, or as digits without colours; changes as colours, or in the brackets of `wdiff`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from embgrad.common.text import visible_lines
from embgrad.display.colours import shade, step
from embgrad.display.lines import Line

__all__ = ["changes_legend", "paint", "print_lines", "print_parts", "scores_legend"]

#: The largest digit, that of the largest score.
MOST: Final = 9

#: The brackets around a token that was removed, and around one that was added, as the program `wdiff` writes them.
BRACKETS: Final = {"replaced": ("[-", "-]"), "deleted": ("[-", "-]"), "added": ("{+", "+}")}


def print_lines(examples: Sequence[Sequence[Line]]) -> None:
    """Print the examples, coloured where the terminal and `NO_COLOR` allow it and Rich is installed, else with digits."""
    print_parts(lambda coloured: _parts(examples, coloured))


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


def _parts(examples: Sequence[Sequence[Line]], coloured: bool) -> Iterator[tuple[str, str]]:
    """Yield the parts of the output with their styles."""
    width = max((len(line.label) for lines in examples for line in lines), default=0)
    for lines in examples:
        for line in lines:
            if width:
                yield f"{line.label:{width}}  ", "bold"
            yield f"example {line.example}: {line.summary}; {_legend(line, coloured)}\n", "dim"
            yield from paint(line, coloured)
            yield "\n", ""


def paint(line: Line, coloured: bool) -> Iterator[tuple[str, str]]:
    """Yield the pieces of a line with their styles, in Rich's words."""
    for index, piece in enumerate(line.pieces):
        yield (piece.before if index else ""), ""
        text = visible_lines(piece.text)
        share = piece.score / line.largest if line.largest else piece.score
        if piece.mark:
            yield (text, _style(share, True)) if coloured else (text.join(BRACKETS[piece.mark]), "")
        elif piece.special:
            yield text + piece.note, "dim"
        elif not piece.positions:
            yield text, ""
        elif coloured and math.isfinite(share):
            yield text, _style(share, line.signed)
        else:
            yield f"{text}({_digit(share, line.signed)})", ""


def _style(share: float, signed: bool) -> str:
    """Return the style of a score, -1 to 1 of the largest, in Rich's words: black or white on a colour; "" for none."""
    scale, level = shade(share, 1.0, signed)
    colours = step("light", scale, level) if scale else None
    return "" if colours is None else f"{colours.text} on {colours.background}"


def _digit(share: float, signed: bool) -> str:
    """Return a score as a digit from 0 to 9, with its sign where scores have one; "?" where it is not finite."""
    if not math.isfinite(share):
        return "?"
    figure = round(MOST * max(-1.0, min(1.0, share)))
    return f"{figure:+d}" if signed and figure else str(abs(figure))


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


def scores_legend(what: str, signed: bool, coloured: bool) -> str:
    """Return the legend of the colours or digits of several lines, each on its own scale, that show `what`."""
    if coloured:
        return f"{what}: orange is above zero, blue below" if signed else f"{what}: the darker, the more"
    return f"{what}, {f'-{MOST} to +{MOST}' if signed else f'0 to {MOST}'}; {MOST} is the example's largest"


def changes_legend(coloured: bool) -> str:
    """Return the legend of the colours or brackets of changes."""
    return "blue: replaced or deleted, orange: put in" if coloured else "[-…-]: replaced or deleted, {+…+}: put in"
