"""Searches and deletion of tokens in Keras models that read lengths: of a dict, and as a declared input."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf
import tf_keras

from tests.support.lengths_by_hand import TABLE, WEIGHT, expect_new_lengths


def logits(rows: Any, lengths: Any) -> Any:
    """Return logits of the mean and the last of the first rows."""
    real = tf.cast(tf.sequence_mask(lengths, tf.shape(rows)[1]), tf.float32)[..., None]
    mean = tf.tanh(tf.reduce_sum(rows * real, 1) / tf.cast(lengths, tf.float32)[:, None])
    return tf.matmul(mean + tf.gather(rows, lengths - 1, axis=1, batch_dims=1), WEIGHT)


class OfDict(tf_keras.Model):
    """A model called with a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf_keras.layers.Embedding(9, 4, weights=[TABLE])

    def call(self, inputs: dict[str, Any]) -> Any:
        return logits(self.table(inputs["input_ids"]), inputs["lengths"])


def declared() -> Any:
    """Return a functional model with lengths among its inputs."""
    ids = tf_keras.Input((None,), dtype="int32", name="input_ids")
    lengths = tf_keras.Input((), dtype="int32", name="lengths")
    rows = tf_keras.layers.Embedding(9, 4, weights=[TABLE])(ids)
    made = tf_keras.layers.Lambda(lambda parts: logits(*parts))([rows, lengths])
    return tf_keras.Model([ids, lengths], made)


@pytest.mark.parametrize("make", [OfDict, declared])
def test_lengths_follow_inserted_and_deleted_tokens(make: Any) -> None:
    model = make()
    call = (lambda model, inputs: model({**inputs})) if make is OfDict else None
    expect_new_lengths(model, "lengths", lambda counts: tf.constant(counts, tf.int32), call)
