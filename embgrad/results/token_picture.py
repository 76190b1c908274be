"""A matrix of output tokens as a heat map of Matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from embgrad.common.colours import shade, step
from embgrad.results.pictures import ABSENT, MOST_HIGH, MOST_WIDE, as_they_are, colour_scale, cut, new_axes
from embgrad.results.pieces import Piece

__all__ = ["matrix_picture"]

#: The side of a cell in inches, and the least space of a label.
CELL, LEAST_LABEL = 0.24, 0.13

#: The most characters of a label, and the size of its letters in points.
MOST_BESIDE, SMALL = 20, 8

#: The share of the user's axes that remains beside the scale of the colours; of a new figure the labels take more.
BESIDE_SCALE, BESIDE_LABELS = 0.85, 0.75


def matrix_picture(matrix: Any, ax: Any) -> Any:
    """Return axes with a cell for each score, the outputs beside the rows and the inputs under the columns.

    Args:
        matrix: a `TokenMatrix`.
        ax: the axes, or None for a new figure.
    """
    rows, columns = matrix.scores.shape
    cell = min(CELL, (MOST_WIDE - 2.4) / columns, (MOST_HIGH - 1.6) / rows)
    share = BESIDE_SCALE if ax is not None else BESIDE_LABELS
    ax = new_axes(ax, max(3.4, 2.4 + cell * columns), max(2.6, 1.6 + cell * rows))
    ax.imshow(_colours(matrix), aspect="auto", interpolation="nearest")
    for row, column in np.argwhere(~np.isfinite(matrix.scores) & matrix.earlier).tolist():
        ax.text(column, row, "?", ha="center", va="center", fontsize=SMALL, clip_on=True)
    size = ax.get_window_extent()
    _label(ax.set_yticks, matrix.outputs, size.height * share / ax.figure.dpi)
    _label(ax.set_xticks, matrix.inputs, size.width * share / ax.figure.dpi, rotation=90)
    as_they_are([*ax.get_yticklabels(), *ax.get_xticklabels()])
    _lines_between(ax, rows, columns)
    if len(matrix.texts) > 1:
        ax.axvline(matrix.split - 0.5, color="0.2", linewidth=1.2)
    ax.set_xlabel("input" if len(matrix.texts) == 1 else "input: of the encoder, then of the decoder")
    ax.set_ylabel("output")
    method = matrix.summary.partition(" ")[0]
    colour_scale(ax, matrix.largest, matrix.signed, f"score by {method}")
    return ax


def _colours(matrix: Any) -> np.ndarray:
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
    every = max(1, math.ceil(len(pieces) * LEAST_LABEL / max(inches, LEAST_LABEL)))
    chosen = range(0, len(pieces), every)
    set_ticks(chosen, [cut(pieces[index].text, MOST_BESIDE) for index in chosen], fontsize=SMALL, **how)


def _lines_between(ax: Any, rows: int, columns: int) -> None:
    """Draw white lines between cells, where these are large enough."""
    if max(rows, columns) > 80:
        return
    ax.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=1)
    ax.tick_params(which="minor", length=0)
    for spine in ax.spines.values():
        spine.set_visible(False)
