"""The pieces of a text as it is displayed: tokens, words, spans or sentences with their scores, by one or several methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from embgrad.common.text import visible
from embgrad.common.token_text import show_token, token_text
from embgrad.display.lines import Line, Piece
from embgrad.errors import EmbgradError, brief, did_you_mean, quote
from embgrad.results.segments import check_parts, segments_of
from embgrad.results.spans import Span, parts_of
from embgrad.results.words import Word, is_special

__all__ = ["Unit", "is_of_segments", "lines_of", "pieces_of", "source_text", "unit_of"]

#: The units of a text whose scores can be shown.
UNITS: Final = ("tokens", "words", "spans", "sentences", "segments")

#: A unit, or parts of the text by name.
Unit: TypeAlias = str | Mapping[str, Any]

#: The marks of byte-pair and sentence pieces at the beginning of a word.
STARTS: Final = ("Ġ", "▁")

#: The separator of the texts of a pair where there is no special token between them.
PAIR: Final = " | "


def lines_of(
    attributions: Mapping[str, Any], examples: Sequence[int], by: Unit | None, special: bool, fallback: Sequence[str]
) -> list[list[Line]]:
    """Return for each example its lines, one for each attribution.

    Args:
        attributions: the attributions by name; of one batch.
        by: one of `UNITS`, or parts of the text by name; None for the first of `fallback` that all attributions have.
    """
    unit = unit_of(list(attributions.values()), by, fallback)
    whole = [pieces_of(attribution, unit, examples, special) for attribution in attributions.values()]
    return [
        [
            Line(
                label=visible(name),
                summary=_summary(attribution, example),
                example=example,
                pieces=tuple(pieces),
                signed=attribution.signed,
            )
            for (name, attribution), pieces in zip(attributions.items(), of_each, strict=True)
        ]
        for example, *of_each in zip(examples, *whole, strict=True)
    ]


def unit_of(attributions: Sequence[Any], by: Unit | None, fallback: Sequence[str]) -> Unit:
    """Return the unit `by`, or for None the first of `fallback` that all attributions have."""
    if isinstance(by, Mapping):
        check_parts(by)
        return by
    if by is not None and (not isinstance(by, str) or by not in UNITS):
        raise EmbgradError(f"by is {brief(by)}: expected one of {quote(UNITS)}, or None.{did_you_mean(str(by), UNITS)}")
    has = {
        "tokens": True,
        "words": all(attribution.tokens is not None for attribution in attributions),
        "spans": all(attribution.offsets is not None for attribution in attributions),
    }
    return by or next(unit for unit in fallback if has[unit])


def is_of_segments(unit: Unit) -> bool:
    """Return whether a unit is the segments of a text, which have names."""
    return unit == "segments" or not isinstance(unit, str)


def _summary(attribution: Any, example: int) -> str:
    parts = [
        f"{attribution.method} at {attribution.provenance.get('point')}",
        f"L = {attribution.objective[example]:.4g}",
    ]
    if attribution.baseline_objective is not None:
        parts.append(f"at the baseline {attribution.baseline_objective[example]:.4g}")
    return visible(", ".join(parts))


def pieces_of(source: Any, unit: Unit, examples: Sequence[int], special: bool) -> list[list[Piece]]:
    """Return the pieces of examples, with special tokens or without.

    Args:
        source: an attribution, or another object with its `ids`, `real`, `tokens`, `parts` and `scores`, for words with `words`
            and `offsets` too.
        unit: one of `UNITS`, or parts of the text by name.
    """
    if unit in ("spans", "sentences"):
        spans = source.spans() if unit == "spans" else source.sentences()
        return [_of_text(source, example, spans[example], special) for example in examples]
    if is_of_segments(unit):
        parts = None if isinstance(unit, str) else unit
        return [_segments(source, each, parts, special) for each in examples]
    words = source.words() if unit == "words" else None
    made = [_tokens(source, each) if words is None else _words(source, each, words[each]) for each in examples]
    return [[piece for piece in pieces if special or not piece.special] for pieces in made]


def _segments(source: Any, example: int, parts: Mapping[str, Any] | None, special: bool) -> list[Piece]:
    scores = source.scores[example]
    return [
        Piece(name, positions, float(source._merge(scores[list(positions)])), only_special, " ")
        for name, positions, only_special in segments_of(source, example, parts, special)
    ]


def _words(source: Any, example: int, words: Sequence[Word]) -> list[Piece]:
    """Return the words; as the user wrote them where their tokens' offsets are known, since tokens may be in small letters."""
    pieces = []
    for word in words:
        text = "" if source.offsets is None else source_text(source, example, word.positions)
        special = is_special(source, example, word.positions[0])
        pieces.append(Piece(text or show_token(word.text), word.positions, word.saliency, special, " "))
    return pieces


def source_text(attribution: Any, example: int, positions: Sequence[int]) -> str:
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
        pieces.append(Piece(show_token(token), (position,), float(scores[position]), special, before))
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
    text = str(attribution.ids[example, position]) if token is None else show_token(token)
    return Piece(text, (position,), float(attribution.scores[example, position]), True, " ")
