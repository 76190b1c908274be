"""The reference in NumPy, for machines without a framework."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup, pull_back
from tests.benchmarks.cases import POSITION, Case
from tests.benchmarks.measuring import Mode


def plain(case: Case) -> Mode:
    config = case.config()
    model = _model(config["vocab_size"], config["hidden_size"])
    batch = case.batch()
    inputs = batch.to_huggingface()
    name = "pooler_output" if case.objective == "pooled" else "last_hidden_state"

    def cotangent(shape: tuple[int, ...]) -> np.ndarray:
        ones = np.zeros(shape)
        ones[(slice(None), POSITION) if case.objective == "position" else ...] = 1
        return ones

    def by_hand() -> np.ndarray:
        hidden = np.tanh(model["E"].value[inputs["input_ids"]] @ model["W"].value)
        above = cotangent(hidden.shape) if case.objective == "position" else 1 / case.positions
        return np.asarray((above * (1 - hidden**2)) @ model["W"].value.T)

    def backward() -> None:
        output = model(**inputs)[name]
        pull_back([(output, cotangent(output.shape))], list(model.parameters.values()))

    return Mode(
        forward=lambda: model(**inputs),
        by_hand={"the pullback written out": by_hand},
        backward=backward,
        gradients=lambda: embgrad.gradients(model, batch, case.embgrad_objective()),
    )


MODES = {"NumPy, the reference": plain}


@functools.cache
def _model(vocab: int, dim: int) -> ReferenceModel:
    random = np.random.default_rng(2)

    def forward(model: Any, input_ids: np.ndarray, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
        hidden: Tensor = (lookup(model["E"], input_ids) @ model["W"]).tanh()
        return {"last_hidden_state": hidden, "pooler_output": hidden.mean(1)}

    drawn = {"E": random.normal(size=(vocab, dim)), "W": random.normal(size=(dim, dim)) / dim**0.5}
    return ReferenceModel(forward, {name: value.astype(np.float32) for name, value in drawn.items()})
