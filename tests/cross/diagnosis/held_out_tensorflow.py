"""Keras: nets of several kinds, and faults that no rule of the diagnosis was written for, by the framework's own means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf
import tf_keras as keras

from tests.cross.diagnosis.held_out_list import WEIGHT, Broken, Injection, Net

VOCAB: Final = 57
layers = keras.layers


def _wired(kind: str, wide: int, *, biased: tuple[bool, bool] = (True, True), residual: bool = True) -> Any:
    """The net; `biased` says whether its two dense layers have biases."""
    ids = keras.Input((None,), dtype="int32")
    x = layers.Embedding(VOCAB, wide, name="table")(ids)
    if kind == "lstm":
        x = layers.LSTM(wide, return_sequences=True, name="recurrent")(x)
    if kind == "convolution":
        x = layers.Conv1D(wide, 3, padding="same", activation="relu", name="kernel")(x)
    activation = "tanh" if kind == "plain" else "gelu"
    if kind == "residual":
        x = layers.LayerNormalization(epsilon=1e-6, name="norm")(x)
    y = layers.Dense(wide, use_bias=biased[0], name="a")(x)
    y = layers.Activation(activation, name="act1")(y)
    y = layers.Dense(wide, use_bias=biased[1], name="b")(y)
    y = layers.Activation(activation, name="act2")(y)
    if kind == "residual":
        y = layers.LayerNormalization(epsilon=1e-6, name="norm2")(y + x if residual else y)
    y = layers.GlobalAveragePooling1D()(y)
    return keras.Model(ids, layers.Dense(3, name="head")(y))


def build(kind: str, seed: int) -> Any:
    """A healthy net; every second one with biases of zero and gains of one."""
    model = _wired(kind, (24, 32, 40)[seed % 3])
    random = np.random.default_rng([seed, 12])
    for variable in model.trainable_variables:
        if len(variable.shape) > 1:
            variable.assign(random.normal(0, 0.3, tuple(variable.shape)))
        elif seed % 2 == 0:
            variable.assign_add(tf.constant(random.normal(0, 0.2, tuple(variable.shape)), tf.float32))
    return model


NETS: Final = tuple(Net("tensorflow", kind, build) for kind in ("plain", "residual", "lstm", "convolution"))


def _rewired(model: Any, **options: Any) -> Any:
    """Another wiring with the weights that it shares."""
    names = {layer.name for layer in model.layers}
    kind = (
        "lstm"
        if "recurrent" in names
        else "convolution"
        if "kernel" in names
        else "residual"
        if "norm" in names
        else "plain"
    )
    other = _wired(kind, model.get_layer("a").kernel.shape[1], **options)
    for layer in other.layers:
        if layer.weights:
            for one, value in zip(layer.weights, model.get_layer(layer.name).weights, strict=False):
                one.assign(value)
    return other


def _of_a(change: Callable[[Any], Any], *causes: str) -> Injection:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        kernel = model.get_layer("a").kernel
        kernel.assign(change(kernel.numpy()))
        return Broken(model, (*causes, WEIGHT), "a")

    return inject


def bias_zeroed(model: Any, random: np.random.Generator) -> Broken | None:
    bias = model.get_layer("a").bias
    there = bool(bias.numpy().any())
    bias.assign(tf.zeros_like(bias))
    return Broken(model, ("missing-bias", WEIGHT), "a") if there else None


def bias_missing(model: Any, random: np.random.Generator) -> Broken | None:
    there = bool(model.get_layer("a").bias.numpy().any())
    return Broken(_rewired(model, biased=(False, True)), ("missing-bias", WEIGHT), "a") if there else None


def biases_missing(model: Any, random: np.random.Generator) -> Broken | None:
    there = bool(model.get_layer("a").bias.numpy().any())
    return Broken(_rewired(model, biased=(False, False)), ("missing-bias", WEIGHT)) if there else None


def swapped(model: Any, random: np.random.Generator) -> Broken | None:
    one, other = model.get_layer("a"), model.get_layer("b")
    values = one.get_weights()
    if "norm" in {layer.name for layer in model.layers} or one.kernel.shape != other.kernel.shape:
        return None
    one.set_weights(other.get_weights())
    other.set_weights(values)
    return Broken(model, ("swapped-weights", WEIGHT), "a")


def copied(model: Any, random: np.random.Generator) -> Broken | None:
    model.get_layer("a").kernel.assign(model.get_layer("b").kernel)
    return Broken(model, (WEIGHT,), "a")


def _each(dtype: Any) -> Injection:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        for variable in model.trainable_variables:
            variable.assign(tf.cast(tf.cast(variable, dtype), tf.float32))
        return Broken(model, ("half-weights", WEIGHT, "different-table"))

    return inject


def epsilon(model: Any, random: np.random.Generator) -> Broken | None:
    if "norm2" not in {layer.name for layer in model.layers}:
        return None
    model.get_layer("norm2").epsilon = 1e-2
    return Broken(model, ("layer-norm-epsilon",), "norm2")


def gain(model: Any, random: np.random.Generator) -> Broken | None:
    if "norm2" not in {layer.name for layer in model.layers} or (model.get_layer("norm2").gamma.numpy() == 1).all():
        return None
    model.get_layer("norm2").gamma.assign(tf.ones_like(model.get_layer("norm2").gamma))
    return Broken(model, (WEIGHT,), "norm2")


def _activation(name: str) -> Injection:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        model.get_layer("act1").activation = keras.activations.get(name)
        return Broken(model, ("activation", "gelu"))

    return inject


def residual(model: Any, random: np.random.Generator) -> Broken | None:
    if "norm2" not in {layer.name for layer in model.layers}:
        return None
    return Broken(_rewired(model, residual=False), ())


def _behind(change: Callable[[Any], Any], *causes: str) -> Injection:
    def inject(model: Any, random: np.random.Generator) -> Broken | None:
        layer = model.get_layer("b")
        inner = layer.call
        layer.call = lambda x: change(inner(x))
        return Broken(model, causes)

    return inject


INJECTIONS: Final[Mapping[str, Injection]] = {
    "one bias zeroed": bias_zeroed,
    "one layer without a bias": bias_missing,
    "every linear layer without a bias": biases_missing,
    "one weight times 1.5": _of_a(lambda kernel: 1.5 * kernel),
    "one weight zeroed": _of_a(lambda kernel: 0 * kernel),
    "one weight transposed": _of_a(lambda kernel: kernel.T, "transposed-weight"),
    "one weight's rows permuted": _of_a(lambda kernel: np.roll(kernel, 3, 0)),
    "two layers swapped": swapped,
    "one layer with another's weights": copied,
    "weights rounded to float16": _each(tf.float16),
    "weights rounded to bfloat16": _each(tf.bfloat16),
    "one epsilon 1e-2": epsilon,
    "one norm's gain not loaded": gain,
    "one sigmoid for tanh": _activation("sigmoid"),
    "one ReLU for GELU or SiLU": _activation("relu"),
    "one residual missing": residual,
    "dropout in one layer": _behind(lambda x: tf.nn.dropout(x, 0.1), "dropout"),
    "one layer's output times 1.1": _behind(lambda x: 1.1 * x),
    "one layer's output half detached": _behind(lambda x: 0.5 * x + 0.5 * tf.stop_gradient(x), "constant-factor"),
    "one layer's output clipped": _behind(lambda x: tf.clip_by_value(x, -0.5, 0.5)),
}
