"""A program with a trace, and its results without one and with one."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import tensorflow as tf

import embgrad
from tests.frameworks.tensorflow.test_models import VECTOR

IDS = np.array([[5, 2, 9, 4, 1], [3, 8, 7, 0, 0], [6, 10, 0, 0, 0]])
LONGER = np.array([[5, 2, 9, 4, 1, 11, 7], [3, 8, 7, 0, 0, 0, 0]])
PROJECTION = embgrad.Projection(VECTOR)


def both(model: Any, batch: Any, objective: Any, **options: Any) -> tuple[Any, Any]:
    """Without a trace, and with one that was made before."""
    plain = embgrad.gradients(model, batch, objective, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        embgrad.gradients(model, batch, objective, compile=True, **options)
        return plain, embgrad.gradients(model, batch, objective, compile=True, **options)


class Net(tf.Module):
    """Looks rows up and adds them up, weighed."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(1)
        self.rows = tf.Variable(random.normal(size=(12, 4)))
        self.weight = tf.Variable(random.normal(size=(4, 2)))
        self.ran = 0

    def __call__(self, ids: Any) -> Any:
        self.ran += 1
        return self.head(tf.gather(self.rows, ids))

    def head(self, rows: Any) -> Any:
        return tf.matmul(tf.reduce_mean(tf.tanh(rows), 1), self.weight)
