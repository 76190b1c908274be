"""The conformance suite's models in TensorFlow: Keras 2 and Keras 3, functional and subclassed, and plain `tf.Module`s."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras2

from embgrad.testing.faults import obtain
from tests.contract.conformance.state_tensorflow import state

Weights = Mapping[str, np.ndarray]


class _Layers:
    """One Keras's layers, filled with the suite's weights."""

    def __init__(self, keras: Any, weights: Weights, dtype: str) -> None:
        self.keras = keras
        self.weights = weights
        self.dtype = dtype
        self.table = self._filled(keras.layers.Embedding, "table", weights["E"])
        self.second = self._filled(keras.layers.Embedding, "second", weights["E2"])
        self.inner = self._filled(keras.layers.Dense, "inner", weights["W1"], weights["b1"])
        self.outer = self._filled(keras.layers.Dense, "outer", weights["W"], weights["b"])

    def _filled(self, kind: Any, name: str, *values: np.ndarray) -> Any:
        sizes = values[0].shape if "Embedding" in kind.__name__ else values[0].shape[1:]
        layer = kind(*sizes, dtype=self.dtype, name=name)
        layer.build((None,) if "Embedding" in kind.__name__ else (None, values[0].shape[0]))
        layer.set_weights(values)
        return layer

    def again(self) -> _Layers:
        return _Layers(self.keras, self.weights, self.dtype)

    def ids(self) -> Any:
        return self.keras.layers.Input((None,), dtype="int32", name="input_ids")

    def mean(self, rows: Any) -> Any:
        return self.keras.layers.GlobalAveragePooling1D(dtype=self.dtype)(rows)

    def activation(self, name: str, value: Any) -> Any:
        return self.keras.layers.Activation(name, dtype=self.dtype)(value)


def _mean(layers: _Layers) -> Any:
    ids = layers.ids()
    return layers.keras.Model(ids, layers.outer(layers.mean(layers.table(ids))))


def _hidden(layers: _Layers) -> Any:
    ids = layers.ids()
    hidden = layers.activation("tanh", layers.inner(layers.mean(layers.table(ids))))
    return layers.keras.Model(ids, layers.outer(hidden))


def _probabilities(layers: _Layers) -> Any:
    ids = layers.ids()
    return layers.keras.Model(ids, layers.activation("softmax", layers.outer(layers.mean(layers.table(ids)))))


def _positions(layers: _Layers) -> Any:
    ids = layers.ids()
    return layers.keras.Model(ids, layers.outer(layers.activation("tanh", layers.inner(layers.table(ids)))))


def _named(layers: _Layers) -> Any:
    ids = layers.ids()
    hidden = layers.activation("tanh", layers.inner(layers.table(ids)))
    return layers.keras.Model(ids, {"last_hidden_state": hidden, "pooler_output": layers.mean(hidden)})


def _dropout(layers: _Layers) -> Any:
    ids = layers.ids()
    hidden = layers.activation("tanh", layers.inner(layers.mean(layers.table(ids))))
    return layers.keras.Model(ids, layers.outer(layers.keras.layers.Dropout(0.5, dtype=layers.dtype)(hidden)))


def _masked(layers: Any, input_ids: Any, attention_mask: Any = None) -> Any:
    rows = layers.table(input_ids)
    mask = tf.cast(tf.ones_like(input_ids) if attention_mask is None else attention_mask, rows.dtype)[..., None]
    return layers.outer(tf.reduce_sum(mask * rows, 1) / tf.reduce_sum(mask, 1))


def _twice(layers: Any, input_ids: Any) -> Any:
    plain = tf.reduce_mean(layers.table(input_ids), 1)
    bent = tf.reduce_mean(tf.tanh(layers.table(input_ids)), 1)
    return layers.outer(plain) + tf.matmul(bent, tf.cast(layers.outer.kernel, bent.dtype))


def _two_tables(layers: Any, input_ids: Any) -> Any:
    plain = tf.reduce_mean(layers.table(input_ids), 1)
    bent = tf.reduce_mean(tf.tanh(layers.second(input_ids)), 1)
    return layers.outer(plain) + tf.matmul(bent, tf.cast(layers.outer.kernel, bent.dtype))


def _time_major(layers: Any, input_ids: Any) -> Any:
    return layers.outer(tf.reduce_mean(layers.table(tf.transpose(input_ids)), 0))


def _positional(layers: Any, input_ids: Any) -> Any:
    places = layers.second(tf.range(tf.shape(input_ids)[1]))
    return layers.outer(tf.reduce_mean(tf.tanh(layers.table(input_ids) + places), 1))


def _detached(layers: Any, input_ids: Any) -> Any:
    return layers.outer(tf.stop_gradient(tf.reduce_mean(layers.table(input_ids), 1)))


def _tied(layers: Any, input_ids: Any) -> Any:
    hidden = tf.tanh(layers.inner(layers.table(input_ids)))
    return tf.matmul(hidden, tf.convert_to_tensor(layers.table.embeddings), transpose_b=True)


def _mixing(layers: Any, input_ids: Any) -> Any:
    means = tf.reduce_mean(layers.table(input_ids), 1)
    return layers.outer(means - tf.reduce_mean(means, 0))


@tf.custom_gradient
def _doubled(value: Any) -> Any:
    return tf.identity(value), lambda upstream: 2 * upstream


def _broken(layers: Any, input_ids: Any) -> Any:
    return layers.outer(_doubled(tf.reduce_mean(layers.table(input_ids), 1)))


def _stacked(layers: Any, input_ids: Any) -> Any:
    first, *others = layers.order
    hidden = layers.behind_the_first(layers.blocks[first](layers.embed(input_ids))[0])
    for block in others:
        hidden = layers.blocks[block](hidden)[0]
    return layers.outer(tf.reduce_mean(hidden, 1))


def _unchanged(value: Any) -> Any:
    return value


@tf.custom_gradient
def telling(value: Any) -> Any:
    def back(upstream: Any) -> Any:
        obtain("backward")
        return upstream

    obtain("forward")
    return tf.identity(value), back


def _raises(layers: Any, input_ids: Any) -> Any:
    layers.table(input_ids)
    raise RuntimeError("the model broke")


class _Module(tf.Module):
    def __init__(self, weights: Weights, trainable: bool) -> None:
        super().__init__()
        self.table = tf.Variable(weights["E"], trainable=trainable)
        self.weight = tf.Variable(weights["W"], trainable=trainable)
        self.bias = tf.Variable(weights["b"], trainable=trainable)


class _Flat(_Module):
    def __call__(self, input_ids: Any) -> Any:
        rows = tf.nn.embedding_lookup(self.table, tf.reshape(input_ids, [-1]))
        rows = tf.reshape(rows, [*input_ids.shape, -1])
        return tf.matmul(tf.reduce_mean(rows, 1), self.weight) + self.bias


class _Scaled(_Module):
    @tf.function
    def __call__(self, input_ids: Any) -> Any:
        return tf.matmul(tf.reduce_mean(3 * tf.gather(self.table, input_ids), 1), self.weight) + self.bias


class _NoLookup(_Module):
    def __call__(self, input_ids: Any) -> Any:
        mean = tf.reduce_mean(tf.cast(input_ids, self.weight.dtype), 1, keepdims=True)
        return tf.matmul(mean, self.weight[:1]) + self.bias


_FUNCTIONAL: Mapping[str, tuple[Any, Callable[[_Layers], Any]]] = {
    "mean": (keras3, _mean),
    "hidden": (keras2, _hidden),
    "probabilities": (keras3, _probabilities),
    "positions": (keras2, _positions),
    "named": (keras3, _named),
    "dropout": (keras3, _dropout),
}

_SUBCLASSED: Mapping[str, tuple[Any, Callable[..., Any]]] = {
    "masked": (keras3, _masked),
    "twice": (keras2, _twice),
    "two_tables": (keras3, _two_tables),
    "time_major": (keras2, _time_major),
    "positional": (keras2, _positional),
    "detached": (keras3, _detached),
    "layers": (keras2, _stacked),
    "repeated": (keras3, _stacked),
    "tied": (keras2, _tied),
    "mixing": (keras3, _mixing),
    "broken": (keras2, _broken),
    "raises": (keras2, _raises),
    "interrupted": (keras3, _stacked),
}

_MODULES: Mapping[str, type[_Module]] = {"flat": _Flat, "scaled": _Scaled, "no_lookup": _NoLookup}


#: Where each weight lies: the attribute of the model that holds the layer, and the weight's own name.
_PLACES: Mapping[str, tuple[str, str]] = {
    "E": ("table", "embeddings"),
    "E2": ("second", "embeddings"),
    "W": ("outer", "kernel"),
    "b": ("outer", "bias"),
    "W1": ("inner", "kernel"),
    "b1": ("inner", "bias"),
}


@functools.cache
def _block_classes(keras: Any) -> tuple[type, type]:
    class Embed(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, layers: _Layers) -> None:
            super().__init__(dtype=layers.dtype)
            self.words, self.places = layers.table, layers.second
            self.built = True

        def call(self, input_ids: Any) -> Any:
            return self.words(input_ids) + self.places(tf.range(tf.shape(input_ids)[1])[None])

    class Block(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self, layers: _Layers) -> None:
            super().__init__(dtype=layers.dtype)
            self.inner = layers.inner
            self.factor = 1.0
            self.built = True

        def call(self, hidden: Any) -> Any:
            bent = tf.tanh(self.inner(hidden)) * self.factor
            return hidden + bent, bent

    return Embed, Block


@functools.cache
def _stack(keras: Any, count: int, behind_the_first: Callable[[Any], Any]) -> type:
    embed, block = _block_classes(keras)

    class Stack(keras.Model):  # type: ignore[misc]
        def __init__(self, layers: _Layers) -> None:
            super().__init__()
            self.embed = embed(layers)
            self.blocks = [block(layers.again()) for _ in range(count)]
            self.order = (0, 1, 2) if count == 3 else (0, 0, 0)
            self.outer = layers.outer
            self.behind_the_first = behind_the_first
            self.built = True

        def call(self, input_ids: Any) -> Any:
            return _stacked(self, input_ids)

    return Stack


@functools.cache
def _subclass(keras: Any, forward: Callable[..., Any], masked: bool) -> type:
    class Model(keras.Model):  # type: ignore[misc]
        def __init__(self, layers: _Layers) -> None:
            super().__init__()
            self.table, self.second = layers.table, layers.second
            self.inner, self.outer = layers.inner, layers.outer
            self.built = True

    class Plain(Model):
        def call(self, input_ids: Any) -> Any:
            return forward(self, input_ids)

    class Masked(Model):
        def call(self, input_ids: Any, attention_mask: Any = None) -> Any:
            return forward(self, input_ids, attention_mask)

    return Masked if masked else Plain


class Harness:
    backend = "tensorflow"
    precisions = ("float32", "float64", "float16", "bfloat16")

    def build(self, architecture: str, weights: Weights, *, dtype: str | None = None, frozen: bool = False) -> Any:
        dtype = dtype or str(weights["E"].dtype)
        if architecture in _MODULES:
            return _MODULES[architecture]({name: value.astype(dtype) for name, value in weights.items()}, not frozen)
        if architecture in _FUNCTIONAL:
            keras, make = _FUNCTIONAL[architecture]
            model = make(_Layers(keras, weights, dtype))
        else:
            keras, forward = _SUBCLASSED[architecture]
            if forward is _stacked:
                behind = telling if architecture == "interrupted" else _unchanged
                kind = _stack(keras, 1 if architecture == "repeated" else 3, behind)
            else:
                kind = _subclass(keras, forward, architecture == "masked")
            model = kind(_Layers(keras, weights, dtype))
        model.trainable = not frozen
        return model

    def train(self, model: Any) -> None:
        """Nothing: a mode that stays is what Keras models do not have."""

    def table_gradient(self, model: Any, ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        table = model.get_layer("table").embeddings
        with tf.GradientTape() as tape:
            logits = model(tf.constant(ids, tf.int32))
            loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        return np.asarray(tf.convert_to_tensor(tape.gradient(loss, table)), np.float64)

    def state(self, model: Any) -> Mapping[str, Any]:
        return state(model)

    def seed(self, seed: int) -> None:
        tf.random.set_seed(seed)

    def draw_states(self) -> float:
        return float(tf.random.uniform(()))

    def disturb(self, model: Any) -> None:
        if isinstance(model, keras2.Model):
            model._eager_losses.append(tf.constant(3.0))
        model.compile(optimizer="adam", loss="mse")
        model.optimizer.build(model.trainable_variables)
        model.note = ["mine"]

    def change_constant(self, model: Any) -> None:
        for block in model.blocks:
            block.factor = 2.0

    def parameter(self, model: Any, weight: str) -> tuple[str, bool]:
        layer, attribute = _PLACES[weight]
        variable = getattr(model.get_layer(layer), attribute)
        return str(getattr(variable, "path", None) or variable.name), False

    def step(self, model: Any, ids: np.ndarray, labels: np.ndarray, rate: float = 0.1) -> None:
        with tf.GradientTape() as tape:
            logits = model(tf.constant(ids, tf.int32), training=False)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        reached = [(one, variable) for one, variable in zip(gradients, variables, strict=True) if one is not None]
        keras = keras2 if isinstance(model, keras2.Model) else keras3
        keras.optimizers.SGD(rate).apply_gradients(reached)

    def logit(self, index: int) -> Callable[[Any], Any]:
        return lambda logits: logits[:, index]

    def summed_logit(self, index: int) -> Callable[[Any], Any]:
        return lambda logits: tf.reduce_sum(logits[:, index])
