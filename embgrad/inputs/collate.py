"""Examples as a tokenizer returns them, and their collation into a padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embgrad.errors import BatchError
from embgrad.inputs.batch import TokenBatch

__all__ = ["Encoded", "Padding", "expect_tokens", "padded"]


@dataclass(frozen=True)
class Encoded:
    """One tokenized example before padding: sequences of equal length.

    Attributes:
        ids: the token ids.
        types: segment numbers; None where the tokenizer returns none. Zeros are not the same as none: GPT-2 adds the
            embedding of token 0 for them.
        tokens: the tokens' texts; None where the tokenizer returns none.
        words: the number of each token's word, -1 for none; None where the tokenizer returns none.
        truncated: how many tokens were cut off.
        convention: the convention of the dict that the tokenizer returned; None where it returned no dict.
    """

    ids: Sequence[int]
    types: Sequence[int] | None = None
    tokens: Sequence[str] | None = None
    words: Sequence[int] | None = None
    truncated: int = 0
    convention: str | None = None


@dataclass(frozen=True)
class Padding:
    """The values that fill the shorter examples of a batch, and the side on which they go.

    Attributes:
        id: the token id.
        type: the segment number.
        token: the token's text.
        side: "right" or "left".
    """

    id: int = 0
    type: int = 0
    token: str = "[PAD]"
    side: str = "right"


def expect_tokens(there: bool) -> None:
    """Raise an error if a batch has no token at all.

    Args:
        there: whether there is a token.

    Raises:
        BatchError: there is none.
    """
    if not there:
        raise BatchError(
            "the tokenizer returned no tokens for any text: expected at least one token, such as a special token"
        )


def padded(encoded: Sequence[Encoded], padding: Padding, least: int = 0) -> TokenBatch:
    """Return the examples as one batch, padded to the longest example and to at least `least` positions.

    Raises:
        BatchError: there is no token at all.
    """
    longest = max(least, *(len(example.ids) for example in encoded))
    expect_tokens(longest > 0)

    def filled(rows: Sequence[Sequence[Any]], filler: Any) -> list[list[Any]]:
        gaps = [[filler] * (longest - len(row)) for row in rows]
        if padding.side == "left":
            return [[*gap, *row] for row, gap in zip(rows, gaps, strict=True)]
        return [[*row, *gap] for row, gap in zip(rows, gaps, strict=True)]

    types = [example.types for example in encoded if example.types is not None]
    tokens = [example.tokens for example in encoded if example.tokens is not None]
    words = [example.words for example in encoded if example.words is not None]
    return TokenBatch(
        filled([example.ids for example in encoded], padding.id),
        filled([[1] * len(example.ids) for example in encoded], 0),
        filled(types, padding.type) if len(types) == len(encoded) else None,
        tokens=filled(tokens, padding.token) if len(tokens) == len(encoded) else None,
        words=filled(words, -1) if len(words) == len(encoded) else None,
        truncated=[example.truncated for example in encoded],
        convention=next((example.convention for example in encoded if example.convention is not None), "huggingface"),
    )
