"""Small transformers of Keras 2 and 3 layers for the tests of points, and their gradients by hand under a tape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

IDS = np.array([[5, 8, 3, 9, 2], [4, 6, 7, 1, 0]])
DIM, ROWS, LAYERS = 4, 12, 3
VECTOR = np.array([0.7, -1.1, 0.4, 0.9])


@functools.cache
def classes(keras: Any) -> tuple[type, type, type]:
    """An embedding block, a transformer's block that returns a tuple, and a model of both."""

    class Embed(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(dtype="float64")
            self.words = keras.layers.Embedding(ROWS, DIM, dtype="float64", mask_zero=True)
            self.places = keras.layers.Embedding(8, DIM, dtype="float64")
            self.norm = keras.layers.LayerNormalization(dtype="float64")

        def call(self, ids: Any) -> Any:
            return self.norm(self.words(ids) + self.places(tf.range(tf.shape(ids)[1])[None]))

    class Block(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(dtype="float64")
            self.attend = keras.layers.Dense(DIM, dtype="float64")
            self.drop = keras.layers.Dropout(0.3, dtype="float64")
            self.bend = keras.layers.Dense(DIM, activation="tanh", dtype="float64")

        def call(self, hidden: Any) -> Any:
            weights = tf.nn.softmax(tf.matmul(self.attend(hidden), hidden, transpose_b=True))
            hidden = hidden + tf.matmul(weights, hidden)
            bent = self.bend(self.drop(hidden))
            return hidden + bent, bent

    class Model(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = Embed()
            self.blocks = [Block() for _ in range(LAYERS)]
            self.head = keras.layers.Dense(4, dtype="float64")

        def call(self, ids: Any) -> Any:
            hidden = self.embed(ids)
            for block in self.blocks:
                hidden, _ = block(hidden)
            return self.head(hidden)

    return Embed, Block, Model


def build(keras: Any) -> Any:
    keras.utils.set_random_seed(7)
    model = classes(keras)[2]()
    model(tf.constant(IDS, tf.int32))
    for variable in model.variables:
        variable.assign(np.random.default_rng(len(variable.shape)).normal(size=variable.shape))
    return model


def by_hand(model: Any, change: Mapping[int, Callable[[Any], Any]] | None = None) -> dict[str, tuple[Any, Any]]:
    """The activations and gradients of the objective, the projection on `VECTOR`, at each point, under a tape.

    Args:
        model: one of `build`.
        change: by layer what goes on in place of its output.
    """
    ids = tf.constant(IDS, tf.int32)
    tensors: dict[str, Any] = {}
    with tf.GradientTape() as tape:
        tensors["word"] = tf.gather(tf.convert_to_tensor(model.embed.words.embeddings), ids)
        tensors["position"] = tf.gather(tf.convert_to_tensor(model.embed.places.embeddings), [range(IDS.shape[1])])
        tensors["embeddings"] = hidden = model.embed.norm(tensors["word"] + tensors["position"])
        for number, block in enumerate(model.blocks):
            hidden = block(hidden)[0]
            if change and number in change:
                hidden = change[number](hidden)
                tape.watch(hidden)
            tensors[f"layer.{number}"] = hidden
        total = tf.reduce_sum(model.head(hidden) * VECTOR)
    gradients = tape.gradient(total, list(tensors.values()))
    found = zip(tensors.items(), gradients, strict=True)
    return {name: (one.numpy(), None if grad is None else grad.numpy()) for (name, one), grad in found}


def close(found: Any, expected: Any, rel: float = 1e-10) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= rel * np.abs(expected).max()
