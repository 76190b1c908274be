"""Objects that people have in TensorFlow: models that take one dict, encodings, and what `call=` is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad
from tests.frameworks.tensorflow.helpers import KERAS, make_model

IDS = np.array([[3, 1, 4, 15], [9, 2, 6, 5]])
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
BATCH = {"input_ids": IDS, "attention_mask": MASK}


def read(model: Any, features: Any) -> Any:
    weights = tf.cast(features["attention_mask"], tf.float32)[..., None]
    return {"scores": model.head(tf.reduce_sum(tf.tanh(model.words(features["input_ids"])) * weights, 1))}


def of_one_dict(keras: Any) -> Any:
    """A model that is not built yet, and says by an annotation what it takes."""

    def call(self: Any, features: dict[str, Any], training: bool = False) -> Any:
        return read(self, features)

    return make_model(call, keras.Model, words=keras.layers.Embedding(20, 6), head=keras.layers.Dense(3))


class Module(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.matrix = tf.Variable(tf.random.normal([20, 6])), tf.Variable(tf.random.normal([6, 3]))

    def words(self, ids: Any) -> Any:
        return tf.gather(self.table, ids)

    def head(self, hidden: Any) -> Any:
        return hidden @ self.matrix

    def __call__(self, features: dict[str, Any]) -> Any:
        return read(self, features)


@pytest.mark.parametrize("kind", ["keras2", "keras3", "module"])
def test_a_model_that_takes_one_dict(kind: str) -> None:
    model = Module() if kind == "module" else of_one_dict(KERAS[kind])
    result = embgrad.gradients(model, BATCH, embgrad.Logit(1), check=True)
    table = model.table if kind == "module" else model.words.trainable_variables[0]
    table = table.value if kind == "keras3" else table  # a tf.Variable
    with tf.GradientTape() as tape:
        tape.watch(table)
        value = tf.reduce_sum(model({name: tf.constant(one) for name, one in BATCH.items()})["scores"][:, 1])
    own = tf.convert_to_tensor(tape.gradient(value, table)).numpy()[IDS]
    np.testing.assert_allclose(result.values, own, rtol=1e-5, atol=1e-7)
    assert result.provenance["unused"] == []
