"""Bisection of Keras models, whose layers are counted on from one copy to the next, and of SavedModels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras2

import embgrad
from embgrad.engine.weights import substitute, weights_of
from tests.support.sampling import slow

LAYERS = 4
RANDOM = np.random.default_rng(0)
BATCH = embgrad.TokenBatch(RANDOM.integers(3, 60, (3, 6)), [[1] * 6, [1] * 4 + [0] * 2, [1] * 3 + [0] * 3])
LABELS = embgrad.CrossEntropy([0, 1, 2])
KERAS = pytest.mark.parametrize("keras", [keras2, keras3], ids=["keras2", "keras3"])
SAVED = str(Path(__file__).parents[2] / "data" / "tfhub_bert_tiny")


def functional(keras: Any) -> Any:
    layers = keras.layers
    ids = keras.Input((None,), dtype="int32")
    x = layers.Embedding(60, 16)(ids)
    for _ in range(LAYERS):
        h = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 8)(h, h)])
        h = layers.Dense(24, activation="gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(16)(h)])
    return keras.Model(ids, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


def of_kind(model: Any, kind: str, number: int) -> Any:
    return [one for one in model.layers if type(one).__name__ == kind][number]


@KERAS
def test_a_functional_model(keras: Any) -> None:
    a, b = functional(keras), functional(keras)
    b.set_weights(a.get_weights())
    assert embgrad.bisect(a, b, BATCH.ids, LABELS).agrees
    dense = of_kind(b, "Dense", 3)
    kernel, bias = dense.get_weights()
    dense.set_weights([kernel * 1.01, bias])
    found = embgrad.bisect(a, b, BATCH.ids, LABELS)
    own = of_kind(a, "Dense", 3).name
    assert own != dense.name
    assert (found.module, found.direction, len(found.parameters)) == (own, "forward", 2)
    assert [one.differs for one in found.parameters] == [True, False]
    dense.set_weights([kernel, bias])
    attention = of_kind(b, "MultiHeadAttention", 2)
    query, query_bias, key, *rest = attention.get_weights()
    attention.set_weights([key, query_bias, query, *rest])
    found = embgrad.bisect(a, b, BATCH.ids, LABELS)
    assert str(found.module).startswith(of_kind(a, "MultiHeadAttention", 2).name)
    assert found.parameters[0].relation.startswith("swapped with")


@KERAS
def test_a_recurrent_model(keras: Any) -> None:
    def built() -> Any:
        layers = keras.layers
        model = keras.Sequential([layers.Embedding(60, 16), layers.LSTM(8, return_sequences=True), layers.LSTM(8)])
        model.add(layers.Dense(3))
        model(BATCH.ids)
        return model

    a, b = built(), built()
    b.set_weights(a.get_weights())
    b.layers[2].set_weights([one * 1.01 for one in a.layers[2].get_weights()])
    found = embgrad.bisect(a, b, BATCH.ids, LABELS)
    assert str(found.module).startswith(a.layers[2].name)
    assert all(one.relation == "different" for one in found.parameters)


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("transformer/layer_1/self_attention/key/kernel:0", "layer.1"),
        slow(("transformer/layer_0/output_layer_norm/gamma:0", "layer.0")),
        slow(("pooler_transform/kernel:0", "bert_encoder_1/pooler_transform:output")),
    ],
)
def test_a_saved_model(name: str, first: str) -> None:
    a, b = tf.saved_model.load(SAVED), tf.saved_model.load(SAVED)
    batch = embgrad.TokenBatch([[2, 7, 8, 3], [2, 9, 3, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]], convention="tfhub")
    (weight,) = (one for one in weights_of(b) if one.name == name)
    with substitute(b, {name: weight.get() * 1.01 + 0.01}):
        found = embgrad.bisect(a, b, batch, embgrad.Sum(output="pooled"))
    assert found.first == first
    assert str(found.module).endswith(name.rpartition("/")[0])
    assert [one.a for one in found.parameters if one.differs] == [name]
