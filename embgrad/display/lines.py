"""Lines of pieces of text with their scores, or with the changes of a search, and matrices of them, for every form of output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.common.arrays import as_asked
from embgrad.common.text import visible
from embgrad.common.token_text import token_text
from embgrad.errors import EmbgradError, brief

__all__ = ["GAP", "MOST_PIECES", "Line", "Piece", "TokenMatrix", "examples_of", "first_of", "note_of", "piece_name"]

#: What stands between outputs that are not next to each other.
GAP: Final = " … "

#: The most pieces of a line on a page of results side by side and in a notebook; and the most examples and pieces in a notebook.
MOST_PIECES: Final = 512
MOST_EXAMPLES, MOST_IN_CELL = 10, 2_000


class Piece(NamedTuple):
    """A piece of a text as it is displayed.

    Attributes:
        text: the text; in spans and sentences the user's characters.
        positions: the positions of its tokens; none for a text without a score, such as white space between tokens.
        score: their score together.
        special: whether it is a special token, or another token without characters in the text.
        before: what separates it from the piece before it: "", white space, or a sign between two texts.
        title: what a pointer on it shows; "" for its score and positions.
        mark: "replaced", "deleted" or "added" where a search changed it, which its score of -1 or 1 colours; else "".
    """

    text: str
    positions: tuple[int, ...]
    score: float
    special: bool
    before: str
    title: str = ""
    mark: str = ""

    @property
    def note(self) -> str:
        """A score that is not finite, and so has no colour, in brackets after the text, such as " (nan)"; "" for others."""
        return "" if math.isfinite(self.score) else f" ({self.score})"


@dataclass(frozen=True)
class Line:
    """One example by one method, or one of the two texts of a search.

    Attributes:
        label: the name of the method among several, without invisible characters; else "".
        summary: the method, the point and the objective in words.
        signed: whether scores may be below zero.
        scale: the size of the score that has full colour; None for `largest` of the pieces.
    """

    label: str
    summary: str
    example: int
    pieces: tuple[Piece, ...]
    signed: bool
    scale: float | None = None

    @cached_property
    def largest(self) -> float:
        """The size of the score that has full colour: the largest of ordinary pieces, or else of special tokens."""
        if self.scale is not None:
            return self.scale
        for special in (False, True):
            sizes = [
                abs(piece.score) for piece in self.pieces if piece.special == special and math.isfinite(piece.score)
            ]
            if any(sizes):
                return max(sizes)
        return 0.0

    def cut(self, most: int) -> Line:
        """Return the line with at most so many pieces, on the same scale, and the number of those left out in its summary."""
        if len(self.pieces) <= most:
            return self
        summary = ", ".join(filter(None, (self.summary, f"the first {most} of {len(self.pieces)} tokens")))
        return replace(self, summary=summary, pieces=self.pieces[:most], scale=self.largest)


@dataclass(frozen=True, eq=False)
class TokenMatrix:
    """The contributions of one example's inputs to its outputs, each a token, a word, a span or a sentence.

    A score of several tokens is the sum of their scores over both axes, by `Saliency` the root of the sum of squares.

    Attributes:
        example: the index of the example.
        outputs: the outputs, one for each row; their `positions` are columns of `ids`, in an encoder-decoder of `decoder_ids`,
            and their `score` is L, of several tokens the sum.
        texts: the inputs as texts: of the batch, and in an encoder-decoder of its decoder after it; with the white space between
            them, which has no `positions`. The `score` of a piece is that of its whole column.
        scores: the contributions, float64, shape (output, input).
        earlier: true where a token of the input stands before one of the output, likewise; always true for the encoder's.
            Elsewhere the score is 0, since nothing can contribute there; in a model that is not causal, where it is not 0, true.
        signed: whether a score may be below zero.
        summary: the method, the point and the model in words.
        names: what the rows and the columns are, in the plural.
        value: what the `score` of an output is.
    """

    example: int
    outputs: tuple[Piece, ...]
    texts: tuple[tuple[Piece, ...], ...]
    scores: np.ndarray
    earlier: np.ndarray
    signed: bool
    summary: str
    names: tuple[str, str] = ("outputs", "inputs")
    value: str = "L"

    @cached_property
    def inputs(self) -> tuple[Piece, ...]:
        """The inputs, one for each column: the pieces of `texts` that stand for tokens."""
        return tuple(piece for pieces in self.texts for piece in pieces if piece.positions)

    @property
    def split(self) -> int:
        """The number of columns of the first text, after which in an encoder-decoder the decoder's begin."""
        return sum(bool(piece.positions) for piece in self.texts[0])

    @cached_property
    def largest(self) -> float:
        """The size of the score that has full colour in the matrix: the largest of ordinary inputs, or else of special tokens."""
        return max(line.largest for line in self.lines())

    def lines(self) -> list[Line]:
        """Return for each output a text of the inputs that can contribute to it, with their scores."""
        return [self._line(row, output) for row, output in enumerate(self.outputs)]

    def _line(self, row: int, output: Piece) -> Line:
        pieces, column = [], 0
        for side, text in enumerate(self.texts):
            for index, piece in enumerate(text):
                reached = bool(self.earlier[row, column]) if piece.positions else any(self.earlier[row, column:])
                if reached:
                    score = float(self.scores[row, column]) if piece.positions else 0.0
                    before = GAP if side and not index else piece.before
                    pieces.append(piece._replace(score=score, before=before))
                column += bool(piece.positions)
        return Line(piece_name(output), f"{self.value} = {output.score:.4g}", self.example, tuple(pieces), self.signed)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the scores, for `np.asarray` and all NumPy functions: the array itself, unless a copy is requested."""
        return as_asked(self.scores, dtype, copy)

    def __repr__(self) -> str:
        return f"TokenMatrix({' × '.join(map(str, self.scores.shape))}, example {self.example}, {self.summary})"


def piece_name(piece: Piece) -> str:
    """Return a piece's text in one line that is never empty nor invisible."""
    return visible(" ".join(piece.text.split())) or token_text(piece.text)


def examples_of(examples: Any, count: int) -> list[int]:
    """Return the indices of the examples to show.

    Args:
        examples: an index, negative ones counting from the end; a slice or a list of indices; None for all.
    """
    if examples is None or isinstance(examples, slice):
        chosen = list(range(count))[examples or slice(None)]
    else:
        indices = list(examples) if isinstance(examples, (list, tuple, range, np.ndarray)) else [examples]
        whole = all(isinstance(index, (int, np.integer)) and not isinstance(index, bool) for index in indices)
        if not whole or not all(-count <= index < count for index in indices):
            raise EmbgradError(
                f"examples is {brief(examples)}: expected an index from 0 to {count - 1}, a list or slice, or None for all"
            )
        chosen = [int(index) % count for index in indices]
    if not chosen:
        raise EmbgradError(f"examples is {brief(examples)}, which is none of the {count}: expected one at least")
    return chosen


def first_of(lengths: Sequence[int], rest: str) -> tuple[int, str]:
    """Return how many examples a notebook's cell shows, at least one, and a sentence about the others, "" where there are none.

    Args:
        lengths: the number of pieces of each example.
        rest: what shows all examples, such as "to_html() returns all".
    """
    within = int((np.cumsum(lengths) <= MOST_IN_CELL).sum())
    shown = max(1, min(within, MOST_EXAMPLES))
    return shown, note_of(shown, len(lengths), rest)


def note_of(shown: int, count: int, rest: str) -> str:
    """Return the sentence about the others where a notebook's cell shows so many of the examples at most; "" for none."""
    return f"the first {shown} of {count} examples; {rest}" if shown < count else ""
