"""Bisect a Hugging Face BERT in PyTorch and keras-hub's with the same weights, with faults in the latter; save what is found."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import keras
import keras_hub
import numpy as np

import embgrad
from embgrad.engine.weights import substitute, weights_of
from tests.cross.keras.worker import BACKENDS

__all__ = ["CHANGES", "ROLES", "changes_on", "main"]

#: The roles that both models have, in order.
ROLES: Final = ("word", "position", "type", "embeddings", "layer.0", "layer.1", "layer.2", "layer.3")

#: What is changed: weights by their names in the checkpoint, and the activation of a layer.
CHANGES: Final = (
    "embeddings.token_type_embeddings.weight",
    "encoder.layer.1.attention.self.query.weight",
    "encoder.layer.0.attention.output.LayerNorm.weight",
    "encoder.layer.2.output.dense.weight",
    "pooler.dense.weight",
    "activation",
)


def changes_on(backend: str) -> tuple[str, ...]:
    """Return the changes that an ordinary run makes on a Keras backend: each is made on one of them."""
    return CHANGES[BACKENDS.index(backend) :: len(BACKENDS)]


RANDOM: Final = np.random.default_rng(0)
BATCH: Final = embgrad.TokenBatch(
    RANDOM.integers(3, 60, (3, 6)),
    [[1] * 6, [1] * 4 + [0] * 2, [1] * 3 + [0] * 3],
    [[0, 0, 1, 1, 1, 1], [0] * 6, [0, 1, 1, 0, 0, 0]],
)
POOLED: Final = embgrad.Projection(RANDOM.normal(size=32), output="pooled")


@contextlib.contextmanager
def _changed(model: Any, fault: str) -> Iterator[None]:
    """Multiply a weight while the context is open, or let one layer approximate its activation."""
    if fault == "activation":
        (layer,) = (layer for layer in model.transformer_layers if layer.name == "transformer_layer_1")
        dense = next(inner for inner in layer._flatten_layers() if inner.name == "feedforward_intermediate_dense")
        exact, dense.activation = dense.activation, lambda x: keras.activations.gelu(x, approximate=True)
        try:
            yield
        finally:
            dense.activation = exact
        return
    (weight,) = (weight for weight in weights_of(model) if weight.canonical == fault)
    with substitute(model, {weight.name: weight.get() * 1.01 + 1e-3}):
        yield


def main(folder: Path, file: Path, faults: Iterable[str]) -> None:
    """Bisect without a fault, in both orders, and with each of some."""
    model, other = embgrad.zoo.load_bert(folder, "torch"), embgrad.zoo.load_bert(folder, "keras")
    assert isinstance(other, keras_hub.models.BertBackbone)
    results = {"": embgrad.bisect(model, other, BATCH, POOLED), "turned": embgrad.bisect(other, model, BATCH, POOLED)}
    for fault in faults:
        with _changed(other, fault):
            results[fault] = embgrad.bisect(model, other, BATCH, POOLED, tolerance=1e-5)
    results["after all"] = embgrad.bisect(model, other, BATCH, POOLED)
    file.write_text(json.dumps({name: _described(found) for name, found in results.items()}), encoding="utf-8")


def _described(found: Any) -> dict[str, Any]:
    steps = found.steps
    return {
        "first": found.first,
        "direction": found.direction,
        "module": found.module,
        "text": found.text,
        "steps": [step.name for step in steps],
        "forward": max(step.forward for step in steps),
        "differing": [weight.a for weight in found.parameters if weight.differs],
    }
