"""Certificates of TensorFlow's models: kinks, mixed precision, and the dtype that a result says it was computed in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad
from tests.frameworks.tensorflow.helpers import KERAS, policy

IDS = np.array([[5, 2, 9, 4, 0, 7], [3, 8, 1, 0, 0, 2], [5, 5, 2, 7, 3, 1]])
OBJECTIVE = embgrad.CrossEntropy([0, 1, 2])


def convolved(keras: Any, seed: int, activation: str, pooling: str) -> Any:
    keras.utils.set_random_seed(seed)
    made = keras.layers
    layers = [made.Conv1D(16, 3, activation=activation), made.Dense(16, activation=activation)]
    model = keras.Sequential([made.Embedding(12, 16), *layers, getattr(made, pooling)(), made.Dense(3)])
    model(IDS)
    model.layers[0].embeddings.assign(np.random.default_rng(seed).normal(size=(12, 16)))
    return model


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("keras", sorted(KERAS))
def test_right_gradients_under_mixed_precision_get_a_certificate(keras: str, dtype: str) -> None:
    for seed in range(4):
        with policy(KERAS[keras], dtype):
            model = convolved(KERAS[keras], seed, "tanh", "GlobalAveragePooling1D")
        result = embgrad.gradients(model, IDS, OBJECTIVE, check=True)
        assert result.provenance["compute_dtype"] == dtype.removeprefix("mixed_")
        assert result.values.dtype == np.float32


class Cast(tf.Module):
    """Looks up in float64, and computes in another dtype for a moment; beside the way from the rows it casts a mask."""

    def __init__(self, inner: str) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        self.table = tf.Variable(random.normal(size=(12, 4)))
        self.head = tf.Variable(random.normal(size=(4, 3)))
        self.inner = inner

    def __call__(self, input_ids: Any) -> Any:
        counted = tf.cast(tf.cast(input_ids > 0, tf.float16), tf.float64)[..., None]
        rows = tf.gather(self.table, input_ids) * counted
        return tf.reduce_mean(tf.cast(tf.tanh(tf.cast(rows, self.inner)), tf.float64), 1) @ self.head


@pytest.mark.parametrize("inner", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("compile", [False, True])
def test_the_compute_dtype_is_the_coarsest_on_the_way(inner: str, compile: bool) -> None:
    result = embgrad.gradients(Cast(inner), IDS, OBJECTIVE, compile=compile)
    assert result.provenance["compute_dtype"] == inner
    assert result.values.dtype == np.float64
    if compile:
        assert result.provenance["compiled"]


def test_a_wrong_gradient_under_mixed_precision_gets_no_certificate() -> None:
    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def doubled(x: Any) -> Any:
        return tf.identity(x), lambda g: 2 * g

    class Broken(Cast):
        def __call__(self, input_ids: Any) -> Any:
            rows = tf.cast(doubled(tf.gather(self.table, input_ids)), self.inner)
            return tf.reduce_mean(tf.cast(tf.tanh(rows), tf.float64), 1) @ self.head

    for inner in ("float64", "float32", "float16", "bfloat16"):
        with pytest.raises(embgrad.errors.CertificationError, match="is wrong"):
            embgrad.gradients(Broken(inner), IDS, OBJECTIVE, check=True)
