"""TensorFlow: what can go wrong in a model, by the framework's own means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tests.cross.diagnosis.native_tensorflow import Port, build, core, is_own, table_of


class AlwaysDropping(keras.layers.Dropout):
    """Dropout that a port left on."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        return super().call(inputs, training=True)


def _layers(model: Any) -> list[Any]:
    return list(core(model).encoder.layer)


def _gelu(model: Any, _: Any) -> Any:
    if is_own(model):
        return _rebuilt(model, lambda x: keras.activations.gelu(x, approximate=True))
    for layer in _layers(model):
        layer.intermediate.intermediate_act_fn = lambda x: keras.activations.gelu(x, approximate=True)
    return model


def _first_gelu(model: Any, _: Any) -> Any:
    _layers(model)[0].intermediate.intermediate_act_fn = lambda x: keras.activations.gelu(x, approximate=True)
    return model


def _relu(model: Any, _: Any) -> Any:
    if is_own(model):
        return _rebuilt(model, keras.activations.relu)
    for layer in _layers(model):
        layer.intermediate.intermediate_act_fn = keras.activations.relu
    return model


def _first_epsilon(model: Any, _: Any) -> Any:
    norm = model.get_layer("norm2") if is_own(model) else _layers(model)[0].attention.dense_output.LayerNorm
    norm.epsilon = 1e-2
    return model


def _half_weights(model: Any, _: Any) -> Any:
    for variable in model.trainable_variables:
        variable.assign(tf.cast(tf.cast(variable, tf.float16), tf.float32))
    return model


def _unscaled_attention(model: Any, world: Any) -> Any:
    for layer in _layers(model):
        _multiplied(_projections(layer)[0], math.sqrt(world.size.hidden // world.size.heads))
    return model


def _multiplied(dense: Any, number: float) -> None:
    inner = dense.call
    dense.call = lambda inputs: inner(inputs) * number


def _rebuilt(model: Any, activation: Callable[[Any], Any]) -> Any:
    """The functional model of other wiring over the same layers."""
    layer = model.get_layer
    ids = keras.Input((None,), dtype="int32")
    x = layer("recurrent")(layer("norm")(layer("tokens")(ids)))
    x = layer("square")(layer("norm2")(layer("down")(activation(layer("up")(x))) + x))
    return keras.Model(ids, layer("head")(keras.layers.GlobalAveragePooling1D()(x)))


def _every(model: Any, kind: type) -> list[Any]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, kind)]


def _epsilon(value: float) -> Callable[[Any, Any], Any]:
    def change(model: Any, _: Any) -> Any:
        for layer in _every(model, keras.layers.LayerNormalization):
            layer.epsilon = value
        return model

    return change


def _always_dropping(model: Any, _: Any) -> Any:
    if is_own(model):
        model.get_layer("drop").__class__ = AlwaysDropping
        return model
    for layer in _every(model, keras.layers.Dropout):
        layer.__class__ = AlwaysDropping
        layer.rate = 0.1
    return model


def _projections(layer: Any) -> tuple[Any, Any, Any]:
    attention = layer.attention.self_attention
    return attention.query, attention.key, attention.value


def _flipped(variable: Any) -> None:
    variable.assign(tf.transpose(variable))


def _exchanged(one: Any, other: Any) -> None:
    before = one.numpy()
    one.assign(other)
    other.assign(before)


def _transposed(number: int, which: int) -> Callable[[Any, Any], Any]:
    def change(model: Any, _: Any) -> Any:
        _flipped(
            model.get_layer("square").kernel if is_own(model) else _projections(_layers(model)[number])[which].kernel
        )
        return model

    return change


def _transposed_output(model: Any, _: Any) -> Any:
    _flipped(_layers(model)[-1].attention.dense_output.dense.kernel)
    return model


def _swapped(numbers: tuple[int, ...]) -> Callable[[Any, Any], Any]:
    def change(model: Any, _: Any) -> Any:
        for number in numbers:
            query, key, _value = _projections(_layers(model)[number])
            _exchanged(query.kernel, key.kernel)
            _exchanged(query.bias, key.bias)
        return model

    return change


def _swapped_values(model: Any, _: Any) -> Any:
    first, second = (_projections(layer)[2] for layer in _layers(model)[:2])
    _exchanged(first.kernel, second.kernel)
    return model


def _bias_not_loaded(model: Any, _: Any) -> Any:
    dense = model.get_layer("up") if is_own(model) else _layers(model)[1].intermediate.dense
    dense.bias.assign(tf.zeros_like(dense.bias))
    return model


def _reinitialised(model: Any, world: Any) -> Any:
    kernel = model.get_layer("square").kernel if is_own(model) else _projections(_layers(model)[0])[2].kernel
    kernel.assign(np.random.default_rng([world.seed, 5]).normal(0, 0.18, tuple(kernel.shape)))
    return model


def _one_percent(model: Any, world: Any) -> Any:
    kernel = model.get_layer("square").kernel if is_own(model) else _projections(_layers(model)[1])[2].kernel
    kernel.assign(kernel * (1 + 0.01 * np.random.default_rng([world.seed, 6]).normal(size=tuple(kernel.shape))))
    return model


def _other_table(model: Any, world: Any) -> Any:
    table = table_of(model)
    table.assign(np.random.default_rng([world.seed, 7]).normal(0, 0.4, tuple(table.shape)))
    return model


def _rows_rotated(model: Any, _: Any) -> Any:
    table_of(model).assign(tf.roll(table_of(model), 7, 0))
    return model


def _scaled_lookup(model: Any, _: Any) -> Any:
    embeddings = core(model).embeddings
    inner = embeddings.call

    def call(input_ids: Any = None, **others: Any) -> Any:
        found = tf.gather(params=embeddings.weight, indices=input_ids) * math.sqrt(embeddings.hidden_size)
        return inner(**{**others, "inputs_embeds": found})

    embeddings.call = call
    return model


def _without_residual(model: Any, _: Any) -> Any:
    if is_own(model):
        return _without_sum(model)
    output = _layers(model)[1].bert_output

    def call(hidden_states: Any, input_tensor: Any, training: bool = False) -> Any:
        return output.LayerNorm(output.dropout(output.dense(hidden_states), training=training))

    output.call = call
    return model


def _without_sum(model: Any) -> Any:
    layer = model.get_layer
    ids = keras.Input((None,), dtype="int32")
    x = layer("recurrent")(layer("norm")(layer("tokens")(ids)))
    x = layer("square")(layer("norm2")(layer("down")(keras.activations.gelu(layer("up")(x)))))
    return keras.Model(ids, layer("head")(keras.layers.GlobalAveragePooling1D()(x)))


def _head_zeroed(model: Any, world: Any) -> Any:
    dense = _layers(model)[1].attention.dense_output.dense
    inner, wide = dense.call, world.size.hidden
    kept = np.ones(wide, np.float32)
    kept[: wide // 4] = 0
    dense.call = lambda inputs: inner(inputs * kept)
    return model


def _hot_attention(model: Any, _: Any) -> Any:
    _multiplied(_projections(_layers(model)[1])[0], 1.7)
    return model


def _detached(model: Any, _: Any) -> Any:
    dense = _layers(model)[1].attention.dense_output.dense
    inner = dense.call

    def call(inputs: Any) -> Any:
        found = inner(inputs)
        return found * 0.5 + tf.stop_gradient(found) * 0.5

    dense.call = call
    return model


def _in_half(name: str) -> Callable[[Any, Any], Any]:
    def change(model: Any, world: Any) -> Any:
        was = keras.mixed_precision.global_policy()
        keras.mixed_precision.set_global_policy(name)
        try:
            half = build(world.kind, world.size, world.weights, world.seed)
        finally:
            keras.mixed_precision.set_global_policy(was)
        return half

    return change


MODIFICATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "gelu": _gelu,
    "first-gelu": _first_gelu,
    "relu": _relu,
    "first-epsilon": _first_epsilon,
    "half-weights": _half_weights,
    "unscaled-attention": _unscaled_attention,
    "epsilon-1e-3": _epsilon(1e-3),
    "epsilon-1e-5": _epsilon(1e-5),
    "epsilon-1e-2": _epsilon(1e-2),
    "always-dropping": _always_dropping,
    "transposed-query": _transposed(1, 0),
    "transposed-value": _transposed(0, 2),
    "transposed-output": _transposed_output,
    "swapped-first": _swapped((0,)),
    "swapped-all": lambda model, world: _swapped(tuple(range(world.size.layers)))(model, world),
    "swapped-values": _swapped_values,
    "bias-not-loaded": _bias_not_loaded,
    "reinitialised": _reinitialised,
    "one-percent": _one_percent,
    "other-table": _other_table,
    "rows-rotated": _rows_rotated,
    "scales-lookup": _scaled_lookup,
    "float16": _in_half("mixed_float16"),
    "bfloat16": _in_half("mixed_bfloat16"),
    "ignores-mask": lambda model, _: Port(model, drop="attention_mask"),
    "ignores-types": lambda model, _: Port(model, drop="token_type_ids"),
    "offsets-positions": lambda model, _: Port(model, offset=2),
    "without-residual": _without_residual,
    "head-zeroed": _head_zeroed,
    "hot-attention": _hot_attention,
    "detached": _detached,
}
