"""The backend itself: what it owns, what it imports, what it says of a model's lookups."""

from __future__ import annotations

from typing import Any

import keras as keras3
import numpy as np
import tensorflow as tf
import tf_keras as keras2
from embgrad_tensorflow import TensorFlowBackend

import embgrad

IDS = np.array([[5, 2, 9, 4], [3, 8, 1, 0]])


def test_the_backend_owns_models_of_tensorflow() -> None:
    backend = TensorFlowBackend()
    function = tf.function(lambda x: x)
    ours = [
        keras2.layers.Dense(2),
        keras3.layers.Dense(2),
        keras2.Sequential([]),
        keras3.Sequential([]),
        tf.Module(),
        function,
        function.get_concrete_function(tf.constant(1)),
        type("Mine", (tf.Module,), {})(),
    ]
    assert all(backend.owns(part) for part in ours)
    assert not any(backend.owns(part) for part in (tf.constant(1), tf.Variable(1.0), tf, keras3.layers.Dense, len))


def test_versions_of_what_takes_part() -> None:
    versions = TensorFlowBackend().versions()
    assert versions["tensorflow"] == tf.__version__
    assert versions["keras"] == keras3.__version__
    assert versions["tf_keras"] == keras2.__version__


def test_paths_of_lookups() -> None:
    class Inner(keras3.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.places = self.add_weight(shape=(7, 3), name="another name")

        def call(self, ids: Any) -> Any:
            return tf.gather(tf.convert_to_tensor(self.places), tf.range(tf.shape(ids)[1]))

    class Outer(keras2.Model):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [keras2.layers.Embedding(12, 3), keras3.layers.Embedding(12, 3)]
            self._hidden = {"inner": Inner()}

        def call(self, ids: Any) -> Any:
            rows = self.blocks[0](ids) + self.blocks[1](ids) + self.blocks[1](ids)
            return tf.reduce_sum(rows + self._hidden["inner"](ids), 1)

    found = [point for point in embgrad.points(Outer(), IDS) if point.lookup is not None]
    assert [(point.name, point.roles) for point in found] == [
        ("blocks.0#0", ("word",)),
        ("blocks.1#0", ("word",)),
        ("blocks.1#1", ("word",)),
        ("_hidden.inner.places#0", ("position",)),
    ]
    assert [point.lookup.rows for point in found] == [12, 12, 12, 7]


def test_a_parameter_padding_mask_of_a_keras_model_takes_the_batchs_mask(keras: Any) -> None:
    class Masked(keras.Model):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.embed = keras.layers.Embedding(12, 3)

        def call(self, ids: Any, padding_mask: Any = None) -> Any:
            return tf.reduce_sum(self.embed(ids) * tf.cast(padding_mask, tf.float32)[..., None], 1)

    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]])
    found = embgrad.gradients(Masked(), embgrad.TokenBatch(IDS, mask), embgrad.Sum())
    np.testing.assert_array_equal(found.values, np.repeat(mask[..., None], 3, 2))
