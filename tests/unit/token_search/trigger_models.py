"""A model in which each position has a weight of its own, texts and a tokenizer, for triggers whose best is known."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

VOCAB, DIM, POSITIONS = 14, 3, 10
CLS, SEP, PAD = 1, 2, 0
#: The letters of the ids from 3 on; a pair of "a" and "b" is a token of its own.
LETTERS = "abcdefghij"
MERGED = VOCAB - 1
TEXTS = ["cde", "f", "hgeed", "eg", "jih", "ged"]


@functools.cache
def _weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(5)
    return {
        "E": random.normal(size=(VOCAB, DIM)),
        "W": random.normal(size=(DIM, 2)),
        "a": random.normal(size=(POSITIONS, 1)),
    }


def _forward(model: Any, input_ids: np.ndarray, attention_mask: Any = None, token_type_ids: Any = None) -> Tensor:
    rows = lookup(model["E"], input_ids)
    count = input_ids.shape[1]
    if count > POSITIONS:
        raise IndexError(f"{count} positions are more than {POSITIONS}")
    scale = model["a"].value[:count] * np.ones((len(input_ids), 1, 1))
    if attention_mask is not None:
        scale = scale * attention_mask[..., None]
    if token_type_ids is not None:
        scale = scale * (1 + 3 * token_type_ids[..., None])
    return (rows * Tensor(scale)).sum(1) @ model["W"]


def model() -> ReferenceModel:
    """Return a model whose logits are sums over positions of weighted rows: estimates of it are exact."""
    return ReferenceModel(_forward, _weights())


def logit(ids: Sequence[int]) -> float:
    """Return the first logit of a text without padding."""
    weights = _weights()
    rows = weights["E"][list(ids)] @ weights["W"][:, 0]
    return float(rows @ weights["a"][: len(ids), 0])


class Tokenizer:
    """A tokenizer with an id for each letter, one for "ab", and special tokens in brackets."""

    all_special_ids = (PAD, CLS, SEP)
    names = ("[P]", "[C]", "[S]", *LETTERS, "ab")

    def __call__(self, texts: Any, pairs: Any = None, add_special_tokens: bool = True, **options: Any) -> Any:
        """Return the ids of texts, of a single one, or of pairs."""
        if pairs is not None:
            firsts = [self._ids(text, add_special_tokens) for text in texts]
            seconds = [self._ids(text, False) + [SEP] * add_special_tokens for text in pairs]
            return {"input_ids": [first + second for first, second in zip(firsts, seconds, strict=True)]}
        rows = [self._ids(text, add_special_tokens) for text in ([texts] if isinstance(texts, str) else texts)]
        return {"input_ids": rows[0] if isinstance(texts, str) else rows}

    def _ids(self, text: str, added: bool) -> list[int]:
        ids, start = [], 0
        while start < len(text):
            length = 3 if text[start] == "[" else 2 if text[start : start + 2] == "ab" else 1
            ids.append(self.names.index(text[start : start + length]))
            start += length
        return [CLS, *ids, SEP] if added else ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, **options: Any) -> str:
        """Return the text of ids."""
        return "".join(self.names[id_] for id_ in ids if not (skip_special_tokens and id_ in self.all_special_ids))

    def get_vocab(self) -> dict[str, int]:
        """Return the ids by their texts."""
        return {name: id_ for id_, name in enumerate(self.names)}

    def convert_ids_to_tokens(self, number: int) -> str:
        """Return the text of an id."""
        return self.names[number]


def batch(texts: Sequence[str] = TEXTS, side: str = "right", types: bool = False) -> embgrad.TokenBatch:
    """Return texts as a batch: [C] text [S] and padding."""
    rows = [Tokenizer()(text)["input_ids"] for text in texts]
    width = max(map(len, rows))
    fill = [[PAD] * (width - len(row)) for row in rows]
    padded = [row + pad if side == "right" else pad + row for row, pad in zip(rows, fill, strict=True)]
    mask = [
        [1] * len(row) + [0] * len(pad) if side == "right" else [0] * len(pad) + [1] * len(row)
        for row, pad in zip(rows, fill, strict=True)
    ]
    return embgrad.TokenBatch(padded, mask, np.zeros((len(rows), width), int) if types else None)


def inserted(text: str, trigger: Sequence[int], place: str) -> list[int]:
    """Return the ids of a text with a trigger between its special tokens."""
    start, *ids, end = Tokenizer()(text)["input_ids"]
    return [start, *trigger, *ids, end] if place == "start" else [start, *ids, *trigger, end]


def best_trigger(
    length: int, place: str, sign: int = 1, *, stable: bool = False, ids: Sequence[int] = range(3, VOCAB)
) -> tuple[list[int], float]:
    """Return the best of all triggers of these ids, and its mean over the texts, by trying them all."""
    tokenizer = Tokenizer()
    found: list[tuple[float, list[int]]] = []
    for trigger in itertools.product(ids, repeat=length):
        rows = [inserted(text, trigger, place) for text in TEXTS]
        if not stable or all(tokenizer._ids(tokenizer.decode(row), False) == row for row in rows):
            found.append((float(np.mean([logit(row) for row in rows])), list(trigger)))
    mean, trigger_ids = max(found, key=lambda pair: sign * pair[0])
    return trigger_ids, mean
