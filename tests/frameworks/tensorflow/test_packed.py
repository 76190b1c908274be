"""Ids in one row, with the index at which each example begins, in TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import embgrad

BATCH = {"text": np.array([1, 2, 3, 4, 4, 5]), "offsets": np.array([0, 2, 5])}
REAL = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0]])


def summed(rows: Any, offsets: Any) -> Any:
    places = tf.range(tf.shape(rows)[0])
    return tf.math.segment_sum(rows, tf.searchsorted(tf.cast(offsets, tf.int32), places, side="right") - 1)


class Bag(tf.Module):  # type: ignore[misc]
    """A sum over the rows of each example."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        self.table = tf.Variable(random.normal(size=(20, 3)))
        self.weights = tf.Variable(random.normal(size=(3, 2)))

    def __call__(self, text: Any, offsets: Any) -> Any:
        return summed(tf.gather(self.table, text), offsets) @ self.weights


class Layers(tf_keras.Model):  # type: ignore[misc]
    """The same of Keras's layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = tf_keras.layers.Embedding(20, 3), tf_keras.layers.Dense(2, use_bias=False)

    def call(self, text: Any, offsets: Any) -> Any:
        return self.head(summed(self.table(text), offsets))

    @property
    def weights_of_head(self) -> Any:
        """The weights after the sum."""
        return self.head.kernel


@pytest.mark.parametrize("build", [Bag, Layers])
def test_values_have_the_examples_and_positions_of_the_texts(build: Any) -> None:
    model = build()
    model(**{name: tf.constant(value) for name, value in BATCH.items()})
    result = embgrad.gradients(model, BATCH, embgrad.Logit(1))
    np.testing.assert_array_equal(result.ids, [[1, 2, 0], [3, 4, 4], [5, 0, 0]])
    weights = model.weights.numpy() if build is Bag else model.weights_of_head.numpy()
    np.testing.assert_allclose(result.values, REAL[..., None] * weights[:, 1], rtol=1e-6)
    assert result.provenance["unused"] == []
