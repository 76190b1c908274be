"""TensorFlow: what can go wrong in a model, by the framework's own means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tests.cross.diagnosis.changes_of_weights import Weights, changes_of_weights
from tests.cross.diagnosis.native_tensorflow import Port, build, core, is_own, table_of


class AlwaysDropping(keras.layers.Dropout):
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


def _multiplied(dense: Any, number: float) -> None:
    inner = dense.call
    dense.call = lambda inputs: inner(inputs) * number


def _rebuilt(model: Any, activation: Callable[[Any], Any], *, residual: bool = True) -> Any:
    """Return the functional model with other wiring over the same layers."""
    layer = model.get_layer
    ids = keras.Input((None,), dtype="int32")
    x = layer("recurrent")(layer("norm")(layer("tokens")(ids)))
    y = layer("down")(activation(layer("up")(x)))
    x = layer("square")(layer("norm2")(y + x if residual else y))
    return keras.Model(ids, layer("head")(keras.layers.GlobalAveragePooling1D()(x)))


def _every(model: Any, kind: type) -> list[Any]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, kind)]


def _epsilon(model: Any, _: Any) -> Any:
    for layer in _every(model, keras.layers.LayerNormalization):
        layer.epsilon = 1e-3
    return model


def _always_dropping(model: Any, _: Any) -> Any:
    if is_own(model):
        model.get_layer("drop").__class__ = AlwaysDropping
        return model
    for layer in _every(model, keras.layers.Dropout):
        layer.__class__ = AlwaysDropping
        layer.rate = 0.1
    return model


def _without_residual(model: Any, _: Any) -> Any:
    if is_own(model):
        return _rebuilt(model, keras.activations.gelu, residual=False)
    output = _layers(model)[1].bert_output

    def call(hidden_states: Any, input_tensor: Any, training: bool = False) -> Any:
        return output.LayerNorm(output.dropout(output.dense(hidden_states), training=training))

    output.call = call
    return model


def _head_zeroed(model: Any, world: Any) -> Any:
    dense = _layers(model)[1].attention.dense_output.dense
    inner, wide = dense.call, world.size.hidden
    kept = np.ones(wide, np.float32)
    kept[: wide // 4] = 0
    dense.call = lambda inputs: inner(inputs * kept)
    return model


def _hot_attention(model: Any, _: Any) -> Any:
    _multiplied(_find(model, 1, "query"), 1.7)
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


def _find(model: Any, number: int, name: str) -> Any:
    if is_own(model):
        return model.get_layer("up" if name == "up" else "square")
    layer = _layers(model)[number]
    if name == "up":
        return layer.intermediate.dense
    return layer.attention.dense_output.dense if name == "output" else getattr(layer.attention.self_attention, name)


WEIGHTS: Final = Weights(
    find=_find,
    parameter=lambda dense, kind: dense.kernel if kind == "weight" else dense.bias,
    table=table_of,
    every=lambda model: model.trainable_variables,
    read=lambda variable: variable.numpy(),
    write=lambda variable, value: variable.assign(value.astype(np.float32)),
)


MODIFICATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    **changes_of_weights(WEIGHTS),
    "gelu": _gelu,
    "epsilon-1e-3": _epsilon,
    "always-dropping": _always_dropping,
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
