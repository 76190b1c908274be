"""Scores of positions in an output without a name, compiled or not."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import embgrad

LONG, SHORT = [2, 7, 8, 9, 6, 3], [2, 7, 8, 3]
PAIR = {"input_ids": np.array([LONG, [*SHORT, 0, 0]]), "attention_mask": np.array([[1] * 6, [1] * 4 + [0] * 2])}


@pytest.mark.parametrize("compiled", [False, True])
def test_an_output_without_a_name_is_probed(compiled: bool) -> None:
    ids = tf.keras.Input((None,), dtype="int32", name="input_ids")
    scores = tf.keras.layers.Dense(1)(tf.keras.layers.Embedding(20, 8)(ids))
    model = tf.keras.Model(ids, tf.keras.layers.Reshape((-1,))(scores))
    expected = (model(PAIR["input_ids"]).numpy() * PAIR["attention_mask"]).sum(1)
    with pytest.warns(embgrad.errors.EmbgradWarning, match="cannot take the mask"):
        result = embgrad.gradients(model, PAIR, embgrad.Sum(), compile=compiled)
    np.testing.assert_allclose(result.objective, expected, rtol=1e-5)
