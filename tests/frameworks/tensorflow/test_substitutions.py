"""Substitutions in TensorFlow inside a tape, and of a Keras model in mixed precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
import transformers

import embgrad
from tests.frameworks.tensorflow.helpers import policy

VOCAB = 500
IDS = np.random.default_rng(0).integers(3, VOCAB, (2, 7)).astype(np.int32)
MASK = np.array([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]], np.int32)


def bert() -> Any:
    tf_keras.utils.set_random_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        initializer_range=0.3,
    )
    return transformers.TFBertForSequenceClassification(config)


def test_inside_a_tape_of_the_users_own() -> None:
    model = bert()
    batch = {"input_ids": IDS, "attention_mask": MASK}
    expected = embgrad.substitutions(model, batch, embgrad.Logit(1), top=5)
    with tf.GradientTape() as tape:
        made = embgrad.substitutions(model, batch, embgrad.Logit(1), top=5)
    np.testing.assert_array_equal(made.ids, expected.ids)
    assert not tape.watched_variables()


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
