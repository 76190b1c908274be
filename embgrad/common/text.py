"""Text of unknown origin made fit to be seen: what would be invisible, or turn its surroundings round, is spelled out."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Final

__all__ = ["MOST_MARKS", "visible", "visible_lines"]

#: The most marks on one letter; what is more would reach into the lines above and below. Hebrew's has five.
MOST_MARKS: Final = 8

_NAMES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\u00a0": "⍽", "\u2028": "\\u2028", "\u2029": "\\u2029"}

#: Categories that have no glyph of their own: control, format, surrogate, private, unassigned, line and paragraph ends.
_UNSEEN: Final = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

#: Letters and a symbol that are blank, whatever their category says: Hangul's fillers, and Braille's pattern without dots.
_BLANK: Final = "\u115f\u1160\u3164\uffa0\u2800"

#: They join and part letters and emoji, and are seen by what they do.
_JOINERS: Final = "\u200c\u200d"

_MARKS: Final = {"Mn", "Me"}


def visible(text: object) -> str:
    """The text with control characters, marks that turn the writing round and lone surrogates as \\x00 or \\u202e.

    What is left is in one line, can be seen, and can be written in UTF-8.
    """
    whole = str(text)
    return whole if whole.isascii() and whole.isprintable() else "".join(_shown(whole))


def visible_lines(text: object) -> str:
    """The same of a text of several lines, whose ends stay."""
    return "\n".join(map(visible, str(text).split("\n")))


def _shown(text: str) -> Iterator[str]:
    marks = 0
    for place, character in enumerate(text):
        kind = unicodedata.category(character)
        marks = marks + 1 if kind in _MARKS else 0
        if character in _NAMES:
            yield _NAMES[character]
        elif marks > MOST_MARKS or character in _BLANK:
            yield _number(character)
        elif kind not in _UNSEEN or (character in _JOINERS and 0 < place < len(text) - 1):
            yield character
        else:
            yield _number(character)


def _number(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
