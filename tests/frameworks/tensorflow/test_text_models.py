"""Models that make the ids of texts themselves: an error says what to give, and what it says works."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import embgrad

TEXTS = ["a good film", "a bad film"]
LOGIT = embgrad.Logit(1)


def with_vocabulary() -> keras.Sequential:
    """Return a model of texts: ids, their vectors, the mean of these, two classes."""
    vectorize = keras.layers.TextVectorization(max_tokens=20, output_sequence_length=4)
    vectorize.adapt(TEXTS)
    layers = [keras.layers.Embedding(20, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)]
    model = keras.Sequential([vectorize, *layers])
    model(tf.constant(TEXTS))
    return model


@pytest.mark.parametrize("texts", [TEXTS, tf.constant(TEXTS)])
def test_texts_for_a_model_that_makes_the_ids_are_refused_with_what_to_give(texts: object) -> None:
    with pytest.raises(embgrad.errors.BatchError, match="give these, with call=lambda model, ids: model\\(texts\\)"):
        embgrad.gradients(with_vocabulary(), texts, LOGIT)


def test_the_ids_of_a_model_that_makes_them_have_gradients_by_call() -> None:
    model, texts = with_vocabulary(), tf.constant(TEXTS)
    ids = np.asarray(model.layers[0](texts))
    column = np.asarray(model.layers[-1].kernel)[:, 1]
    expected = np.broadcast_to(column @ np.eye(4) / 4, (2, 4, 4))  # of a mean over four positions
    result = embgrad.gradients(model, ids, LOGIT, call=lambda model, ids: model(texts))
    np.testing.assert_allclose(result.values, expected, rtol=1e-6)
    np.testing.assert_allclose(
        embgrad.gradients(keras.Sequential(model.layers[1:]), ids, LOGIT).values, expected, rtol=1e-6
    )
