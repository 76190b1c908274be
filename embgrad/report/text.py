"""Text of unknown origin made fit to be seen: what would be invisible, or turn its surroundings round, is spelled out."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

__all__ = ["EMPTY", "MOST_SHOWN", "direction", "token_text", "visible"]

#: What is shown in the place of a token without text.
EMPTY: Final = "∅"

#: The characters of a token that are shown; the rest is counted.
MOST_SHOWN: Final = 48

_NAMES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\u00a0": "⍽", "\u2028": "\\u2028", "\u2029": "\\u2029"}

#: Categories that have no glyph of their own: control, format, surrogate, private, unassigned, line and paragraph ends.
_UNSEEN: Final = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

#: They join and part letters and emoji, and are seen by what they do.
_JOINERS: Final = "\u200c\u200d"


def visible(text: object) -> str:
    """The text with control characters, marks that turn the writing round and lone surrogates as \\x00 or \\u202e."""
    whole = str(text)
    if whole.isprintable():
        return whole
    return "".join(_shown(whole, place) for place in range(len(whole)))


def token_text(token: str, most: int = MOST_SHOWN) -> str:
    """A token as it is shown: spaces marked, cut after `most` characters, never empty."""
    if not token:
        return EMPTY
    cut = token[:most]
    if cut.isspace():
        cut = cut.replace(" ", "␣")
    text = visible(cut)
    if unicodedata.combining(text[0]):
        text = "◌" + text  # a mark without a letter would sit on the neighbour's
    return text if len(token) <= most else f"{text}… ({len(token)} characters)"


def direction(tokens: Iterable[str]) -> str:
    """ "rtl" where the first letter that has a direction runs from right to left, else "ltr"."""
    for token in tokens:
        for character in token:
            kind = unicodedata.bidirectional(character)
            if kind in ("L", "R", "AL"):
                return "ltr" if kind == "L" else "rtl"
    return "ltr"


def _shown(text: str, place: int) -> str:
    character = text[place]
    if character in _NAMES:
        return _NAMES[character]
    if unicodedata.category(character) not in _UNSEEN:
        return character
    if character in _JOINERS and 0 < place < len(text) - 1:
        return character
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
