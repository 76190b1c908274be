"""Models in NumPy whose attributions have a closed form."""

from __future__ import annotations

from typing import Any

import numpy as np

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

VOCAB, DIM, CLASSES = 12, 3, 2
IDS = np.array([[2, 7, 7, 5], [1, 4, 9, 3]])
MASK = np.array([[1, 1, 1, 0], [1, 1, 1, 1]])
BATCH = embgrad.TokenBatch(IDS, MASK)


def _weights(dtype: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    shapes = {"E": (VOCAB, DIM), "U": (DIM, DIM), "W": (DIM, CLASSES)}
    return {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def _masked(rows: Tensor, mask: Any) -> Tensor:
    return rows if mask is None else rows * Tensor(mask[..., None].astype(rows.value.dtype))


def _linear(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    return _masked(lookup(model["E"], input_ids), attention_mask).sum(1) @ model["W"]


def _curved(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    rows = model.module("block", lambda rows: (rows @ model["U"]).tanh(), lookup(model["E"], input_ids))
    return _masked(rows, attention_mask).sum(1).tanh() @ model["W"]


def linear(dtype: str = "float64") -> ReferenceModel:
    """Return a model whose logits are linear in the embeddings."""
    return ReferenceModel(_linear, _weights(dtype))


def curved(dtype: str = "float64") -> ReferenceModel:
    """Return a model in which the positions' contributions depend on each other, with a module `block`."""
    return ReferenceModel(_curved, _weights(dtype))


class HalfSquare(embgrad.Objective):
    """Half the square of a logit: of a linear model a quadratic form."""

    def _rows(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        slopes = np.zeros_like(rows.values)
        slopes[:, 0] = rows.values[:, 0]
        return rows.values[:, 0] ** 2 / 2, slopes


class Tokenizer:
    """A tokenizer that knows the ids of special tokens."""

    mask_token_id, pad_token_id, all_special_ids = 11, 0, (2, 5, 11)

    def convert_ids_to_tokens(self, number: int) -> str:
        """Return the text of an id."""
        return f"t{number}"
