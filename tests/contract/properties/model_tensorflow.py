"""A generated model in TensorFlow: layers of Keras 2, or, as the alternative, of Keras 3."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras2

from tests.contract.properties.specs import EPSILON, Block, Spec, weights_of

Weights = Mapping[str, np.ndarray]


def build(spec: Spec) -> Any:
    weights = {name: value.astype(spec.dtype) for name, value in weights_of(spec).items()}
    return _model_class(keras3 if spec.alternative else keras2)(spec, weights)


@functools.cache
def _model_class(keras: Any) -> type:
    class KerasBlock(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, block: Block, weights: Weights, spec: Spec, pooled: bool) -> None:
            super().__init__(dtype=spec.dtype)
            self.kind, self.residual = block.kind, block.residual
            self.supports_masking = True  # that of a table that declares a row of padding, which nothing here uses
            if block.kind == "linear":
                self.inner = _dense(keras, spec, weights["weight"], weights["bias"])
            elif block.kind == "norm":
                self.inner = keras.layers.LayerNormalization(epsilon=EPSILON, dtype=spec.dtype)
                _fill(self.inner, (None, *([] if pooled else [None]), spec.width), weights["gain"], weights["shift"])
            elif block.kind == "attention":
                self.query, self.key, self.value = (
                    _dense(keras, spec, weights[name]) for name in ("query", "key", "value")
                )
            elif block.kind == "tanh":
                self.inner = keras.layers.Activation("tanh", dtype=spec.dtype)
            self.built = True

        def call(self, hidden: Any, real: Any) -> Any:
            if self.kind == "attention":
                made = _attended(self.query(hidden), self.key(hidden), self.value(hidden), real)
            else:
                made = hidden - tf.reduce_mean(hidden, 0) / 2 if self.kind == "mix" else self.inner(hidden)
            return hidden + made if self.residual else made

    class Model(keras.Model):  # type: ignore[misc]
        def __init__(self, spec: Spec, weights: Weights) -> None:
            super().__init__(dtype=spec.dtype)
            self.spec = spec
            for name in ("words", "positions", "segments"):
                if name in weights:
                    setattr(self, name, _table(keras, spec, name, weights[name]))
            self.blocks = [
                KerasBlock(
                    block, _inside(f"blocks.{number}.", weights), spec, spec.pool is not None and spec.pool <= number
                )
                for number, block in enumerate(spec.blocks)
            ]
            if spec.head == "linear":
                self.head = _dense(keras, spec, weights["head.weight"], weights["head.bias"])
            self.built = True

        def call(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
            hidden = self.words(input_ids)
            if self.spec.scale is not None:
                hidden = hidden * self.spec.scale
            if self.spec.positions:
                hidden = hidden + self.positions(tf.range(tf.shape(input_ids)[1])[None])
            if self.spec.types:
                hidden = hidden + self.segments(token_type_ids)
            real = tf.cast(tf.ones_like(input_ids) if attention_mask is None else attention_mask, self.spec.dtype)
            for number, block in enumerate(self.blocks):
                hidden = _mean(hidden, real) if number == self.spec.pool else hidden
                hidden = block(hidden, real)
            hidden = _mean(hidden, real) if len(self.blocks) == self.spec.pool else hidden
            if self.spec.head == "tied":
                return tf.einsum("...d,vd->...v", hidden, tf.convert_to_tensor(self.words.embeddings))
            return hidden if self.spec.head == "none" else self.head(hidden)

    return Model


def _table(keras: Any, spec: Spec, name: str, weight: np.ndarray) -> Any:
    padded = name == "words" and spec.padding == 0  # Keras has no other row of padding
    layer = keras.layers.Embedding(*weight.shape, mask_zero=padded, dtype=spec.dtype, name=name)
    return _fill(layer, (None, None), weight)


def _dense(keras: Any, spec: Spec, *weights: np.ndarray) -> Any:
    layer = keras.layers.Dense(weights[0].shape[1], use_bias=len(weights) > 1, dtype=spec.dtype)
    return _fill(layer, (None, weights[0].shape[0]), *weights)


def _fill(layer: Any, shape: tuple[Any, ...], *weights: np.ndarray) -> Any:
    layer.build(shape)
    layer.set_weights(weights)
    return layer


def _attended(query: Any, key: Any, value: Any, real: Any) -> Any:
    scores = tf.matmul(query, key, transpose_b=True) / query.shape[-1] ** 0.5
    scores = tf.where(real[:, None, :] > 0, scores, tf.constant(-1e9, scores.dtype))
    return tf.matmul(tf.nn.softmax(scores), value)


def _mean(hidden: Any, real: Any) -> Any:
    return tf.reduce_sum(hidden * real[..., None], 1) / tf.reduce_sum(real, 1, keepdims=True)


def _inside(prefix: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
