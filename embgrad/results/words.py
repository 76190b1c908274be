"""The words of a text, merged from tokens, with their scores."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.errors import EmbgradError

__all__ = ["SPECIAL", "Word", "expect_vectors", "is_special", "words_of_examples"]

#: Special tokens, each of which is a word, such as "[CLS]" and "</s>".
SPECIAL: Final = re.compile(r"\[[A-Za-z]+\]|<[^<>]+>")

#: The tokens for characters that are not in the vocabulary, and the mask: they look special, but stand for a part of the text.
OF_TEXT: Final = ("[unk]", "<unk>", "[mask]", "<mask>")


class Word(NamedTuple):
    """A word of the text, or a special token, with its saliency.

    Attributes:
        text: the word without the tokenizer's marks.
        positions: the positions of its tokens.
        saliency: the saliency of the whole word.
    """

    text: str
    positions: tuple[int, ...]
    saliency: float


def is_special(result: Any, example: int, position: int) -> bool:
    """Return whether a token stands for no characters of the text, as "[CLS]" does; such tokens do not count for scales.

    Where the offsets of tokens are not known, as in gradients, return whether its text looks so; `OF_TEXT` does not.
    """
    if getattr(result, "parts", None) is not None:
        return bool(result.parts[example, position] < 0)
    token = "" if result.tokens is None else result.tokens[example][position]
    return bool(SPECIAL.fullmatch(token)) and token.lower() not in OF_TEXT


def expect_vectors(result: Any, shape: tuple[int, ...]) -> None:
    """Check that the point of gradients has one vector for each token.

    Args:
        result: the gradients, or what is kept of them.
        shape: the point's shape without its last axis.
    """
    if shape != result.ids.shape:
        raise EmbgradError(
            f"the point {result.provenance.get('point')!r} has the shape {shape} without its last axis: expected "
            f"{result.ids.shape}, (example, position), since only such points have a score for each token or word"
        )


def words_of_examples(
    tokens: Sequence[Sequence[str]],
    numbers: np.ndarray | None,
    real: np.ndarray,
    scores: np.ndarray,
    merge: Callable[[np.ndarray], Any],
) -> list[list[Word]]:
    """Return the words of each example, at real positions.

    Args:
        numbers: for each position the number of its word, -1 for none; None groups tokens by their marks.
        real: true at real positions, shape (example, position).
        scores: the scores of positions, likewise.
        merge: returns the score of a word from those of its tokens.
    """
    words = []
    for example, texts in enumerate(tokens):
        groups = _groups(texts, None if numbers is None else numbers[example], np.flatnonzero(real[example]).tolist())
        words.append(
            [Word(_text(texts, group), tuple(group), float(merge(scores[example][group]))) for group in groups]
        )
    return words


def _groups(tokens: Sequence[str], numbers: np.ndarray | None, positions: Sequence[int]) -> list[list[int]]:
    """Return the positions of each word."""
    groups: list[list[int]] = []
    marked = any(token[:1] in "Ġ▁" for token in tokens if token)
    for position in positions:
        if groups and groups[-1][-1] == position - 1 and _continues(tokens, numbers, position, marked):
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def _continues(tokens: Sequence[str], numbers: np.ndarray | None, position: int, marked: bool) -> bool:
    """Return whether a token continues the word of the token before it."""
    if numbers is not None:
        # Without a pre-tokenizer the whole text has one word number; only the marks separate words then.
        same = numbers[position] >= 0 and numbers[position] == numbers[position - 1]
        return bool(same and tokens[position][:1] not in ("Ġ", "▁"))
    token, before = tokens[position], tokens[position - 1]
    if SPECIAL.fullmatch(token) or SPECIAL.fullmatch(before):
        return False
    return token.startswith("##") or (marked and token[:1] not in ("Ġ", "▁", "Ċ"))


def _text(tokens: Sequence[str], group: Sequence[int]) -> str:
    return "".join(tokens[position].removeprefix("##").lstrip("Ġ▁") for position in group)
