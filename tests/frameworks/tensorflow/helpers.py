"""Independent references for gradients in TensorFlow: finite differences along the table, and the framework's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras2
import transformers

KERAS = {"keras2": keras2, "keras3": keras3}


@tf.custom_gradient
def halved(x: Any) -> Any:
    """A gradient of the author's own, which is no slope; x itself is given, as `tf.identity` would give it."""
    return x, lambda gradient: 0.5 * gradient


@contextlib.contextmanager
def policy(keras: Any, name: str) -> Iterator[None]:
    """Layers made meanwhile compute in this dtype, or under this mixed policy."""
    if keras is keras3:
        get, put = keras3.config.dtype_policy, keras3.config.set_dtype_policy
    else:
        get, put = keras2.mixed_precision.global_policy, keras2.mixed_precision.set_global_policy
    was = get()
    put(name)
    try:
        yield
    finally:
        put(was)


def slope_along(table: Any, direction: np.ndarray, total: Callable[[], Any], step: float = 2e-5) -> float:
    """The central difference, of fourth order, of a number that depends on a table, when the table moves."""
    found = table.numpy()

    def at(distance: float) -> float:
        table.assign(found + distance * direction)
        return float(total())

    try:
        return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)
    finally:
        table.assign(found)


def assert_slopes(result: Any, table: Any, total: Callable[[], Any], *, rel: float = 1e-7, step: float = 2e-5) -> None:
    """The result's table gradient is the slope of `total` in random directions, and row by row where it is largest."""
    assert np.abs(result.values).max() > 0
    random = np.random.default_rng(3)
    shape = tuple(table.shape)
    own = result.table().to_dense()
    scale = np.linalg.norm(own)
    directions = [random.normal(size=shape)]
    for row in np.unique(result.ids)[:2]:
        directions.append(np.zeros(shape))
        directions[-1][row] = random.normal(size=shape[1])
    for direction in directions:
        slope = slope_along(table, direction, total, step)
        np.testing.assert_allclose(slope, (own * direction).sum(), atol=rel * scale, rtol=rel)


def own_table_gradient(table: Any, total: Callable[[], Any]) -> np.ndarray:
    """The gradient that TensorFlow's own tape gives for the whole table."""
    variable = getattr(table, "_value", table)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(variable)
        value = total()
    return np.asarray(tf.convert_to_tensor(tape.gradient(value, variable)))


def make_model(call: Callable[..., Any], base: Any = tf.Module, **attributes: Any) -> Any:
    """Return an object of a new subclass of a framework's class, with this call and these attributes."""
    method = "__call__" if base is tf.Module else "call"
    model = type("Net", (base,), {method: call})()
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


def functional(keras: Any, *layers: Any, mask_zero: bool = False, dtype: str = "int32", **names: Any) -> Any:
    """Return a functional model of an embedding and these layers."""
    ids = keras.layers.Input((None,), dtype=dtype, **names)
    value = keras.layers.Embedding(12, 4, mask_zero=mask_zero)(ids)
    for layer in layers:
        value = layer(value)
    return keras.Model(ids, value)


def small_bert(name: str, **options: Any) -> Any:
    """Return a BERT of Hugging Face's class of that name, with 12 rows of 4 columns."""
    sizes = {"vocab_size": 12, "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**{**sizes, "intermediate_size": 6, **options})
    return getattr(transformers, name)(config)


def small_gpt2(name: str, **options: Any) -> Any:
    """Return a GPT-2 of Hugging Face's class of that name, with 12 rows of 4 columns."""
    sizes = {"vocab_size": 12, "n_embd": 4, "n_layer": 2, "n_head": 2, "n_positions": 12}
    return getattr(transformers, name)(transformers.GPT2Config(**{**sizes, **options}))
