"""Substitutions in TensorFlow inside a tape, and of a Keras model in mixed precision."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tf_keras

import embgrad
from tests.frameworks.tensorflow.helpers import policy


def test_a_keras_model_in_mixed_precision() -> None:
    """Keras casts the rows to half precision after the lookup of a float32 table."""
    with policy(tf_keras, "mixed_bfloat16"):
        tf_keras.utils.set_random_seed(0)
        inputs = tf_keras.Input((5,), dtype="int32")
        rows = tf_keras.layers.Embedding(60, 8, name="table")(inputs)
        model = tf_keras.Model(inputs, tf_keras.layers.Dense(3)(tf.reduce_mean(rows, 1)))
    ids = np.random.default_rng(1).integers(0, 60, (2, 5))
    made = embgrad.substitutions(model, ids, embgrad.Logit(1), top=4)
    result = embgrad.gradients(model, ids, embgrad.Logit(1))
    table = model.get_layer("table").embeddings.numpy().astype(np.float64)
    scores = ((table - result.activations[:, :, None]) * result.values[:, :, None]).sum(-1)
    for example, position in np.ndindex(ids.shape):
        own = scores[example, position]
        own[ids[example, position]] = -np.inf
        np.testing.assert_allclose(made.scores[example, position], np.sort(own)[::-1][:4], rtol=1e-9)
