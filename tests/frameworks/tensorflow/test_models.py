"""Models of the user's in Keras 2, Keras 3 and plain TensorFlow, each against finite differences in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras2

import embgrad
from tests.frameworks.tensorflow import helpers
from tests.frameworks.tensorflow.helpers import KERAS, assert_slopes, policy

IDS = np.array([[5, 2, 9, 4, 1], [3, 8, 7, 0, 0], [6, 0, 0, 0, 0]])
MASK = (IDS > 0).astype(int)
VECTOR = np.array([0.7, -1.3])


#: Of the layers that are made here.
POLICY = "float64"


def total(model: Any, inputs: Any = None) -> Any:
    """The projected logits of the user's own call."""
    given = tf.constant(IDS, tf.int32) if inputs is None else inputs
    return lambda: tf.reduce_sum(model(given) * VECTOR)


def functional(keras: Any, *layers: Any, **options: Any) -> tuple[Any, Any]:
    model = helpers.functional(keras, *layers, keras.layers.Dense(2), **options)
    return model, model.layers[1].embeddings


BODIES: dict[str, Any] = {
    "lstm": lambda k: [k.layers.LSTM(3)],
    "gru": lambda k: [k.layers.GRU(3)],
    "bidirectional": lambda k: [k.layers.Bidirectional(k.layers.LSTM(3))],
    "rnn of a cell": lambda k: [k.layers.RNN(k.layers.SimpleRNNCell(3))],
    "convolution": lambda k: [k.layers.Conv1D(4, 2, activation="tanh"), k.layers.GlobalMaxPooling1D()],
    "bag": lambda k: [k.layers.GlobalAveragePooling1D()],
    "norm": lambda k: [k.layers.LayerNormalization(), k.layers.Activation("gelu"), k.layers.GlobalAveragePooling1D()],
    "batch norm": lambda k: [k.layers.BatchNormalization(), k.layers.GlobalAveragePooling1D()],
}


@pytest.mark.parametrize("body", BODIES)
def test_functional(keras: Any, body: str) -> None:
    model, table = functional(keras, *BODIES[body](keras))
    result = embgrad.gradients(model, IDS, embgrad.Projection(VECTOR))
    assert result.values.dtype == np.float64
    assert_slopes(result, table, total(model))


@pytest.mark.parametrize("built", [True, False])
def test_sequential(keras: Any, built: bool) -> None:
    model = keras.Sequential([keras.layers.Embedding(12, 4), keras.layers.LSTM(3), keras.layers.Dense(2)])
    if built:
        model(tf.constant(IDS, tf.int32))
    result = embgrad.gradients(model, IDS, embgrad.Projection(VECTOR))
    assert_slopes(result, model.layers[0].embeddings, total(model))
    assert result.provenance["path"] == f"{model.layers[0].name}#0"


def test_nested_models(keras: Any) -> None:
    encoder, table = functional(keras, keras.layers.LSTM(3))
    ids = keras.layers.Input((None,), dtype="int32", name="input_ids")
    outer = keras.Model(ids, keras.layers.Dense(2)(keras.Sequential([encoder, keras.layers.Dense(3)])(ids)))
    result = embgrad.gradients(outer, IDS, embgrad.Projection(VECTOR))
    assert_slopes(result, table, total(outer))


def test_several_outputs_go_by_their_layers_names(keras: Any) -> None:
    ids = keras.layers.Input((None,), dtype="int32")
    table = keras.layers.Embedding(12, 4)
    rows = keras.layers.LSTM(3)(table(ids))
    model = keras.Model(ids, [keras.layers.Dense(3, name="other")(rows), keras.layers.Dense(2, name="logits")(rows)])
    result = embgrad.gradients(model, IDS, embgrad.Projection(VECTOR))
    assert_slopes(result, table.embeddings, lambda: tf.reduce_sum(model(tf.constant(IDS, tf.int32))[1] * VECTOR))
    with pytest.raises(embgrad.errors.OutputError, match="'other', 'logits'"):
        embgrad.gradients(model, IDS, embgrad.Projection(VECTOR, output="third"))


class TestSubclassed:
    """`call` of the user's own."""

    def build(self, keras: Any, call: Any) -> Any:
        class Net(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.words = keras.layers.Embedding(12, 4)
                self.places = keras.layers.Embedding(5, 4)
                self.body = [keras.layers.Dense(3, activation="tanh"), keras.layers.LSTM(3)]
                self.head = keras.layers.Dense(2)

        Net.call = call
        return Net()

    def check(self, keras: Any, call: Any, given: Any = IDS, inputs: Any = None, **kwargs: Any) -> Any:
        model = self.build(keras, call)
        result = embgrad.gradients(model, given, embgrad.Projection(VECTOR))
        plain = tf.constant(IDS, tf.int32) if inputs is None else inputs
        assert_slopes(result, model.words.embeddings, lambda: tf.reduce_sum(model(plain, **kwargs) * VECTOR))
        assert result.provenance["path"] == "words#0"
        return result

    def test_inputs(self, keras: Any) -> None:
        def call(self: Any, inputs: Any, training: Any = None) -> Any:
            rows = self.words(inputs)
            for layer in self.body:
                rows = layer(rows)
            return self.head(rows)

        self.check(keras, call)

    def test_a_tf_function(self, keras: Any) -> None:
        @tf.function
        def call(self: Any, x: Any) -> Any:
            places = self.places(tf.range(tf.shape(x)[1]))
            return self.head(tf.reduce_mean(tf.tanh(self.words(x) + places), 1))

        self.check(keras, call)

    def test_compiled_by_xla(self, keras: Any) -> None:
        @tf.function(jit_compile=True)
        def call(self: Any, x: Any) -> Any:
            return self.head(tf.reduce_mean(tf.tanh(self.words(x)), 1))

        self.check(keras, call)

    def test_mask_arrives_as_booleans(self, keras: Any) -> None:
        def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
            assert mask.dtype == tf.bool
            return self.head(self.body[1](self.words(inputs), mask=mask))

        self.check(keras, call, {"input_ids": IDS, "attention_mask": MASK}, mask=tf.constant(MASK, tf.bool))

    def test_named_arguments(self, keras: Any) -> None:
        def call(self: Any, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
            assert token_type_ids is None
            rows = self.words(input_ids)
            return self.head(tf.reduce_sum(tf.cast(attention_mask, rows.dtype)[..., None] * tf.tanh(rows), 1))

        result = self.check(
            keras, call, {"input_ids": IDS, "attention_mask": MASK}, attention_mask=tf.constant(MASK, tf.int32)
        )
        assert result.provenance["unused"] == []

    def test_lookup_in_the_variable_of_a_layer(self, keras: Any) -> None:
        def call(self: Any, inputs: Any) -> Any:
            if not self.words.built:
                self.words.build(None)
            rows = tf.gather(tf.convert_to_tensor(self.words.embeddings), tf.reshape(inputs, [-1]))
            return self.head(tf.reduce_mean(tf.tanh(tf.reshape(rows, [*inputs.shape, 4])), 1))

        self.check(keras, call)


class _Net(tf.Module):
    """Looks rows up in one of the ways below, and multiplies their mean."""

    def __init__(self, look_up: Any) -> None:
        super().__init__()
        random = np.random.default_rng(2)
        self.rows = tf.Variable(random.normal(size=(12, 4)))
        self.weight = tf.Variable(random.normal(size=(4, 2)), trainable=False)
        self.columns = tf.Variable(random.normal(size=(len(IDS), 12)))
        self.look_up = look_up

    def __call__(self, ids: Any) -> Any:
        return tf.matmul(tf.reduce_mean(tf.tanh(self.look_up(self, ids)), 1), self.weight)


class _WithSignature(_Net):
    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int64)])
    def __call__(self, ids: Any) -> Any:
        assert ids.dtype == tf.int64
        return super().__call__(ids)


class _WithLoop(_Net):
    @tf.function
    def __call__(self, ids: Any) -> Any:
        rows = tf.gather(self.rows, ids)
        state = tf.zeros_like(rows[:, 0])
        for position in tf.range(tf.shape(ids)[1]):
            state = tf.tanh(state + rows[:, position])
        return tf.matmul(state, self.weight)


def _rows_looked_up_again(net: Any, ids: Any) -> Any:
    """Return rows whose gradient is an IndexedSlices."""
    rows = tf.gather(net.rows, ids)
    return tf.gather(rows, [0, 1, 2]) + tf.gather(rows, [2, 0, 1])


def _times_columns(net: Any, ids: Any) -> Any:
    """Return rows times entries of a matrix in which each example has a row, which is no lookup of rows."""
    entries = tf.raw_ops.ResourceGather(resource=net.columns.handle, indices=ids, dtype=tf.float64, batch_dims=1)
    return tf.gather(net.rows, ids) * entries[..., None]


PLAIN: dict[str, Any] = {
    "gather": lambda net, ids: tf.gather(net.rows, ids),
    "gather_nd": lambda net, ids: tf.gather_nd(net.rows, ids[..., None]),
    "gather_nd of a tensor": lambda net, ids: tf.gather_nd(tf.identity(net.rows), ids[..., None]),
    "a raw operation": lambda net, ids: tf.raw_ops.GatherV2(params=net.rows.value(), indices=ids, axis=0),
    "times columns": _times_columns,
    "rows looked up again": _rows_looked_up_again,
}


@pytest.mark.parametrize("net", [*PLAIN, _WithSignature, _WithLoop])
def test_modules_without_keras(net: Any) -> None:
    model = _Net(PLAIN[net]) if net in PLAIN else net(PLAIN["gather"])
    result = embgrad.gradients(model, IDS, embgrad.Projection(VECTOR))
    assert_slopes(result, model.rows, total(model, tf.constant(IDS, tf.int64 if net is _WithSignature else tf.int32)))
    assert result.provenance["path"] == "rows#0"


def test_a_table_that_is_computed() -> None:
    model, doubled = _Net(lambda net, ids: tf.gather(2 * net.rows, ids)), _Net(PLAIN["gather"])
    doubled.rows.assign(2 * model.rows)
    result, expected = (embgrad.gradients(net, IDS, embgrad.Projection(VECTOR)) for net in (model, doubled))
    np.testing.assert_array_equal(result.activations, 2 * model.rows.numpy()[IDS])
    np.testing.assert_allclose(result.values, expected.values, rtol=1e-12)
    assert result.provenance["path"] == "lookup#0"


def test_a_bare_tf_function() -> None:
    rows = tf.Variable(np.random.default_rng(0).normal(size=(12, 2)))
    function = tf.function(lambda ids: tf.reduce_sum(tf.tanh(tf.gather(rows, ids)), 1))
    result = embgrad.gradients(function, IDS, embgrad.Projection(VECTOR))
    assert_slopes(result, rows, total(function))
    assert result.provenance["path"] == "rows#0"


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
@pytest.mark.parametrize("keras", sorted(KERAS))
def test_half_precision(keras: str, name: str) -> None:
    made = KERAS[keras]
    with policy(made, name):
        ids = made.layers.Input((None,), dtype="int32")
        table, head = made.layers.Embedding(12, 4), made.layers.Dense(2)
        model = made.Model(ids, head(made.layers.GlobalAveragePooling1D()(table(ids))))
    result = embgrad.gradients(model, IDS, embgrad.Projection(VECTOR))
    kernel = np.asarray(tf.convert_to_tensor(head.kernel), np.float64)
    expected = np.broadcast_to(kernel @ VECTOR / IDS.shape[1], result.values.shape)
    np.testing.assert_allclose(result.values, expected, rtol=0.02, atol=0.01)
    assert result.values.dtype == np.float32
    # a mixed policy casts the rows, not the table: all that comes after is computed so
    assert result.provenance["compute_dtype"] == name.removeprefix("mixed_")
    assert result.provenance["path"] == f"{table.name}#0"


class _AnyArguments(keras2.Model):
    def __init__(self) -> None:
        super().__init__()
        self.table = keras2.layers.Embedding(12, 2)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return tf.reduce_sum(
            self.table(args[0]["input_ids"]) * tf.cast(args[0]["attention_mask"], "float32")[..., None], 1
        )


def test_a_keras_call_of_any_arguments() -> None:
    batch = {"input_ids": IDS, "attention_mask": MASK}
    result = embgrad.gradients(_AnyArguments(), batch, embgrad.Projection(VECTOR))
    np.testing.assert_allclose(result.values, MASK[..., None] * VECTOR, rtol=1e-6)
