"""Saved models to test with, and TensorFlow's own gradients for what it runs as compiled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import embgrad

TINY = Path(__file__).parents[2] / "data" / "tfhub_bert_tiny"
PREPROCESS = TINY.with_name("tfhub_bert_tiny_preprocess")

#: Ids of a small table, with a weight for each entry of the rows.
SMALL = np.array([[5, 2, 9, 4], [3, 8, 1, 0]], np.int32)
WEIGHT = np.random.default_rng(2).normal(size=(2, 4, 4)).astype(np.float32)

TOTAL = embgrad.Scalar(tf.reduce_sum)


def saved(module: Any, folder: Any, **options: Any) -> Any:
    tf.saved_model.save(module, str(folder), **options)
    return tf.saved_model.load(str(folder))


def lookups(model: Any, batch: Any) -> list[Any]:
    return [point for point in embgrad.points(model, batch) if point.lookup is not None]


class Net(tf.Module):
    """`forward(table, ids)` as its call and as `run`, which can be saved."""

    def __init__(self, forward: Callable[[Any, Any], Any], shape: tuple[int | None, int | None] = (None, None)) -> None:
        super().__init__()
        self.rows = tf.Variable(np.random.default_rng(1).normal(size=(12, 4)).astype(np.float32), name="rows")
        spec = tf.TensorSpec(shape, tf.int32, name="ids")
        self.run = tf.function(lambda ids: forward(self.rows, ids), input_signature=[spec], autograph=False)

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32, name="ids")])
    def __call__(self, ids: Any) -> Any:
        return self.run(ids)

    def saved(self, folder: Any, **options: Any) -> Any:
        return saved(self, folder, **options)


def weighed(rows: Any) -> Any:
    """One number an example."""
    return tf.reduce_sum(tf.tanh(rows) * WEIGHT, [1, 2])


def weighed_gradient(rows: np.ndarray) -> np.ndarray:
    """Its gradient, by hand."""
    return (1 - np.tanh(rows) ** 2) * WEIGHT


def slices(table: Any, total: Callable[[], Any], ids: np.ndarray) -> np.ndarray:
    """TensorFlow's own gradient at the lookup, for a model that it runs as compiled: the table's IndexedSlices."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(table)
        value = total()
    found = tape.gradient(value, table)
    assert isinstance(found, tf.IndexedSlices)
    np.testing.assert_array_equal(found.indices, ids.ravel())
    return np.asarray(found.values).reshape(*ids.shape, -1)


def close(found: Any, expected: Any, rel: float = 5e-6) -> None:
    """Within so much of the largest entry, which is not zero."""
    expected = np.asarray(expected)
    assert np.abs(expected).max() > 0
    np.testing.assert_allclose(found, expected, rtol=0, atol=rel * np.abs(expected).max())
