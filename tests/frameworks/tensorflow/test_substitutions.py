"""Substitutions in TensorFlow: the same ids as a tape's gradient of a BERT and its whole table give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
import transformers

import embgrad
from tests.frameworks.tensorflow.helpers import policy

VOCAB, TOP = 500, 256
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


def by_hand(model: Any, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and scores, (example, position, top), from the tape's gradient at the embeddings that are passed in."""
    model(tf.constant(IDS))
    table = model.bert.embeddings.weight
    rows = tf.gather(table, IDS)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        logit = model(None, inputs_embeds=rows, attention_mask=tf.constant(MASK)).logits[:, 1]
    slopes = tape.gradient(logit, rows).numpy().astype(np.float64)
    dense = table.numpy().astype(np.float64)
    scores = ((dense - dense[IDS][:, :, None]) * slopes[:, :, None]).sum(-1)
    np.put_along_axis(scores, IDS[..., None], -np.inf * sign, 2)
    order = np.argsort(-sign * scores, axis=-1, kind="stable")[..., :TOP]
    return order, np.take_along_axis(scores, order, -1)


@pytest.mark.parametrize(("goal", "sign"), [("maximize", 1), ("minimize", -1)])
def test_the_best_ids_are_those_of_a_dense_computation_by_hand(goal: str, sign: int) -> None:
    model = bert()
    ids, scores = by_hand(model, sign)
    batch = {"input_ids": IDS, "attention_mask": MASK}
    made = embgrad.substitutions(model, batch, embgrad.Logit(1), top=TOP, goal=goal)
    real = MASK.astype(bool)
    np.testing.assert_array_equal(made.searched, real)
    np.testing.assert_array_equal(made.ids[real], ids[real])
    np.testing.assert_allclose(made.scores[real], scores[real], rtol=1e-5, atol=1e-6)


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
