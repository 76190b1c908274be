"""A masked model of the reference backend, texts, labels, tokenizers and runs for the tests of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

VOCAB, DIM, CLASSES = 40, 4, 3
COUNT = 23
LETTERS = "abcdefghijklmnopqrstuvwxyz"
LABELLED = embgrad.Labelled(embgrad.CrossEntropy)


def forward(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    mask = np.ones(input_ids.shape) if attention_mask is None else attention_mask
    hidden = model.module("block", lambda rows: (rows @ model["U"]).tanh(), lookup(model["E"], input_ids))
    return (hidden * Tensor(mask[..., None].astype(hidden.value.dtype))).sum(1) @ model["W"]


def model(seed: int = 0, dtype: str = "float32") -> ReferenceModel:
    random = np.random.default_rng(seed)
    shapes = {"E": (VOCAB, DIM), "U": (DIM, DIM), "W": (DIM, CLASSES)}
    return ReferenceModel(forward, {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()})


class Letters:
    """A tokenizer with an id for each letter, which its vocabulary identifies."""

    def get_vocab(self) -> dict[str, int]:
        return {letter: 3 + number for number, letter in enumerate(LETTERS)}

    def __call__(self, text: str, pair: str | None = None) -> list[int]:
        """Return [1] text [2], or [1] text [2] pair [2]."""
        parts = [text] if pair is None else [text, pair]
        return [1] + [id_ for part in parts for id_ in [*map(self.get_vocab().__getitem__, part), 2]]


tokenizer = Letters()


class Pieces:
    """A tokenizer whose tokens are what a function returns."""

    def __init__(self, tokenize: Callable[[str], list[str]]) -> None:
        self.tokenize = tokenize

    def convert_tokens_to_ids(self, tokens: list[str]) -> list[int]:
        return [1 + len(token) % 7 for token in tokens]


def texts(count: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return ["".join(random.choice(list(LETTERS), random.integers(1, 12))) for _ in range(count)]


def labels(count: int) -> list[int]:
    return np.random.default_rng(7).integers(0, CLASSES, count).tolist()


def rows(count: int) -> Iterator[tuple[str, int]]:
    yield from zip(texts(count), labels(count), strict=True)


def by_hand(
    count: int, size: int, objective: Any = embgrad.CrossEntropy, **options: Any
) -> list[embgrad.results.EmbeddingGradients]:
    """Return the results of `gradients`, batch by batch."""
    found = []
    for start in range(0, count, size):
        own = texts(count)[start : start + size]
        made = objective(labels(count)[start : start + size])
        found.append(embgrad.gradients(model(), own, made, tokenizer=tokenizer, **options))
    return found


def expect_same_bits(one: embgrad.results.EmbeddingGradients, other: embgrad.results.EmbeddingGradients) -> None:
    for name in ("values", "activations", "objective", "ids", "mask", "types", "before"):
        first, second = getattr(one, name), getattr(other, name)
        assert (first is None) == (second is None)
        if first is not None:
            assert (second.dtype, second.shape, second.tobytes()) == (first.dtype, first.shape, first.tobytes())
    assert one.tokens == other.tokens
    assert dict(one.provenance) == dict(other.provenance)


def run(to: Path | None, given: Any = None, source: Any = None, **options: Any) -> embgrad.results.Stream:
    """Return a stream of labelled texts, which writes to a folder unless it is None."""
    asked = {"tokenizer": tokenizer, "batch_size": 2, "to": to, **options}
    return embgrad.stream(
        model() if given is None else given, rows(COUNT) if source is None else source, LABELLED, **asked
    )
