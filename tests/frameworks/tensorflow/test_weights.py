"""The weights of TensorFlow models: Keras 2 and 3, Hugging Face's, tf.Modules, SavedModels, under the user's tape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_hub as hub
import tf_keras as keras2

import embgrad
from embgrad.engine.weights import depth_of, substitute, weights_of

IDS = [[3, 5, 7, 2], [4, 1, 6, 8]]
SAVED = Path(__file__).parents[2] / "data" / "tfhub_bert_tiny"


def net(keras: Any) -> Any:
    layers = keras.layers
    model = keras.Sequential(
        [layers.Embedding(20, 6), layers.GlobalAveragePooling1D(), layers.BatchNormalization(), layers.Dropout(0.1)]
    )
    model.add(layers.Dense(3, name="head"))
    model(np.array(IDS))
    model.compile(optimizer="adam", loss="mse", metrics=["mae"], run_eagerly=True)
    model.fit(np.array(IDS), np.zeros((2, 3)), verbose=0)
    return model


@pytest.mark.parametrize("keras", [keras2, keras3], ids=["keras2", "keras3"])
def test_variables_without_the_optimisers_and_the_metrics(keras: Any) -> None:
    model = net(keras)
    found = weights_of(model)
    assert len(found) == 7  # table, gamma, beta, two averages, kernel, bias
    assert [one.module for one in found if one.shape == (6, 3)] == ["head"]
    assert depth_of(model) == 2
    (head,) = (one for one in found if one.shape == (6, 3))
    kernel = next(layer for layer in model.layers if layer.name == "head").kernel
    before = np.array(kernel)
    with tf.GradientTape() as tape, substitute(model, {head.name: np.ones((6, 3))}):
        with tape.stop_recording():  # what the test itself reads
            np.testing.assert_array_equal(np.array(kernel), 1)
        assert (embgrad.gradients(model, IDS, embgrad.Sum()).values != 0).any()
    assert tape.watched_variables() == ()
    assert np.array(kernel).tobytes() == before.tobytes()


@pytest.mark.parametrize("load", [tf.saved_model.load, hub.KerasLayer], ids=["saved_model", "hub"])
def test_a_saved_model(load: Any) -> None:
    model = load(str(SAVED))
    batch = embgrad.TokenBatch([[2, 7, 8, 3]], convention="tfhub")
    before = embgrad.gradients(model, batch, embgrad.Sum(output="pooled"))
    found = {one.name: one for one in weights_of(model)}
    name = "transformer/layer_1/self_attention/query/kernel:0"
    assert found[name].module == name.rpartition("/")[0]
    scopes = [point.path for point in embgrad.points(model, batch)]
    assert any(scope.endswith(f"/{found[name].module}") for scope in scopes)
    with substitute(model, {name: found[name].get() * 3}):
        meanwhile = embgrad.gradients(model, batch, embgrad.Sum(output="pooled"))
    assert embgrad.common.metrics.figures_of(before.values, meanwhile.values).relative_l2 > 1e-3
    after = embgrad.gradients(model, batch, embgrad.Sum(output="pooled"))
    np.testing.assert_array_equal(after.values, before.values)
