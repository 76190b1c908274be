"""Examples as a tokenizer returns them, and their collation into a padded batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from embgrad.errors import BatchError
from embgrad.inputs.batch import TokenBatch

__all__ = ["Encoded", "Padding", "expect_tokens", "pad"]


@dataclass(frozen=True, eq=False)
class Encoded:
    """One tokenized example before padding: sequences of equal length.

    Attributes:
        types: segment numbers; None where the tokenizer returns none. Zeros are not the same as none: GPT-2 adds the
            embedding of token 0 for them.
        tokens: the tokens' texts; None where the tokenizer returns none.
        words: the number of each token's word, -1 for none; None where the tokenizer returns none.
        convention: the convention of the dict that the tokenizer returned; None where it returned no dict.
        texts: the user's text, or both texts of a pair; None where they are not known.
        offsets: the characters of each token in its text, from `start` up to `end`, equal for none, (token, 2); None where the
            tokenizer returns none.
        parts: for each token the index of the text that its offsets count in, None for none; None without offsets.
    """

    ids: Sequence[int]
    types: Sequence[int] | None = None
    tokens: Sequence[str] | None = None
    words: Sequence[int] | None = None
    truncated: int = 0
    convention: str | None = None
    texts: tuple[str, ...] | None = None
    offsets: np.ndarray | None = None
    parts: Sequence[int | None] | None = None


@dataclass(frozen=True)
class Padding:
    """The values that fill the shorter examples of a batch, and the side on which they go.

    Attributes:
        side: "right" or "left".
    """

    id: int = 0
    type: int = 0
    token: str = "[PAD]"
    side: str = "right"


def expect_tokens(there: bool) -> None:
    """Raise an error if a batch has no token at all."""
    if not there:
        raise BatchError(
            "the tokenizer returned no tokens for any text: expected at least one token, such as a special token"
        )


def pad(encoded: Sequence[Encoded], padding: Padding) -> TokenBatch:
    """Return the examples as one batch, padded to the longest.

    Raises:
        BatchError: there is no token at all.
    """
    lengths = np.array([len(example.ids) for example in encoded])
    longest = int(lengths.max())
    expect_tokens(longest > 0)
    columns, gaps = np.arange(longest), (longest - lengths)[:, None]
    real = columns >= gaps if padding.side == "left" else columns < longest - gaps

    def of_each(name: str) -> list[Any] | None:
        rows = [row for example in encoded if (row := getattr(example, name)) is not None]
        return rows if len(rows) == len(encoded) else None

    def numbers(name: str, filler: int) -> np.ndarray | None:
        rows = of_each(name)
        return None if rows is None else _fill(np.fromiter(chain.from_iterable(rows), np.int64), real, filler)

    texts, tokens = of_each("texts"), of_each("tokens")
    rows, indices = of_each("offsets"), of_each("parts")
    offsets = parts = None
    if rows is not None and indices is not None:
        offsets = _fill(np.concatenate(rows), real, -1)
        flat = (-1 if part is None else part for row in indices for part in row)
        parts = _fill(np.fromiter(flat, np.int64), real, -1)
    return TokenBatch(
        numbers("ids", padding.id),
        real,
        numbers("types", padding.type),
        tokens=None if tokens is None else _fill_tokens(tokens, padding, longest),
        words=numbers("words", -1),
        truncated=[example.truncated for example in encoded],
        texts=None if texts is None else [text[0] if len(text) == 1 else text for text in texts],
        offsets=offsets,
        parts=parts,
        convention=next((example.convention for example in encoded if example.convention is not None), "huggingface"),
    )


def _fill(numbers: np.ndarray, real: np.ndarray, filler: int) -> np.ndarray:
    """Return an int64 array with the numbers at real positions, in order, and the filler at the others."""
    array = np.full((*real.shape, *numbers.shape[1:]), filler, np.int64)
    array[real] = numbers
    return array


def _fill_tokens(rows: Sequence[Sequence[str]], padding: Padding, longest: int) -> list[list[str]]:
    gaps = [[padding.token] * (longest - len(row)) for row in rows]
    if padding.side == "left":
        return [[*gap, *row] for row, gap in zip(rows, gaps, strict=True)]
    return [[*row, *gap] for row, gap in zip(rows, gaps, strict=True)]
