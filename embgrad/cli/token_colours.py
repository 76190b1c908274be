"""Tokens in the terminal by their saliency: as colours, or as digits without colours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.common.token_text import token_text
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.terminal import digit, style
from embgrad.results.words import is_special

__all__ = ["Piece", "legend", "painted", "pieces"]

#: The marks of byte-pair and sentence pieces at the beginning of a word.
STARTS: Final = ("Ġ", "▁")


class Piece(NamedTuple):
    """A token or a word, as it is printed.

    Attributes:
        text: the text without the tokenizer's marks.
        joined: whether it continues the word before it.
        special: whether it is a special token such as "[CLS]", which does not count for the scale.
        share: its saliency divided by the largest of the example, -1 to 1; NaN if it has none.
    """

    text: str
    joined: bool
    special: bool
    share: float


def pieces(gradients: EmbeddingGradients, example: int, kind: str = "norm", words: bool = False) -> list[Piece]:
    """Return the tokens of an example, or its words, without padding; ids if the tokens' texts are unknown."""
    units = list(_words(gradients, example, kind) if words else _tokens(gradients, example, kind))
    counted = [abs(score) for _, _, special, score in units if not special and np.isfinite(score)]
    largest = max(counted, default=0.0)
    return [Piece(text, joined, special, _share(score, largest)) for text, joined, special, score in units]


def _share(score: float, largest: float) -> float:
    if not np.isfinite(score):
        return float("nan")
    return float(np.clip(score / largest, -1, 1)) if largest else 0.0


def painted(shown: Sequence[Piece], kind: str, coloured: bool) -> Any:
    """Return the pieces as one line of Rich's text, coloured by saliency; without colours, with a digit from 0 to 9."""
    from rich.text import Text

    line = Text()
    for piece in shown:
        line.append("" if piece.joined else " ")
        if piece.special:
            line.append(piece.text, style="dim")
        elif coloured and np.isfinite(piece.share):
            line.append(piece.text, style=style(piece.share, kind == "dot"))
        else:
            line.append(f"{piece.text}({digit(piece.share, kind == 'dot')})")
    line.rstrip()
    return line[1:] if line.plain.startswith(" ") else line


def legend(kind: str, coloured: bool) -> str:
    """Return the legend of the colours or digits."""
    if kind == "dot":
        what = (
            "gradient · embedding: orange is above zero, blue below" if coloured else "gradient · embedding, -9 to +9"
        )
    else:
        what = "length of the gradient: the darker, the longer" if coloured else "length of the gradient, 0 to 9"
    return f"{what}; 9 is the example's largest" if not coloured else what


def _tokens(gradients: EmbeddingGradients, example: int, kind: str) -> Iterator[tuple[str, bool, bool, float]]:
    scores = gradients.saliency(kind)[example].astype(np.float64)
    ids, mask = gradients.ids[example], None if gradients.mask is None else gradients.mask[example]
    tokens = None if gradients.tokens is None else gradients.tokens[example]
    has_marks = tokens is not None and any(token.startswith(STARTS) for token in tokens)
    for position in range(len(ids)):
        if mask is not None and not mask[position]:
            continue
        if tokens is None:
            yield str(ids[position]), False, False, float(scores[position])
            continue
        token = tokens[position]
        special = is_special(gradients, example, position)
        continues = token.startswith("##") or (has_marks and not token.startswith(STARTS))
        text = token.removeprefix("##").lstrip("".join(STARTS))
        yield token_text(text), continues and not special, special, float(scores[position])


def _words(gradients: EmbeddingGradients, example: int, kind: str) -> Iterator[tuple[str, bool, bool, float]]:
    for word in gradients.words(kind)[example]:
        yield token_text(word.text), False, is_special(gradients, example, word.positions[0]), word.saliency
