"""The display of tokens of unknown origin: never empty, never invisible, and not too long."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Final

from embgrad.common.text import visible

__all__ = ["EMPTY", "MOST_SHOWN", "direction", "show_token", "token_text"]

#: The sign for a token without text.
EMPTY: Final = "∅"

#: The number of characters of a token that are shown; the rest is counted.
MOST_SHOWN: Final = 48


def token_text(token: str, most: int = MOST_SHOWN) -> str:
    """Return a token for display: with spaces marked, cut after `most` characters, never empty."""
    if not token:
        return EMPTY
    cut = token[:most]
    if cut.isspace():
        cut = cut.replace(" ", "␣")
    text = visible(cut)
    if unicodedata.combining(text[0]):
        text = "◌" + text  # a combining mark would attach to the letter before the token
    return text if len(token) <= most else f"{text}… ({len(token)} characters)"


def direction(tokens: Iterable[str]) -> str:
    """Return "rtl" where the first letter that has a direction is written from right to left, else "ltr"."""
    for token in tokens:
        for character in token:
            bidirectional_class = unicodedata.bidirectional(character)
            if bidirectional_class in ("L", "R", "AL"):
                return "ltr" if bidirectional_class == "L" else "rtl"
    return "ltr"


def show_token(token: str) -> str:
    """Return a token for display without the marks by which tokenizers join sub-words; "␣" where it is only a mark of a space."""
    bare = token.removeprefix("##").lstrip("Ġ▁")
    if bare or not token:
        return token_text(bare)
    return token_text(token) if token.startswith("##") else "␣"
