"""Pairs of texts as a picture: both texts as columns, and lines between their tokens whose strength is the score."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.display.colours import LEVELS, tint
from embgrad.display.html import Html, tag
from embgrad.display.lines import Piece, TokenMatrix, piece_name

__all__ = ["lines_between"]

#: The height of a row, the width of a text and of the space between both, and of a letter, in pixels.
ROW, TEXT, BETWEEN, LETTER = 22, 190, 260, 7.4

#: The most letters of a token, and the share of the largest score below which a line is left out.
MOST_LETTERS: Final = 24
FAINTEST: Final = 0.05

#: The most lines that are drawn, those with the largest scores.
MOST_LINES: Final = 400


def lines_between(matrix: TokenMatrix) -> Html:
    """Return a picture of one pair: the first text on the left, the second on the right, and lines between their tokens.

    The width and the strength of a line follow the size of its score; blue is below zero, orange above, as elsewhere.
    """
    rows, columns = matrix.outputs, matrix.inputs
    height = ROW * (max(len(rows), len(columns)) + 1)
    largest = matrix.largest
    sizes = np.abs(np.nan_to_num(matrix.scores))
    order = [divmod(int(index), len(columns)) for index in np.argsort(-sizes, axis=None)[:MOST_LINES]]
    shown = [(row, column) for row, column in order if largest and sizes[row, column] >= FAINTEST * largest]
    lines = [_line(matrix, row, column, min(sizes[row, column] / largest, 1.0)) for row, column in reversed(shown)]
    return tag(
        "svg",
        tag("title", f"lines between the texts: {matrix.summary}"),
        lines,
        [_text(piece, row, TEXT - 8, "end") for row, piece in enumerate(rows)],
        [_text(piece, column, TEXT + BETWEEN + 8, "start") for column, piece in enumerate(columns)],
        viewBox=f"0 0 {2 * TEXT + BETWEEN} {height}",
        width=2 * TEXT + BETWEEN,
        role="img",
        style="max-width:100%;height:auto;font-family:system-ui,sans-serif;font-size:13px;display:block",
    )


def _line(matrix: TokenMatrix, row: int, column: int, share: float) -> Html:
    score = float(matrix.scores[row, column])
    title = f"{score:+.4g}: {piece_name(matrix.outputs[row])} – {piece_name(matrix.inputs[column])}"
    return tag(
        "line",
        tag("title", title),
        x1=TEXT,
        y1=_height(row),
        x2=TEXT + BETWEEN,
        y2=_height(column),
        stroke=tint("m" if score < 0 else "p", LEVELS, 1.0),
        stroke_opacity=f"{share:.3f}",
        stroke_width=f"{1 + 3 * share:.2f}",
    )


def _height(index: int) -> float:
    return ROW * (index + 1)


def _text(piece: Piece, index: int, x: float, anchor: str) -> Html:
    name = piece_name(piece)
    shown = name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
    return tag(
        "text",
        shown,
        x=x,
        y=_height(index) + 4,
        text_anchor=anchor,
        fill="currentColor",
        fill_opacity=".6" if piece.special else None,
    )
