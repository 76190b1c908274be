"""TensorFlow: what can go wrong in a model, by the framework's own means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import tf_keras as keras

from tests.cross.diagnosis.changes_of_weights import Weights, changes_of_weights
from tests.cross.diagnosis.native_tensorflow import Port, build, core, table_of


class AlwaysDropping(keras.layers.Dropout):
    def call(self, inputs: Any, training: Any = None) -> Any:
        return super().call(inputs, training=True)


def _layers(model: Any) -> list[Any]:
    return list(core(model).encoder.layer)


def _gelu(model: Any, _: Any) -> Any:
    for layer in _layers(model):
        layer.intermediate.intermediate_act_fn = lambda x: keras.activations.gelu(x, approximate=True)
    return model


def _every(model: Any, kind: type) -> list[Any]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, kind)]


def _epsilon(model: Any, _: Any) -> Any:
    for layer in _every(model, keras.layers.LayerNormalization):
        layer.epsilon = 1e-3
    return model


def _always_dropping(model: Any, _: Any) -> Any:
    for layer in _every(model, keras.layers.Dropout):
        layer.__class__ = AlwaysDropping
        layer.rate = 0.1
    return model


def _head_zeroed(model: Any, world: Any) -> Any:
    dense = _layers(model)[1].attention.dense_output.dense
    inner, wide = dense.call, world.size.hidden
    kept = np.ones(wide, np.float32)
    kept[: wide // 4] = 0
    dense.call = lambda inputs: inner(inputs * kept)
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
    layer = _layers(model)[number]
    return layer.intermediate.dense if name == "up" else getattr(layer.attention.self_attention, name)


WEIGHTS: Final = Weights(
    find=_find,
    parameter=lambda dense, kind: dense.kernel if kind == "weight" else dense.bias,
    table=table_of,
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
    "head-zeroed": _head_zeroed,
}
