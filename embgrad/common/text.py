"""Escape text of unknown origin for display: invisible characters and those that reverse the text direction."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Final

__all__ = ["MOST_MARKS", "printable", "visible", "visible_lines"]

#: The most combining marks on one letter; more would overlap the lines above and below. Hebrew uses up to five.
MOST_MARKS: Final = 8

_NAMES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\u00a0": "⍽", "\u2028": "\\u2028", "\u2029": "\\u2029"}

#: Unicode categories without visible glyphs: control, format, surrogate, private, unassigned, line and paragraph ends.
_UNSEEN: Final = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

#: Letters and a symbol that are blank despite their categories: Hangul's fillers, and Braille's pattern without dots.
_BLANK: Final = "\u115f\u1160\u3164\uffa0\u2800"

#: Joiners and non-joiners of letters and emoji, which have a visible effect.
_JOINERS: Final = "\u200c\u200d"

_MARKS: Final = {"Mn", "Me"}

#: Embeddings, overrides and isolates of a text direction, which reach beyond the text that they stand in.
_DIRECTIONS: Final = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def visible(text: object) -> str:
    """Return the text with control characters, direction marks and lone surrogates escaped, as \\x00 or \\u202e.

    The result is a single line, is visible, and can be encoded in UTF-8.
    """
    whole = str(text)
    return whole if whole.isascii() and whole.isprintable() else "".join(_show(whole))


def visible_lines(text: object) -> str:
    """Return a text of several lines, each escaped as by `visible`."""
    return "\n".join(map(visible, str(text).split("\n")))


def printable(text: str) -> str:
    """Return a text of several lines with what would change the text around it escaped as \\x00.

    That is control characters other than white space, lone surrogates, and the beginnings and ends of text directions.
    """
    return "".join(
        _number(character)
        if character in _DIRECTIONS or (unicodedata.category(character) in ("Cc", "Cs") and character not in "\n\r\t")
        else character
        for character in text
    )


def _show(text: str) -> Iterator[str]:
    marks = 0
    for index, character in enumerate(text):
        category = unicodedata.category(character)
        marks = marks + 1 if category in _MARKS else 0
        if character in _NAMES:
            yield _NAMES[character]
        elif marks > MOST_MARKS or character in _BLANK:
            yield _number(character)
        elif category not in _UNSEEN or (character in _JOINERS and 0 < index < len(text) - 1):
            yield character
        else:
            yield _number(character)


def _number(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
