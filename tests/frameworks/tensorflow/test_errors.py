"""What bad input gets in TensorFlow: a specific error that says what was wrong, what was expected, what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from embgrad_tensorflow import TensorFlowBackend

import embgrad
from embgrad.errors import BatchError, UnsupportedError
from tests.frameworks.tensorflow.helpers import KERAS, functional, halved

IDS = np.array([[5, 2, 9, 4], [3, 8, 1, 0]])


class Net(tf.Module):
    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.rows = tf.Variable(np.ones((12, 2), np.float32))
        self.forward = forward

    def __call__(self, ids: Any) -> Any:
        return self.forward(self.rows, ids)


def test_a_call_inside_a_tf_function_is_refused(keras: Any) -> None:
    model = functional(keras, keras.layers.GlobalAveragePooling1D())

    def traced() -> Any:
        return embgrad.gradients(model, IDS, embgrad.Sum()).values

    message = r"inside a tf.function.*results are NumPy arrays.*Call it outside"
    with pytest.raises(UnsupportedError, match=message):
        tf.function(traced, autograph=False)()
    with pytest.raises(Exception, match=f"UnsupportedError: embgrad was called {message}"):  # AutoGraph wraps any error
        tf.function(traced)()
    weight = TensorFlowBackend().weights(model)[0]
    values = weight.get()
    calls = [lambda: TensorFlowBackend().weights(model), weight.get, lambda: weight.rows(np.array([1]))]
    for call in [*calls, lambda: weight.put(np.zeros(weight.shape))]:
        with pytest.raises(UnsupportedError, match=message):
            tf.function(call, autograph=False)()
    np.testing.assert_array_equal(weight.get(), values)


def test_a_call_in_the_scope_of_a_strategy_is_refused(keras: Any) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        layers = [keras.layers.Embedding(20, 3), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        model(np.array([[1, 2]]))
    ids = np.array([[1, 2, 3], [4, 5, 6]])
    outside = embgrad.gradients(model, ids, embgrad.Sum()).values
    with (
        strategy.scope(),
        pytest.raises(UnsupportedError, match=r"belong to a MirroredStrategy.*Call it outside"),
    ):
        embgrad.gradients(model, ids, embgrad.Sum())
    np.testing.assert_array_equal(strategy.run(lambda: embgrad.gradients(model, ids, embgrad.Sum()).values), outside)
    np.testing.assert_array_equal(embgrad.gradients(model, ids, embgrad.Sum()).values, outside)


def test_an_input_dtype_that_cannot_hold_the_ids_is_refused(keras: Any) -> None:
    model = functional(keras, keras.layers.GlobalAveragePooling1D(), dtype="float16", name="input_ids")
    big = np.array([[1, 2049]])
    with pytest.raises(BatchError, match=r"input 'input_ids' as float16, which does not hold.*2049.*int32"):
        embgrad.gradients(model, big, embgrad.Sum())


def test_a_text_input_is_refused() -> None:
    keras = KERAS["keras3"]
    ids = keras.layers.Input((), dtype="string")
    model = keras.Model(ids, ids)
    with pytest.raises(BatchError, match=r"declares its input .* as text, and the batch holds token ids"):
        embgrad.gradients(model, IDS, embgrad.Sum())


@pytest.mark.parametrize("option", [{"batch_size": 2}, {"check": True}], ids=lambda one: "".join(one))
def test_a_sparse_input_cannot_be_cut_into_examples(option: dict[str, Any]) -> None:
    class Weighing(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.Variable(np.random.default_rng(0).normal(size=(12, 4)))

        def __call__(self, input_ids: Any, bag: Any) -> Any:
            return tf.reduce_sum(tf.gather(self.table, input_ids), 1) * tf.sparse.reduce_sum(bag, 1)[:, None]

    bag = tf.sparse.from_dense(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]))
    batch = {"input_ids": np.array([[5, 7], [8, 2], [1, 11]]), "bag": bag}
    assert embgrad.gradients(Weighing(), batch, embgrad.Sum()).values[2, 0, 0] == 6
    with pytest.raises(BatchError, match=r"'bag' is a SparseTensor.*expected an array or a dense tensor"):
        embgrad.gradients(Weighing(), batch, embgrad.Sum(), **option)


def test_several_parts_without_call_are_refused(keras: Any) -> None:
    parts = [functional(keras), keras.layers.Dense(2)]
    with pytest.raises(UnsupportedError, match=r"sequence of 2 parts.*Pass call=lambda parts"):
        embgrad.gradients(parts, IDS, embgrad.Sum())


@pytest.mark.parametrize("shape", [(12,), (12, 2, 2)])
def test_ids_outside_a_table_that_is_no_matrix(shape: tuple[int, ...]) -> None:
    other = tf.Variable(tf.ones(shape))
    model = Net(lambda rows, ids: tf.reduce_sum(tf.gather(other, ids)) + tf.reduce_sum(tf.gather(rows, ids), 1))
    with pytest.raises(BatchError, match=r"id 50 at example 0, position 1 is outside the table.*12 rows"):
        embgrad.gradients(model, [[1, 50]], embgrad.Sum())


def test_a_model_that_cannot_be_called_is_refused() -> None:
    class Encoder(tf.Module):
        def encode(self, ids: Any) -> Any:
            return ids

    with pytest.raises(UnsupportedError, match=r"cannot be called.*pass call="):
        embgrad.gradients(Encoder(), IDS, embgrad.Sum())


@tf.RegisterGradient("HalvedInTests")
def _halved(_: Any, gradient: Any) -> Any:
    return 0.5 * gradient


@pytest.mark.parametrize("autograph", [False, True])
@pytest.mark.parametrize("compile", [False, True])
def test_gradient_override_maps_are_refused(compile: bool, autograph: bool) -> None:
    """Which count in a `tf.function` alone; those of `tf.custom_gradient`, which a graph has so, too, are no such ones."""

    @tf.function(autograph=autograph)
    def forward(table: Any, ids: Any) -> Any:
        rows = tf.gather(table, ids)
        with tf.compat.v1.get_default_graph().gradient_override_map({"Sin": "HalvedInTests"}):
            return tf.sin(rows)

    with pytest.raises(UnsupportedError, match=r"gradient_override_map.*Use tf\.custom_gradient"):
        embgrad.gradients(Net(forward), IDS, embgrad.Sum(), compile=compile)
    own = Net(tf.function(lambda table, ids: halved(tf.gather(table, ids))))
    found = embgrad.gradients(own, IDS, embgrad.Sum(), compile=compile)
    np.testing.assert_array_equal(found.values, np.full((*IDS.shape, 2), 0.5))
    assert tf.Graph.gradient_override_map.__module__.startswith("tensorflow.")
