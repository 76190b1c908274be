"""Points in TensorFlow by hand: a tape that watches the rows, or the output of a layer whose `call` is replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import embgrad
from tests.benchmarks.points import POOLED, Gradients, Priced, code_of, loaded_bert, replaced, texts


def bert(layers: int, dim: int) -> Priced:
    model = loaded_bert("tensorflow", layers, dim)
    own = model.bert
    parts = {"embeddings": own.embeddings, "layer.0": own.encoder.layer[0], "layer.-1": own.encoder.layer[-1]}

    def by_hand(batch: embgrad.TokenBatch, points: Sequence[str]) -> Gradients:
        return lambda: _by_tape(model, {point: parts.get(point) for point in points}, batch)

    return Priced(model, texts, POOLED, by_hand, code_of(type(model).call))


MODES = {"TensorFlow, Keras 2": bert}


def _by_tape(model: Any, layers: Mapping[str, Any], batch: embgrad.TokenBatch) -> dict[str, np.ndarray]:
    """Return the gradients at layers' outputs by point; `word` has no layer, and the model takes the rows."""
    inputs = {name: tf.constant(value) for name, value in batch.to_huggingface().items()}
    reached: dict[str, Any] = {}
    with tf.GradientTape(watch_accessed_variables=False) as tape:

        def watch(point: str, tensor: Any) -> Any:
            reached[point] = tensor
            tape.watch(tensor)
            return tensor

        if "word" in layers:
            ids = inputs.pop("input_ids")
            inputs |= {"input_ids": None, "inputs_embeds": watch("word", tf.gather(model.bert.embeddings.weight, ids))}
        with replaced({point: layer for point, layer in layers.items() if layer is not None}, watch):
            total = tf.reduce_sum(model(**inputs, training=False).pooler_output)
    pulled = tape.gradient(total, [reached[point] for point in layers])
    return {point: gradient.numpy() for point, gradient in zip(layers, pulled, strict=True)}
