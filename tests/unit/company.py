"""Models whose examples meet, or that keep a state for a number of examples; and what they compute, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

DIM = 3
LOGIT = embgrad.Logit(1)
WEIGHTS = {
    "E": np.random.default_rng(5).normal(size=(12, DIM)),
    "W": np.random.default_rng(6).normal(size=(DIM, 2)),
}
FULL = np.array([[2, 7, 6, 5], [1, 4, 9, 3], [8, 8, 10, 4]])


def rows_of(ids: Any = FULL) -> np.ndarray:
    return np.asarray(WEIGHTS["E"][ids])


def stateful(*shape: int) -> ReferenceModel:
    """Return a model that adds what it kept of the call before, where that had as many examples, and keeps what it returns."""

    def forward(model: Any, ids: np.ndarray) -> Tensor:
        sums = lookup(model["E"], ids).sum(1)
        kept = model.kept["state"] if len(model.kept["state"]) == len(ids) else np.zeros((len(ids), DIM))
        out = (sums + Tensor(kept)).tanh()
        model.kept["state"] = out.value * 1.0
        return out @ model["W"]

    model = ReferenceModel(forward, WEIGHTS)
    model.kept = {"state": np.random.default_rng(7).normal(size=shape)}  # type: ignore[attr-defined]
    return model


def of_one_number(count: int) -> ReferenceModel:
    """Return a model that reads and writes what it keeps only in a pass of as many examples."""

    def forward(model: Any, ids: np.ndarray) -> Tensor:
        sums = lookup(model["E"], ids).sum(1)
        if len(ids) != len(model.kept):
            return sums.tanh() @ model["W"]
        out = (sums + Tensor(model.kept * 1.0)).tanh()
        model.kept[:] = out.value
        return out @ model["W"]

    model = ReferenceModel(forward, WEIGHTS)
    model.kept = np.random.default_rng(7).normal(size=(count, DIM))  # type: ignore[attr-defined]
    return model


def carried(values: np.ndarray, state: np.ndarray) -> np.ndarray:
    """L at these values of the point, by hand."""
    return np.asarray(np.tanh(values.sum(1) + state) @ WEIGHTS["W"][:, 1])


def plain() -> ReferenceModel:
    return ReferenceModel(lambda model, ids: lookup(model["E"], ids).sum(1) @ model["W"], WEIGHTS)


def centred() -> ReferenceModel:
    """Return a model whose logits have the batch's mean taken off."""

    def forward(model: Any, ids: np.ndarray) -> Tensor:
        sums = lookup(model["E"], ids).sum(1)
        return (sums + sums.mean(0) * -1.0) @ model["W"]

    return ReferenceModel(forward, WEIGHTS)
