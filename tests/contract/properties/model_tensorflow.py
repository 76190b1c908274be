"""A generated model in TensorFlow: layers of Keras 2, layers of Keras 3, or a `tf.function` of bare variables."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras2

from tests.contract.properties.specs import EPSILON, FUNCTIONS, MODULES, Block, Spec, weights_of

Weights = Mapping[str, np.ndarray]


def build(spec: Spec) -> Any:
    weights = {name: value.astype(spec.dtype) for name, value in weights_of(spec).items()}
    if spec.form == FUNCTIONS:
        return _Functions(spec, weights)
    return _kinds(keras2 if spec.form == MODULES else keras3)[1](spec, weights)


class _Way:
    """The way through the tables, the blocks and the head."""

    spec: Spec

    def through(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
        hidden = self.rows("words", input_ids)
        if self.spec.scale is not None:
            hidden = hidden * self.spec.scale
        if self.spec.positions:
            hidden = hidden + self.rows("positions", tf.range(tf.shape(input_ids)[1])[None])
        if self.spec.types:
            hidden = hidden + self.rows("segments", token_type_ids)
        real = tf.cast(tf.ones_like(input_ids) if attention_mask is None else attention_mask, self.spec.dtype)
        for number in range(len(self.spec.blocks)):
            hidden = _mean(hidden, real) if number == self.spec.pool else hidden
            hidden = self.block(number, hidden, real)
        return self.headed(_mean(hidden, real) if len(self.spec.blocks) == self.spec.pool else hidden)


class _Functions(tf.Module, _Way):  # type: ignore[misc]
    """Bare variables, and one `tf.function`."""

    def __init__(self, spec: Spec, weights: Weights) -> None:
        super().__init__()
        self.spec = spec
        self.own = {name: tf.Variable(value, name=name.replace(".", "_")) for name, value in weights.items()}
        ways = {
            (True, True): lambda input_ids, attention_mask, token_type_ids: self.through(
                input_ids, attention_mask, token_type_ids
            ),
            (True, False): lambda input_ids, attention_mask: self.through(input_ids, attention_mask),
            (False, True): lambda input_ids, token_type_ids: self.through(input_ids, None, token_type_ids),
            (False, False): lambda input_ids: self.through(input_ids),
        }
        self.graph = tf.function(ways[spec.masked, spec.types])

    def __call__(self, **inputs: Any) -> Any:
        return self.graph(**inputs)

    def rows(self, table: str, indices: Any) -> Any:
        return tf.gather(self.own[table], indices)

    def block(self, number: int, hidden: Any, real: Any) -> Any:
        block = self.spec.blocks[number]
        own = _inside(f"blocks.{number}.", self.own)
        if block.kind == "linear":
            made = _times(hidden, own["weight"]) + own["bias"]
        elif block.kind == "norm":
            mean, variance = tf.nn.moments(hidden, -1, keepdims=True)
            made = tf.nn.batch_normalization(hidden, mean, variance, own["shift"], own["gain"], EPSILON)
        elif block.kind == "attention":
            made = _attended(*(_times(hidden, own[name]) for name in ("query", "key", "value")), real)
        else:
            made = tf.tanh(hidden) if block.kind == "tanh" else hidden - tf.reduce_mean(hidden, 0) / 2
        return hidden + made if block.residual else made

    def headed(self, hidden: Any) -> Any:
        if self.spec.head == "tied":
            return tf.einsum("...d,vd->...v", hidden, tf.convert_to_tensor(self.own["words"]))
        if self.spec.head == "none":
            return hidden
        return _times(hidden, self.own["head.weight"]) + self.own["head.bias"]


@functools.cache
def _kinds(keras: Any) -> tuple[type, type]:
    """Of one Keras the classes of blocks and of models."""

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

    class KerasModel(keras.Model, _Way):  # type: ignore[misc]
        def __init__(self, spec: Spec, weights: Weights) -> None:
            super().__init__(dtype=spec.dtype)
            self.spec = spec
            for name in ("words", "positions", "segments"):
                if name in weights:
                    setattr(self, name, _table(keras, spec, name, weights[name]))
            self.blocks = [
                KerasBlock(block, _inside(f"blocks.{number}.", weights), spec, spec.pooled(number))
                for number, block in enumerate(spec.blocks)
            ]
            if spec.head == "linear":
                self.head = _dense(keras, spec, weights["head.weight"], weights["head.bias"])
            self.built = True

        def rows(self, table: str, indices: Any) -> Any:
            return getattr(self, table)(indices)

        def block(self, number: int, hidden: Any, real: Any) -> Any:
            return self.blocks[number](hidden, real)

        def headed(self, hidden: Any) -> Any:
            if self.spec.head == "tied":
                return tf.einsum("...d,vd->...v", hidden, tf.convert_to_tensor(self.words.embeddings))
            return hidden if self.spec.head == "none" else self.head(hidden)

    class TakesAll(KerasModel):
        def call(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
            return self.through(input_ids, attention_mask, token_type_ids)

    return KerasBlock, TakesAll


def _table(keras: Any, spec: Spec, name: str, weight: np.ndarray) -> Any:
    """The table of words says that its row 0 is padding where the model has that; Keras has no other."""
    padded = name == "words" and spec.padding == 0
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


def _times(hidden: Any, weight: Any) -> Any:
    return tf.einsum("...d,de->...e", hidden, tf.convert_to_tensor(weight))


def _inside(prefix: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
