"""The pieces of a text as pictures show them: tokens, words, spans or sentences with their scores, by one or several methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.common.text import visible
from embgrad.common.token_text import shown_token, token_text
from embgrad.errors import EmbgradError, brief, did_you_mean, listed
from embgrad.results.spans import Span, parts_of
from embgrad.results.words import is_special

__all__ = ["Line", "Piece", "examples_of", "lines_of", "pieces_of", "unit_of", "written"]

#: The units of a text whose scores can be shown.
UNITS: Final = ("tokens", "words", "spans", "sentences")

#: The marks of byte-pair and sentence pieces at the beginning of a word.
STARTS: Final = ("Ġ", "▁")

#: The separator of the texts of a pair where there is no special token between them.
PAIR: Final = " | "


class Piece(NamedTuple):
    """A piece of a text as it is displayed.

    Attributes:
        text: the text; in spans and sentences the user's characters.
        positions: the positions of its tokens; none for white space between tokens.
        score: their score together.
        special: whether it is a special token, or another token without characters in the text.
        before: what separates it from the piece before it: "", a space, or `PAIR`.
    """

    text: str
    positions: tuple[int, ...]
    score: float
    special: bool
    before: str

    @property
    def note(self) -> str:
        """A score that is not finite, and so has no colour, in brackets after the text, such as " (nan)"; "" for others."""
        return "" if math.isfinite(self.score) else f" ({self.score})"


@dataclass(frozen=True)
class Line:
    """One example by one method.

    Attributes:
        label: the name of the method among several, without invisible characters; else "".
        summary: the method, the point and the objective in words.
        example: the index of the example.
        pieces: the pieces in order.
        signed: whether scores may be below zero.
    """

    label: str
    summary: str
    example: int
    pieces: tuple[Piece, ...]
    signed: bool

    @cached_property
    def largest(self) -> float:
        """The size of the score that has full colour: the largest of ordinary pieces, or else of special tokens."""
        for special in (False, True):
            sizes = [
                abs(piece.score) for piece in self.pieces if piece.special == special and math.isfinite(piece.score)
            ]
            if any(sizes):
                return max(sizes)
        return 0.0


def examples_of(examples: Any, count: int) -> list[int]:
    """Return the indices of the examples to show.

    Args:
        examples: an index, negative ones counting from the end; a slice or a list of indices; None for all.
        count: how many examples there are.

    Raises:
        EmbgradError: there is no such example, or none.
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


def lines_of(
    attributions: Mapping[str, Any], examples: Sequence[int], by: str | None, special: bool, fallback: Sequence[str]
) -> list[list[Line]]:
    """Return for each example its lines, one for each attribution.

    Args:
        attributions: the attributions by name; of one batch.
        examples: the indices of the examples.
        by: one of `UNITS`; None for the first of `fallback` that all attributions have.
        special: whether special tokens are shown.
        fallback: some of `UNITS`.

    Raises:
        EmbgradError: there is no such unit, or the attributions do not have it.
    """
    unit = unit_of(list(attributions.values()), by, fallback)
    whole = {name: pieces_of(attribution, unit, special) for name, attribution in attributions.items()}
    return [
        [
            Line(
                label=visible(name),
                summary=_summary(attribution, example),
                example=example,
                pieces=tuple(whole[name][example]),
                signed=attribution.signed,
            )
            for name, attribution in attributions.items()
        ]
        for example in examples
    ]


def unit_of(attributions: Sequence[Any], by: str | None, fallback: Sequence[str]) -> str:
    """Return the unit `by`, or for None the first of `fallback` that all attributions have.

    Raises:
        EmbgradError: there is no such unit.
    """
    if by is not None and (not isinstance(by, str) or by not in UNITS):
        raise EmbgradError(
            f"by is {brief(by)}: expected one of {listed(UNITS)}, or None.{did_you_mean(str(by), UNITS)}"
        )
    has = {
        "tokens": True,
        "words": all(attribution.tokens is not None for attribution in attributions),
        "spans": all(attribution.offsets is not None for attribution in attributions),
    }
    return by or next(unit for unit in fallback if has[unit])


def _summary(attribution: Any, example: int) -> str:
    parts = [
        f"{attribution.method} at {attribution.provenance.get('point')}",
        f"L = {attribution.objective[example]:.4g}",
    ]
    if attribution.baseline_objective is not None:
        parts.append(f"at the baseline {attribution.baseline_objective[example]:.4g}")
    return visible(", ".join(parts))


def pieces_of(attribution: Any, unit: str, special: bool) -> list[list[Piece]]:
    """Return the pieces of all examples, with special tokens or without."""
    examples = range(len(attribution.ids))
    if unit in ("spans", "sentences"):
        spans = attribution.spans() if unit == "spans" else attribution.sentences()
        return [_of_text(attribution, example, spans[example], special) for example in examples]
    made = _words(attribution) if unit == "words" else [_tokens(attribution, example) for example in examples]
    return [[piece for piece in pieces if special or not piece.special] for pieces in made]


def _words(attribution: Any) -> list[list[Piece]]:
    """Return the words; as the user wrote them where their tokens' offsets are known, since tokens may be in small letters."""
    pieces = []
    for example, words in enumerate(attribution.words()):
        special = [is_special(attribution, example, word.positions[0]) for word in words]
        texts = [shown_token(word.text) for word in words]
        if attribution.offsets is not None:
            texts = [
                written(attribution, example, word.positions) or text for word, text in zip(words, texts, strict=True)
            ]
        pieces.append(
            [
                Piece(text, word.positions, word.saliency, without_text, " ")
                for word, text, without_text in zip(words, texts, special, strict=True)
            ]
        )
    return pieces


def written(attribution: Any, example: int, positions: Sequence[int]) -> str:
    """Return the characters of the text that these tokens stand for, without white space around them; "" for none.

    White space alone is shown by signs, as in `token_text`.
    """
    located = [position for position in positions if attribution.parts[example, position] >= 0]
    if not located:
        return ""
    text = parts_of(attribution.texts[example])[attribution.parts[example, located[0]]]
    offsets = attribution.offsets[example, located]
    written = str(text[offsets[:, 0].min() : offsets[:, 1].max()])
    return token_text(written) if written.isspace() else written.strip()


def _tokens(attribution: Any, example: int) -> list[Piece]:
    """Return the tokens at real positions, or their ids where they are not known."""
    tokens = None if attribution.tokens is None else attribution.tokens[example]
    scores, positions = attribution.scores[example], np.flatnonzero(attribution.real[example]).tolist()
    if tokens is None:
        ids = attribution.ids[example]
        return [Piece(str(ids[position]), (position,), float(scores[position]), False, " ") for position in positions]
    has_marks = any(token.startswith(STARTS) for token in tokens)
    pieces: list[Piece] = []
    for position in positions:
        token, special = tokens[position], is_special(attribution, example, position)
        joined = token.startswith("##") or (has_marks and not token.startswith(STARTS))
        before = "" if joined and pieces and not special and not pieces[-1].special else " "
        pieces.append(Piece(shown_token(token), (position,), float(scores[position]), special, before))
    return pieces


def _of_text(attribution: Any, example: int, spans: Sequence[Span], special: bool) -> list[Piece]:
    """Return the spans, and if `special` between them the tokens that have no characters in the text."""
    without = np.flatnonzero(attribution.real[example] & (attribution.parts[example] < 0)).tolist() if special else []
    pieces: list[Piece] = []
    for index, span in enumerate(spans):
        while span.positions and without and without[0] < span.positions[0]:
            pieces.append(_without_characters(attribution, example, without.pop(0)))
        begins_part = index > 0 and span.part != spans[index - 1].part
        after_special = bool(pieces) and pieces[-1].special
        before = " " if after_special else PAIR if begins_part else ""
        pieces.append(Piece(span.text, span.positions, span.score, False, before))
    return [*pieces, *(_without_characters(attribution, example, position) for position in without)]


def _without_characters(attribution: Any, example: int, position: int) -> Piece:
    token = None if attribution.tokens is None else attribution.tokens[example][position]
    text = str(attribution.ids[example, position]) if token is None else shown_token(token)
    return Piece(text, (position,), float(attribution.scores[example, position]), True, " ")
