"""TensorFlow's own ways to hand back a wrong gradient in silence, each against finite differences in float64."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from embgrad_tensorflow.lookup import Watcher
from embgrad_tensorflow.walk import Tables

import embgrad
from embgrad.model_points.recorder import PassRecorder
from tests.frameworks.tensorflow.helpers import assert_slopes, make_model

IDS = np.array([[5, 2, 9, 4], [3, 8, 0, 0], [6, 0, 0, 0]])
VECTOR = np.array([0.7, -1.3])
OBJECTIVE = embgrad.Projection(VECTOR)


#: Of the layers that are made here.
POLICY = "float64"


def masked_lstm(keras: Any) -> tuple[Any, Any]:
    ids = keras.layers.Input((None,), dtype="int32")
    table = keras.layers.Embedding(12, 4, mask_zero=True, embeddings_initializer="random_normal")
    return keras.Model(ids, keras.layers.Dense(2)(keras.layers.LSTM(3)(table(ids)))), table.embeddings


def subclassed(keras: Any, decorate: Any) -> Any:
    @decorate
    def call(self: Any, x: Any) -> Any:
        if not tf.executing_eagerly():
            self.traces.append(1)
        return self.head(self.rnn(self.table(x)))

    model = make_model(
        call,
        keras.Model,
        table=keras.layers.Embedding(12, 4, mask_zero=True),
        rnn=keras.layers.LSTM(3),
        head=keras.layers.Dense(2),
        traces=[],
    )
    model.table.build(None)
    model.rnn.build((None, None, 4))
    model.head.build((None, 3))
    return model


def total(model: Any) -> Any:
    return lambda: tf.reduce_sum(model(tf.constant(IDS, tf.int32)) * VECTOR)


@pytest.mark.parametrize("order", ["traced before", "traced after"])
def test_traces_of_call_are_unchanged(keras: Any, order: str) -> None:
    model = subclassed(keras, tf.function)
    ids = tf.constant(IDS, tf.int32)
    plain = subclassed(keras, lambda call: call)
    plain.set_weights(model.get_weights())
    expected = plain(ids).numpy()
    if order == "traced before":
        np.testing.assert_allclose(model(ids), expected, rtol=1e-12)
    before = len(model.traces)
    result = embgrad.gradients(model, IDS, OBJECTIVE)
    assert len(model.traces) == before  # nothing is traced on the way
    np.testing.assert_allclose(model(ids), expected, rtol=1e-12)
    np.testing.assert_allclose(model(ids), expected, rtol=1e-12)
    assert len(model.traces) == 1  # one trace in all, the user's own, and it is kept
    assert_slopes(result, plain.table.embeddings, total(plain))


@pytest.mark.parametrize("order", ["predict before", "predict after"])
def test_the_function_of_predict_is_unchanged(keras: Any, order: str) -> None:
    model, _ = masked_lstm(keras)
    expected = model(tf.constant(IDS, tf.int32)).numpy()
    if order == "predict before":
        model.predict(IDS, verbose=0)
    function = model.predict_function
    embgrad.gradients(model, IDS, OBJECTIVE)
    assert model.predict_function is function
    np.testing.assert_allclose(model.predict(IDS, verbose=0), expected, rtol=1e-6)
    assert function is None or model.predict_function is function
    changed = [value + 0.1 for value in model.get_weights()]
    model.set_weights(changed)  # a trace with weights or probes baked in would not follow
    np.testing.assert_allclose(model.predict(IDS, verbose=0), model(tf.constant(IDS, tf.int32)), rtol=1e-6)


def test_a_stale_trace_is_not_used(keras: Any) -> None:
    @tf.function
    def call(self: Any, x: Any) -> Any:
        return self.head(tf.reduce_sum(tf.tanh(self.norm(self.table(x))), 1))

    model = make_model(
        call,
        keras.Model,
        table=keras.layers.Embedding(12, 4),
        norm=keras.layers.LayerNormalization(epsilon=1e-3),
        head=keras.layers.Dense(2),
    )
    model.table.build(None)
    model.norm.build((None, None, 4))
    model.head.build((None, 4))
    model(tf.constant(IDS, tf.int32))
    model.norm.epsilon = 10.0
    result = embgrad.gradients(model, IDS, OBJECTIVE)

    def as_it_is_now() -> Any:
        rows = model.norm(model.table(tf.constant(IDS, tf.int32)))
        return tf.reduce_sum(model.head(tf.reduce_sum(tf.tanh(rows), 1)) * VECTOR)

    assert_slopes(result, model.table.embeddings, as_it_is_now)


@pytest.mark.parametrize(
    "lookup",
    [
        lambda table, ids: tf.gather(table, ids),
        lambda table, ids: tf.gather(table.value(), ids),
        lambda table, ids: tf.gather(tf.cast(table, tf.float64), tf.cast(ids, tf.int64)),
        lambda table, ids: tf.nn.embedding_lookup(table, ids),
        lambda table, ids: tf.gather_nd(table, ids[..., None]),
        lambda table, ids: tf.gather_nd(table.value(), ids[..., None]),
        lambda table, ids: tf.raw_ops.GatherV2(params=table.value(), indices=ids, axis=0),
        lambda table, ids: tf.raw_ops.ResourceGather(resource=table.handle, indices=ids, dtype=tf.float64),
        lambda table, ids: tf.gather(table, ids.numpy()),
    ],
)
def test_ids_outside_the_table_are_named_by_every_lookup(lookup: Any) -> None:
    class Net(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = tf.Variable(np.ones((12, 2)))

        def __call__(self, ids: Any) -> Any:
            return tf.reduce_sum(lookup(self.rows, ids), 1)

    ids = IDS.copy()
    ids[2, 3] = 12
    assert embgrad.gradients(Net(), IDS, OBJECTIVE).values.shape == (3, 4, 2)
    with pytest.raises(embgrad.errors.BatchError, match=r"^id 12 at example 2, position 3 .* table 'rows' has 12 rows"):
        embgrad.gradients(Net(), ids, OBJECTIVE)


def test_an_error_that_the_model_catches_is_raised_all_the_same() -> None:
    class Net(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = tf.Variable(np.ones((12, 2)))
            self.places = tf.Variable(np.ones((4, 2)))

        def __call__(self, ids: Any) -> Any:
            try:
                places = tf.gather(self.places, tf.range(ids.shape[1]))
            except tf.errors.InvalidArgumentError:
                raise RuntimeError("too long") from None
            return tf.reduce_sum(tf.gather(self.rows, ids) + places, 1)

    assert embgrad.gradients(Net(), IDS, OBJECTIVE)
    with pytest.raises(embgrad.errors.BatchError, match=r"has 6 tokens, and the model takes 4 positions") as caught:
        embgrad.gradients(Net(), np.ones((2, 6), int), OBJECTIVE)
    assert re.search(r"looks up index 4 .* table 'places' has 4 rows.*longer than", str(caught.value.__cause__))


@pytest.mark.parametrize("swallow", [False, True])
def test_ids_outside_are_refused_where_a_device_returns_zeros(keras: Any, swallow: bool) -> None:
    """As a GPU does: the operation comes to pass, and the lookup is refused when it is seen."""

    class Watch(PassRecorder):
        def see(self, path: str, indices: Any, rows: int, dim: int, *others: Any, **options: Any) -> str | None:
            return super().see(path, indices, 3, dim, *others, **options)

    model, _ = masked_lstm(keras)
    watcher = Watcher(Watch(embgrad.TokenBatch(IDS), ("word",)), Tables([model]))

    def work() -> None:
        with watcher.watching():
            try:
                model(tf.constant(IDS, tf.int32))
            except embgrad.errors.BatchError:
                if not swallow:
                    raise

    with pytest.raises(
        embgrad.errors.BatchError, match=r"^id 5 at example 0, position 0 is outside the table [^\n]*model\n"
    ):
        work()


def test_the_users_tape_does_not_stop_ours(keras: Any) -> None:
    model, _ = masked_lstm(keras)
    expected = embgrad.gradients(model, IDS, OBJECTIVE)

    @tf.custom_gradient
    def inside(x: Any) -> Any:  # TensorFlow stops recording while a custom gradient is computed
        def backward(upstream: Any) -> Any:
            kept.append(embgrad.gradients(model, IDS, OBJECTIVE))
            return upstream

        return x * 1.0, backward

    kept: list[Any] = []
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = inside(x)
    tape.gradient(y, x)
    with tape.stop_recording() if tape._recording else tf.init_scope():
        kept.append(embgrad.gradients(model, IDS, OBJECTIVE))
    for one in kept:
        np.testing.assert_array_equal(one.values, expected.values)


@pytest.mark.parametrize("training", [False, True])
def test_a_recomputed_block_has_the_gradient_of_a_plain_one(keras: Any, training: bool) -> None:
    def call(self: Any, x: Any) -> Any:
        rows = self.table(x)
        block = tf.recompute_grad(lambda value: self.norm(value)) if self.again else self.norm
        return tf.reduce_sum(tf.tanh(block(rows)), 1)

    model = make_model(
        call, keras.Model, table=keras.layers.Embedding(12, 2), norm=keras.layers.BatchNormalization(), again=True
    )
    model(tf.constant(IDS, tf.int32))
    result = embgrad.gradients(model, IDS, OBJECTIVE, training=training)
    np.testing.assert_array_equal(np.asarray(tf.convert_to_tensor(model.norm.moving_mean)), np.zeros(2))
    model.again = False
    reference = embgrad.gradients(model, IDS, OBJECTIVE, training=training)
    np.testing.assert_allclose(result.values, reference.values, rtol=1e-9)


def test_a_recomputed_block_is_restored(keras: Any) -> None:
    norm = keras.layers.BatchNormalization()
    norm.build((None, None, 2))
    table = tf.Variable(np.random.default_rng(0).normal(size=(12, 2)))

    def forward(ids: Any) -> Any:
        return tf.reduce_sum(tf.recompute_grad(lambda rows: norm(rows, training=True))(tf.gather(table, ids)) ** 3, 1)

    embgrad.gradients(tf.function(forward), IDS, OBJECTIVE)
    np.testing.assert_array_equal(np.asarray(tf.convert_to_tensor(norm.moving_mean)), np.zeros(2))


def test_a_lookup_inside_a_block_that_is_computed_again() -> None:
    def forward(self: Any, ids: Any) -> Any:
        return tf.recompute_grad(lambda x: tf.reduce_sum(tf.tanh(tf.gather(self.rows, x)), 1))(ids)

    model = make_model(forward, rows=tf.Variable(np.random.default_rng(0).normal(size=(12, 2))))
    assert_slopes(embgrad.gradients(model, IDS, OBJECTIVE), model.rows, total(model))
