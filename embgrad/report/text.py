"""Tokens of unknown origin as they are shown: never empty, never invisible, and not too long."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

from embgrad.common.text import visible

__all__ = ["EMPTY", "MOST_SHOWN", "direction", "token_text"]

#: What is shown in the place of a token without text.
EMPTY: Final = "∅"

#: The characters of a token that are shown; the rest is counted.
MOST_SHOWN: Final = 48


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
