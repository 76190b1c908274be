"""Certificates of TensorFlow's models: kinks, mixed precision, and the dtype that a result says it was computed in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad

IDS = np.array([[5, 2, 9, 4, 0, 7], [3, 8, 1, 0, 0, 2], [5, 5, 2, 7, 3, 1]])
OBJECTIVE = embgrad.CrossEntropy([0, 1, 2])


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
