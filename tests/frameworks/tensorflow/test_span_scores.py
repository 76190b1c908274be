"""Scores of positions: the spans of answers in a padded batch are those of each example alone, compiled or not."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import transformers

import embgrad

LONG, SHORT = [2, 7, 8, 9, 6, 3], [2, 7, 8, 3]
PAIR = {"input_ids": np.array([LONG, [*SHORT, 0, 0]]), "attention_mask": np.array([[1] * 6, [1] * 4 + [0] * 2])}
ALONE = {"input_ids": np.array([SHORT]), "attention_mask": np.ones((1, 4), int)}


@pytest.mark.parametrize("compiled", [False, True])
def test_a_padded_example_is_as_alone(compiled: bool) -> None:
    tf.random.set_seed(0)
    config = transformers.DistilBertConfig(
        vocab_size=20, dim=8, n_layers=1, n_heads=2, hidden_dim=12, max_position_embeddings=12, initializer_range=0.5
    )
    model = transformers.TFDistilBertForQuestionAnswering(config)
    for make in (embgrad.CrossEntropy, embgrad.Margin):
        alone = embgrad.gradients(model, ALONE, make([2], output="start_logits"), compile=compiled)
        whole = embgrad.gradients(model, PAIR, make([2, 2], output="start_logits"), compile=compiled)
        np.testing.assert_allclose(whole.objective[1], alone.objective[0], rtol=1e-5)
        np.testing.assert_allclose(whole.values[1, :4], alone.values[0], rtol=1e-3, atol=1e-5)
        assert whole.pad_leak == 0


@pytest.mark.parametrize("compiled", [False, True])
def test_an_output_without_a_name_is_probed(compiled: bool) -> None:
    ids = tf.keras.Input((None,), dtype="int32", name="input_ids")
    scores = tf.keras.layers.Dense(1)(tf.keras.layers.Embedding(20, 8)(ids))
    model = tf.keras.Model(ids, tf.keras.layers.Reshape((-1,))(scores))
    expected = (model(PAIR["input_ids"]).numpy() * PAIR["attention_mask"]).sum(1)
    with pytest.warns(embgrad.errors.EmbgradWarning, match="cannot take the mask"):
        result = embgrad.gradients(model, PAIR, embgrad.Sum(), compile=compiled)
    np.testing.assert_allclose(result.objective, expected, rtol=1e-5)
