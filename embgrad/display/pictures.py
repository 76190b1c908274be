"""Pictures of Matplotlib: bars of a text, heat maps of texts, methods and matrices, L by steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.common.text import visible
from embgrad.display.colours import LEVELS, PALETTES, shade, step
from embgrad.display.lines import Line, Piece, TokenMatrix
from embgrad.errors import EmbgradError

__all__ = ["bars", "heat_map", "matrix_picture", "new_axes", "objective_by_step"]

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

#: Of a matrix the side of a cell in inches, the least space of a label, and the most characters of one.
SMALL_CELL, LEAST_LABEL, MOST_LABEL = 0.24, 0.13, 20

#: The share of the user's axes that remains beside the scale of a matrix; of a new figure the labels take more.
BESIDE_MATRIX, BESIDE_LABELS = 0.85, 0.75


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
        [_cut(piece.text, MOST_BESIDE) + piece.note for piece in pieces],
        fontsize=min(10, 0.95 * high),
    )
    _show_plainly(ax.get_yticklabels())
    ax.set_ylim(len(pieces) - 0.4, -0.6)
    ax.axvline(0, color="0.4", linewidth=0.8)
    ax.set_xlabel(f"score by {line.summary.partition(',')[0]}")
    return ax


def heat_map(lines: Sequence[Line], names: Sequence[str], each: bool, ax: Any) -> Any:
    """Return axes with a row for each line and a cell for each piece, and the scale of the colours beside them.

    Args:
        each: whether each row has colours by its own largest score, as methods have whose scores are of different sizes.
        ax: the axes, or None for a new figure.
    """
    rows = [[piece for piece in line.pieces if piece.positions] for line in lines]
    columns = max(1, *map(len, rows))
    largest = max(line.largest for line in lines)
    cell = min(CELL, MOST_WIDE / columns)
    high = min(ROW, MOST_HIGH / len(rows))
    is_own = ax is not None
    ax = new_axes(ax, 2.2 + cell * columns, max(1.8, 0.8 + high * len(rows)))
    if is_own:
        size = ax.get_window_extent()
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
    _show_plainly(ax.get_yticklabels())
    ax.set_xticks([])
    signed = [line.signed for line in lines]
    label = "share of the largest" if each else "score"
    more = ",\npurple: no sign" if len({*signed}) > 1 else ""
    _colour_scale(ax, 1.0 if each else largest, any(signed), label + more)
    return ax


def _colour_scale(ax: Any, largest: float, signed: bool, label: str) -> None:
    """Draw the scale of the colours beside axes.

    Args:
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
    text = _cut(piece.text, max(1, most - len(piece.note))) + piece.note
    style = "italic" if piece.special else "normal"
    _show_plainly(
        [ax.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=colour, style=style, clip_on=True)]
    )


def matrix_picture(matrix: TokenMatrix, ax: Any) -> Any:
    """Return axes with a cell for each score, the outputs beside the rows and the inputs under the columns.

    Args:
        ax: the axes, or None for a new figure.
    """
    rows, columns = matrix.scores.shape
    cell = min(SMALL_CELL, (MOST_WIDE - 2.4) / columns, (MOST_HIGH - 1.6) / rows)
    share = BESIDE_MATRIX if ax is not None else BESIDE_LABELS
    ax = new_axes(ax, max(3.4, 2.4 + cell * columns), max(2.6, 1.6 + cell * rows))
    ax.imshow(_colours(matrix), aspect="auto", interpolation="nearest")
    for row, column in np.argwhere(~np.isfinite(matrix.scores) & matrix.earlier).tolist():
        ax.text(column, row, "?", ha="center", va="center", fontsize=SMALL, clip_on=True)
    size = ax.get_window_extent()
    _label(ax.set_yticks, matrix.outputs, size.height * share / ax.figure.dpi)
    _label(ax.set_xticks, matrix.inputs, size.width * share / ax.figure.dpi, rotation=90)
    _show_plainly([*ax.get_yticklabels(), *ax.get_xticklabels()])
    _draw_lines_between(ax, rows, columns)
    if len(matrix.texts) > 1:
        ax.axvline(matrix.split - 0.5, color="0.2", linewidth=1.2)
    beside, below = (name.removesuffix("s") for name in matrix.names)
    ax.set_xlabel(below if len(matrix.texts) == 1 else f"{below}: of the encoder, then of the decoder")
    ax.set_ylabel(beside)
    method = matrix.summary.partition(" ")[0]
    _colour_scale(ax, matrix.largest, matrix.signed, f"score by {method}")
    return ax


def _colours(matrix: TokenMatrix) -> np.ndarray:
    """Return the colours of the cells, shape (output, input, 3); grey where nothing can contribute."""
    from matplotlib.colors import to_rgb

    levels = {("", 0): np.ones(3)}
    colours = np.full((*matrix.scores.shape, 3), ABSENT)
    for row, column in np.argwhere(matrix.earlier).tolist():
        shaded = shade(float(matrix.scores[row, column]), matrix.largest, matrix.signed)
        if shaded not in levels:
            levels[shaded] = np.array(to_rgb(step("light", *shaded).background))
        colours[row, column] = levels[shaded]
    return colours


def _label(set_ticks: Any, pieces: Sequence[Piece], inches: float, **how: Any) -> None:
    """Write the texts at an axis of this length, at every second or third where there is no space for all."""
    every = math.ceil(len(pieces) * LEAST_LABEL / max(inches, LEAST_LABEL))
    chosen = range(0, len(pieces), every)
    set_ticks(chosen, [_cut(pieces[index].text, MOST_LABEL) for index in chosen], fontsize=SMALL, **how)


def _draw_lines_between(ax: Any, rows: int, columns: int) -> None:
    """Draw white lines between cells, where these are large enough."""
    if max(rows, columns) > 80:
        return
    ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=1)
    ax.tick_params(which="minor", length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def objective_by_step(objectives: Mapping[int, np.ndarray], bounds: Iterable[float], ax: Any) -> Any:
    """Return axes with L by the step of a search.

    Args:
        objectives: L by step of each example, by its index, a line for each.
        bounds: each L at which a search stops, for a dashed line.
        ax: the axes, or None for a new figure.
    """
    ax = new_axes(ax, 6.4, 4.0)
    for example, values in objectives.items():
        marker = "o" if len(values) == 1 else None  # a line through a single point is invisible
        ax.plot(np.arange(len(values)), values, marker=marker, label=f"example {example}")
    for bound in bounds:
        ax.axhline(bound, color="0.4", linewidth=0.8, linestyle="--")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("step")
    ax.set_ylabel("L")
    _name_lines(ax, len(objectives))
    return ax


def _name_lines(ax: Any, count: int) -> None:
    """Draw a legend of the examples' lines, where there are several and not too many."""
    if 1 < count <= 10:
        ax.legend()


def new_axes(ax: Any, width: float, height: float) -> Any:
    """Return the user's axes, or those of a new figure of this size in inches."""
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


def _show_plainly(texts: Any) -> None:
    """Show texts of the user as they are, dollars and backslashes included."""
    for text in texts:
        text.set_parse_math(False)
        text.set_usetex(False)


def _cut(text: str, most: int) -> str:
    """Return a text in one line of at most so many characters."""
    whole = visible(" ".join(text.split()) or "␣")
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"
