"""The user's text in pieces, character for character, with the scores of the tokens in them."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

__all__ = ["Span", "parts_of", "places_in_text", "places_of_characters", "sentences_of", "spans_of"]

#: The possible ends of a sentence: full stops with the quotes and brackets after them and white space, which the full stops of
#: Chinese and Japanese need not have; and line ends.
SENTENCE_END: Final = re.compile(
    r"""(?<![.!?…؟।])[.!?…؟।]+["'”’»)\]]*\s+|[。！？｡]+["'”’」』）]*\s*|[\n\r\u2028\u2029]\s*"""
)


class Span(NamedTuple):
    """A piece of the user's text.

    Attributes:
        text: the characters as the user wrote them.
        positions: the positions of the tokens that stand for them; none for white space between tokens, and for what a tokenizer
            leaves or cuts off.
        score: the score of these positions together, 0.0 where there are none.
        part: 0, or 1 in the second text of a pair.
    """

    text: str
    positions: tuple[int, ...]
    score: float
    part: int


#: Returns the score of several positions together from theirs, an array.
Merge = Callable[[np.ndarray], Any]


def parts_of(text: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts of an example: one, or both of a pair."""
    return (text,) if isinstance(text, str) else text


def spans_of(
    text: str | tuple[str, ...],
    offsets: np.ndarray,
    parts: np.ndarray,
    real: np.ndarray,
    scores: np.ndarray,
    merge: Merge,
) -> list[Span]:
    """Return an example's text in pieces, whose `text` joined is the text, for a pair both texts, one after the other.

    Tokens that share a character are one span.

    Args:
        offsets: the characters of each token, (position, 2).
        parts: the index of the text that they count in, (position,), -1 for none.
        real: true at real positions, (position,).
        scores: the scores of positions, (position,).
        merge: returns the score of several positions together.
    """
    spans = []
    for part, whole in enumerate(parts_of(text)):
        end = 0
        for start, stop, positions in _merge(offsets, np.flatnonzero(real & (parts == part))):
            if start > end:
                spans.append(Span(whole[end:start], (), 0.0, part))
            spans.append(Span(whole[start:stop], positions, float(merge(scores[list(positions)])), part))
            end = stop
        if end < len(whole):
            spans.append(Span(whole[end:], (), 0.0, part))
    return spans


def places_in_text(
    wanted: str, text: str | tuple[str, ...], offsets: np.ndarray, parts: np.ndarray, real: np.ndarray
) -> list[np.ndarray]:
    """Return the positions of the tokens that stand for some characters, at each place in an example's text or texts.

    Args:
        wanted: the characters, without white space around them.
    """
    found = []
    for part, whole in enumerate(parts_of(text)):
        own = real[parts[real] == part]
        found += places_of_characters(wanted, whole, own, offsets[own])
    return found


def places_of_characters(wanted: str, whole: str, positions: np.ndarray, offsets: np.ndarray) -> list[np.ndarray]:
    """Return the positions of tokens that stand for a text and white space around it, at each of its places in a whole text."""
    found = []
    start = whole.find(wanted)
    while start >= 0:
        end = start + len(wanted)
        own = (offsets[:, 0] < end) & (offsets[:, 1] > start)
        if own.any():
            first, last = offsets[own, 0].min(), offsets[own, 1].max()
            if not (whole[first:start] + whole[end:last]).strip():
                found.append(positions[own])
        start = whole.find(wanted, start + 1)
    return found


def _merge(offsets: np.ndarray, positions: np.ndarray) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return the runs of characters with their positions, in the order of the text; those that share a character are one."""
    runs: list[tuple[int, int, tuple[int, ...]]] = []
    for position in sorted(positions.tolist(), key=lambda position: (*offsets[position].tolist(), position)):
        start, end = offsets[position].tolist()
        if runs and start < runs[-1][1]:
            first, last, before = runs.pop()
            start, end, members = first, max(last, end), (*before, position)
        else:
            members = (position,)
        runs.append((start, end, tuple(sorted(members))))
    return runs


def sentences_of(spans: Sequence[Span], scores: np.ndarray, merge: Merge) -> list[Span]:
    """Return the sentences of an example's spans; `text` joined is still the text.

    A token belongs to the sentence in which its first character other than white space stands.
    """
    sentences = []
    for part in sorted({span.part for span in spans}):
        spans_of_part = [span for span in spans if span.part == part]
        whole = "".join(span.text for span in spans_of_part)
        ends = _ends(whole)
        members: list[list[int]] = [[] for _ in ends]
        start = 0
        for span in spans_of_part:
            first = start + len(span.text) - len(span.text.lstrip() or span.text)
            index = bisect_right(ends, first)
            members[index].extend(span.positions)
            start += len(span.text)
        for start, end, positions in zip([0, *ends], ends, members, strict=False):
            score = float(merge(scores[positions])) if positions else 0.0
            sentences.append(Span(whole[start:end], tuple(positions), score, part))
    return sentences


def _ends(text: str) -> list[int]:
    """Return the indices after the sentences of a text that is not empty, the last of which is its length.

    A full stop before white space in one line and a small letter, as in "e.g. this", ends no sentence.
    """
    ends = []
    for match in SENTENCE_END.finditer(text):
        goes_on = match[0].isprintable() and text[match.end() : match.end() + 1].islower()
        if not goes_on and text[: match.end()].strip():
            ends.append(match.end())
    return ends if ends and ends[-1] == len(text) else [*ends, len(text)]
