"""Models and tokenizers in NumPy for the tests of searches, small enough that every text can be tried."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.models import BATCH, CLASSES, DIM, IDS, MASK, VOCAB, curved, linear

__all__ = [
    "BATCH", "CLASSES", "DIM", "IDS", "MASK", "VOCAB", "Letters", "all_swaps", "best_of", "curved", "linear",
    "per_position",
]  # fmt: skip


def per_position(most: int = 99) -> ReferenceModel:
    """Return a model with logits at each position, for texts of at most so many tokens."""

    def forward(model: Any, input_ids: np.ndarray, attention_mask: Any = None, position_ids: Any = None) -> Tensor:
        if input_ids.shape[1] > most:
            raise ValueError("too long")
        return lookup(model["E"], input_ids).tanh() @ model["W"]

    random = np.random.default_rng(1)
    return ReferenceModel(forward, {"E": random.normal(size=(VOCAB, DIM)), "W": random.normal(size=(DIM, VOCAB))})


LETTERS = "abcdefghijkl"


class Letters:
    """A tokenizer of one letter a token that merges "ab" into one token, so that the ids of a and b in a row do not come back."""

    all_special_ids = ()
    unk_token_id = None
    merged = VOCAB - 1

    def get_vocab(self) -> dict[str, int]:
        """Return the ids by their tokens."""
        return {**{letter: number for number, letter in enumerate(LETTERS[: self.merged])}, "ab": self.merged}

    def convert_ids_to_tokens(self, number: int) -> str:
        """Return the token of an id."""
        return "ab" if number == self.merged else LETTERS[number]

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """Return the text of ids."""
        return "".join(map(self.convert_ids_to_tokens, ids))

    def __call__(self, texts: Sequence[str], **_: Any) -> dict[str, list[list[int]]]:
        """Return the ids of texts."""
        return {"input_ids": [self._ids(text) for text in texts]}

    def _ids(self, text: str) -> list[int]:
        return [self.merged if letter == "*" else LETTERS.index(letter) for letter in text.replace("ab", "*")]


def all_swaps(ids: np.ndarray, free: Iterable[int], allowed: Iterable[int] = range(VOCAB)) -> list[np.ndarray]:
    """Return every text that differs from one text by a single id."""
    texts = []
    for position, id_ in itertools.product(free, allowed):
        if id_ != ids[position]:
            texts.append(ids.copy())
            texts[-1][position] = id_
    return texts


def best_of(model: ReferenceModel, texts: list[np.ndarray], mask: np.ndarray, objective: Any, sign: int = 1) -> float:
    """Return the best L of all these texts."""
    batch = embgrad.TokenBatch(np.stack(texts), np.tile(mask, (len(texts), 1)))
    return float(sign * (sign * embgrad.evaluate(model, batch, objective)).max())
