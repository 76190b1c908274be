"""Results as pictures of Matplotlib: bars for one text, a heat map for several texts or methods, errors and L by steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.common.colours import LEVELS, PALETTES, shade, step
from embgrad.common.text import visible
from embgrad.errors import EmbgradError
from embgrad.results.pieces import Line, Piece

__all__ = ["ABSENT", "as_they_are", "bars", "colour_scale", "convergence", "course", "cut", "heat_map", "new_axes"]

#: The most characters of a text beside a bar.
MOST_BESIDE: Final = 40

#: The largest width and height of a figure in inches.
MOST_WIDE, MOST_HIGH = 18.0, 40.0

#: The width and height of a cell in inches, and the least height of one with a text in it.
CELL, ROW, LEAST_ROW = 0.72, 0.42, 0.14

#: The size of letters in a heat map in points, their width in inches, and the fewest characters that a cell is written for.
SMALL, LETTER, FEWEST = 8, 0.07, 5

#: The grey of cells beyond the end of a text, and the share of the user's axes that remains beside the scale of the colours.
ABSENT, BESIDE_SCALE = 0.93, 0.8

#: Characters beyond which no text in a cell is longer.
MOST_INSIDE: Final = 24


def bars(line: Line, ax: Any) -> Any:
    """Return axes with a bar for each piece of a text, from top to bottom, coloured by sign; special tokens are faint."""
    pieces = [piece for piece in line.pieces if piece.positions]
    scores = np.array([piece.score for piece in pieces])
    ax = new_axes(ax, 6.4, 0.8 + 0.26 * len(pieces))
    palette = PALETTES["light"]
    colours = [palette["n" if not line.signed else "p" if score > 0 else "m"] for score in scores]
    drawn = ax.barh(np.arange(len(pieces)), np.where(np.isfinite(scores), scores, np.nan), color=colours)
    for bar, piece in zip(drawn, pieces, strict=True):
        bar.set_alpha(0.4 if piece.special else 1.0)
    high = 72 * ax.get_window_extent().height / ax.figure.dpi / max(1, len(pieces))
    ax.set_yticks(
        np.arange(len(pieces)),
        [cut(piece.text, MOST_BESIDE) + piece.note for piece in pieces],
        fontsize=min(10, 0.95 * high),
    )
    as_they_are(ax.get_yticklabels())
    ax.set_ylim(len(pieces) - 0.4, -0.6)
    ax.axvline(0, color="0.4", linewidth=0.8)
    ax.set_xlabel(f"score by {line.summary.partition(',')[0]}")
    return ax


def heat_map(lines: Sequence[Line], names: Sequence[str], each: bool, ax: Any) -> Any:
    """Return axes with a row for each line and a cell for each piece, and the scale of the colours beside them.

    Args:
        lines: the texts by one method, or a text by several methods.
        names: what stands beside the rows.
        each: whether each row has colours by its own largest score, as methods have whose scores are of different sizes.
        ax: the axes, or None for a new figure.
    """
    rows = [[piece for piece in line.pieces if piece.positions] for line in lines]
    columns = max(1, *map(len, rows))
    largest = max(line.largest for line in lines)
    cell = min(CELL, MOST_WIDE / columns)
    high = min(ROW, MOST_HIGH / len(rows))
    if ax is None:
        ax = new_axes(None, 2.2 + cell * columns, max(1.8, 0.8 + high * len(rows)))
    else:
        size = new_axes(ax, 0, 0).get_window_extent()
        cell = size.width * BESIDE_SCALE / ax.figure.dpi / columns
        high = size.height / ax.figure.dpi / len(rows)
    written = cell >= FEWEST * LETTER and high >= LEAST_ROW
    from matplotlib.colors import to_rgb

    colours = np.full((len(rows), columns, 3), ABSENT)
    for index, (line, row) in enumerate(zip(lines, rows, strict=True)):
        for column, piece in enumerate(row):
            scale, level = shade(piece.score, line.largest if each else largest, line.signed)
            drawn = step("light", scale or "n", level)
            colours[index, column] = to_rgb(drawn.background)
            if written:
                _write(ax, column, index, piece, cell, drawn.text)
    ax.imshow(colours, aspect="auto")
    ax.set_yticks(np.arange(len(rows)), names)
    as_they_are(ax.get_yticklabels())
    ax.set_xticks([])
    signed = [line.signed for line in lines]
    label = "share of the largest" if each else "score"
    more = ",\npurple: no sign" if len({*signed}) > 1 else ""
    colour_scale(ax, 1.0 if each else largest, any(signed), label + more)
    return ax


def colour_scale(ax: Any, largest: float, signed: bool, label: str) -> None:
    """Draw the scale of the colours beside axes.

    Args:
        ax: the axes.
        largest: the score of full colour; 0 where all scores are zero.
        signed: whether the scale goes below zero.
        label: what stands beside the scale.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    levels = range(-LEVELS if signed else 0, LEVELS + 1)
    steps = [step("light", "n" if not signed else "p" if level > 0 else "m", abs(level)).background for level in levels]
    end = largest or 1.0
    ax.figure.colorbar(ScalarMappable(Normalize(-end if signed else 0, end), ListedColormap(steps)), ax=ax, label=label)


def _write(ax: Any, column: int, row: int, piece: Piece, width: float, colour: str) -> None:
    """Write a text into its cell, of this width in inches; a special token in italics."""
    most = min(MOST_INSIDE, int(width / LETTER))
    text = cut(piece.text, max(1, most - len(piece.note))) + piece.note
    style = "italic" if piece.special else "normal"
    as_they_are(
        [ax.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=colour, style=style, clip_on=True)]
    )


def convergence(attributions: Mapping[str, Any], ax: Any) -> Any:
    """Return axes with the error of completeness by the number of steps, a line for each example, both in powers of ten.

    Raises:
        EmbgradError: an attribution has no `delta`, or its method has no steps.
    """
    for name, attribution in attributions.items():
        if attribution.delta is None or "steps" not in attribution.provenance["method"]:
            raise EmbgradError(
                f"the attribution {name!r} by {attribution.method} has no steps whose error could be drawn: expected "
                "attributions by embgrad.methods.IntegratedGradients with several numbers of steps"
            )
    by_steps = sorted(attributions.values(), key=_steps)
    steps = [_steps(attribution) for attribution in by_steps]
    errors = np.abs([attribution.delta for attribution in by_steps])
    ax = new_axes(ax, 6.4, 4.0)
    for example in range(errors.shape[1]):
        ax.plot(steps, errors[:, example], marker="o", label=f"example {example}")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(steps, map(str, steps))
    ax.minorticks_off()
    ax.set_xlabel("steps")
    ax.set_ylabel("|delta|")
    if 1 < errors.shape[1] <= 10:
        ax.legend()
    return ax


def course(lines: Sequence[Any], ax: Any) -> Any:
    """Return axes with L by the step of a search, a line for each example, and the L of the stopping rule as a dashed line."""
    ax = new_axes(ax, 6.4, 4.0)
    for line in lines:
        marker = "o" if len(line.objective) == 1 else None  # a line through a single point is invisible
        ax.plot(np.arange(len(line.objective)), line.objective, marker=marker, label=f"example {line.example}")
    for until in {line.until for line in lines} - {None}:
        ax.axhline(until, color="0.4", linewidth=0.8, linestyle="--")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("step")
    ax.set_ylabel("L")
    if 1 < len(lines) <= 10:
        ax.legend()
    return ax


def new_axes(ax: Any, width: float, height: float) -> Any:
    """Return the user's axes, or those of a new figure of this size in inches.

    Raises:
        EmbgradError: Matplotlib is not installed, or `ax` are no axes of it.
    """
    if ax is not None and not (hasattr(ax, "barh") and hasattr(ax, "figure")):
        raise EmbgradError(f"ax is of type {type(ax).__name__}: expected Matplotlib's Axes, or None for a new figure")
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise EmbgradError(
            f"pictures need the package 'matplotlib', which cannot be imported ({error}): pip install 'embgrad[plot]'"
        ) from error
    return plt.subplots(figsize=(min(width, MOST_WIDE), min(height, MOST_HIGH)), layout="constrained")[1]


def as_they_are(texts: Any) -> None:
    """Show texts of the user as they are, dollars and backslashes included."""
    for text in texts:
        text.set_parse_math(False)
        text.set_usetex(False)


def cut(text: str, most: int) -> str:
    """Return a text in one line of at most so many characters."""
    whole = visible(" ".join(text.split()) or "␣")
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"


def _steps(attribution: Any) -> int:
    """Return the number of steps; the largest that an example took where a tolerance doubled them."""
    method = attribution.provenance["method"]
    return int(max(method.get("steps_taken") or [method["steps"]]))
