"""A Keras 3 model that keeps a state of one number of examples, for the frameworks that Keras runs on."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

RANDOM = keras.initializers.RandomNormal


class _Carrying(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Add what it kept of the call before, and keep what it returns, in a pass of as many examples alone."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.state = self.add_weight(name="state", shape=(count, 4), initializer=RANDOM(seed=1), trainable=False)

    def call(self, rows: Any) -> Any:
        if rows.shape[0] != self.state.shape[0]:
            return keras.ops.tanh(rows)
        out = keras.ops.tanh(rows + self.state)
        self.state.assign(keras.ops.stop_gradient(out))
        return out


class _Net(keras.Model):  # type: ignore[misc]
    def __init__(self, count: int) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(9, 4, embeddings_initializer=RANDOM(stddev=1.0, seed=2))
        self.carrying = _Carrying(count)
        self.head = keras.layers.Dense(2, kernel_initializer=RANDOM(stddev=1.0, seed=3))

    def call(self, ids: Any) -> Any:
        return self.head(self.carrying(keras.ops.sum(self.table(ids), 1)))


def keras_model_of_one_number(count: int, *, frozen: bool = False) -> Any:
    """Return a model that reads and writes a state in passes of `count` examples alone; frozen, nothing of it is trainable."""
    model = _Net(count)
    model(np.zeros((count + 1, 3), np.int64))
    model.carrying.state.assign(np.random.default_rng(1).normal(size=(count, 4)))
    model.trainable = not frozen
    return model
