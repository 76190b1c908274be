"""Models that make the ids of texts themselves: an error says what to give, and what it says works."""

from __future__ import annotations

import keras
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
