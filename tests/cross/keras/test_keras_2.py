"""Models of Keras 2, which run on TensorFlow, in a process in which Keras 3 runs on JAX."""

from __future__ import annotations

import numpy as np
import pytest

import embgrad

pytestmark = [pytest.mark.framework("jax"), pytest.mark.framework("tensorflow")]

IDS = np.array([[3, 1, 4], [1, 5, 2]])


def test_keras_2_is_of_tensorflow_where_keras_3_runs_on_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    import jax  # noqa: F401
    import keras
    import tf_keras

    model = tf_keras.Sequential([tf_keras.layers.Embedding(7, 4), tf_keras.layers.Dense(2)])
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    result = embgrad.gradients(model, IDS, embgrad.Sum())
    kernel = model.layers[1].get_weights()[0]
    np.testing.assert_allclose(result.values, np.broadcast_to(kernel.sum(1), (2, 3, 4)), rtol=1e-6)
