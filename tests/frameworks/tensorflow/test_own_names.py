"""Functional Keras models of both versions whose inputs have names of their own, given by a dict with these names."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tf_keras

import embgrad

IDS, FEATURES = np.array([[5, 7, 9], [8, 2, 4]]), np.array([[0.5, 1.0], [-1.0, 2.0]], np.float32)


@pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])
def test_a_dict_with_the_names_of_the_inputs(library: Any) -> None:
    words = library.Input((None,), dtype="int32", name="words")
    features = library.Input((2,), name="features")
    rows = library.layers.GlobalAveragePooling1D()(library.layers.Embedding(20, 4)(words))
    outputs = library.layers.Dense(2)(library.layers.Concatenate()([rows, features]))
    model = library.Model([words, features], outputs)
    kernel = model.layers[-1].get_weights()[0]
    batch = {"features": FEATURES, "words": IDS}
    result = embgrad.gradients(model, batch, embgrad.Logit(1))
    np.testing.assert_allclose(result.values, np.broadcast_to(kernel[:4, 1] / 3, (2, 3, 4)), rtol=1e-5)
    np.testing.assert_allclose(result.objective, np.asarray(model([IDS, FEATURES]))[:, 1], rtol=1e-5)
    np.testing.assert_array_equal(
        embgrad.gradients(model, batch, embgrad.Logit(1), batch_size=1).objective.round(5), result.objective.round(5)
    )
    with pytest.raises(embgrad.errors.BatchError, match="the model's inputs are 'words', 'features', and none has"):
        embgrad.gradients(model, {"words": IDS}, embgrad.Logit(1))
