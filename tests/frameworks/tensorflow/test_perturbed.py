"""Perturbed passes in TensorFlow and Keras loops, against models that add themselves."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad
from tests.frameworks.tensorflow.helpers import policy
from tests.frameworks.tensorflow.transformers_by_hand import IDS, build
from tests.unit.refusals import refused

RANDOM = np.random.default_rng(0)
VOCAB, DIM = 12, 4
BATCH = tf.constant(RANDOM.integers(1, VOCAB, (3, 4)), tf.int32)
LABELS = tf.constant([0, 2, 1])


def net(keras: Any) -> Any:
    """Return a model with dropout, whose lookup adds `delta` itself if there is any."""

    class Words(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = self.add_weight(shape=(VOCAB, DIM), initializer="random_normal", name="table")
            self.delta: Any = None

        def call(self, ids: Any) -> Any:
            rows = tf.gather(tf.convert_to_tensor(self.table), ids)
            return rows if self.delta is None else rows + self.delta

    class Net(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = Words()
            self.bend = keras.layers.Dense(DIM, activation="tanh")
            self.drop = keras.layers.Dropout(0.3)
            self.head = keras.layers.Dense(3)

        def call(self, ids: Any, training: bool = False) -> Any:
            hidden = self.drop(self.bend(self.words(ids)), training=training)
            return self.head(tf.reduce_mean(hidden, 1))

    keras.utils.set_random_seed(7)
    model = Net()
    model(BATCH)
    return model


def loss_of(model: Any, ids: Any, training: bool = True) -> Any:
    logits = model(ids, training=training)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS[: len(logits)], logits))


def gradients_of(model: Any, ids: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = loss_of(model, ids)
    return tape.gradient(loss, model.trainable_variables)


def arrays(model: Any) -> list[bytes]:
    return [np.asarray(tf.convert_to_tensor(variable)).tobytes() for variable in model.variables]


@pytest.mark.parametrize(
    ("at", "captured_first"),
    [
        *(("word", first) for first in (False, True)),
        *(("blocks.1:input", False), ("blocks.1.drop", True), ("embed.words:output", False), ("layer.1", True)),
    ],
)
def test_what_is_captured_is_what_goes_on(keras: Any, at: str, captured_first: bool) -> None:
    model = build(keras)
    add = {name: RANDOM.normal(size=(*IDS.shape, DIM)) for name in (at, "word")}
    expected = embgrad.gradients(model, IDS, embgrad.Sum(), at=at, add=add)
    with contextlib.ExitStack() as stack:
        if captured_first:
            tap = stack.enter_context(embgrad.capture(model, at))
        stack.enter_context(embgrad.perturbed(model, add))
        if not captured_first:
            tap = stack.enter_context(embgrad.capture(model, at))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.constant(IDS, tf.int32)))
        tape.gradient(loss, model.trainable_variables)
    np.testing.assert_allclose(tap.steps[0].activations, expected.activations, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(tap.steps[0].values, expected.values, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("perturbed_inside", [False, True])
@pytest.mark.parametrize("captured_first", [False, True])
def test_a_model_inside_another(keras: Any, captured_first: bool, perturbed_inside: bool) -> None:
    model = build(keras)
    delta = RANDOM.normal(size=(*IDS.shape, DIM))
    models = (model.embed, model) if perturbed_inside else (model, model.embed)
    perturbing, capturing = embgrad.perturbed(models[0], {"word": delta}), embgrad.capture(models[1])
    first, second = (capturing, perturbing) if captured_first else (perturbing, capturing)
    with first as one, second as other, tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.constant(IDS, tf.int32)))
        tape.gradient(loss, model.trainable_variables)
    tap = one if captured_first else other
    rows = np.asarray(tf.convert_to_tensor(model.embed.words.embeddings))[IDS]
    np.testing.assert_array_equal(tap.steps[0].activations, rows + delta)


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(keras: Any, name: str) -> None:
    with policy(keras, name):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.layers.Embedding(12, 4), keras.layers.Dense(4, activation="tanh")])
        model(tf.constant(IDS, tf.int32))
    delta = RANDOM.normal(size=(*IDS.shape, 4))
    expected = embgrad.gradients(model, IDS, embgrad.Sum(), add={"word": delta})
    with embgrad.perturbed(model, {"word": delta}), embgrad.capture(model) as tap, tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.cast(model(tf.constant(IDS, tf.int32)), tf.float32))
        tape.gradient(loss, model.trainable_variables)
    np.testing.assert_array_equal(tap.steps[0].activations, expected.activations)
    np.testing.assert_allclose(tap.steps[0].values, expected.values, rtol=5e-2, atol=1e-3)
    assert tap.steps[0].provenance["compute_dtype"] == expected.provenance["compute_dtype"]


def test_the_keras_loop_run_eagerly(keras: Any) -> None:
    by_hand, model = net(keras), net(keras)
    by_hand.words.delta = tf.constant(np.full(DIM, 0.5, np.float32))
    for trained, context in (
        (by_hand, contextlib.nullcontext()),
        (model, embgrad.perturbed(model, {"word": np.full(DIM, 0.5)})),
    ):
        trained.compile(
            keras.optimizers.SGD(0.1),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            run_eagerly=True,
        )
        keras.utils.set_random_seed(3)
        with context:
            trained.fit(BATCH.numpy(), LABELS.numpy(), batch_size=1, epochs=2, verbose=0, shuffle=False)
    assert arrays(model) == arrays(by_hand)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", ["tf.function", "fit"])
def test_compiled_steps_are_refused(keras: Any, name: str, traced: bool) -> None:
    """An array would be a constant of a trace that is made inside, and a trace that was made before would not have it."""
    model = net(keras)
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    compiled = tf.function(lambda: loss_of(model, BATCH, training=False))

    def run() -> Any:
        if name == "tf.function":
            return compiled().numpy()
        return model.fit(BATCH.numpy(), LABELS.numpy(), verbose=0)

    plain = loss_of(model, BATCH, training=False).numpy()
    if traced:
        run()
    before = arrays(model)
    with (
        refused(embgrad.errors.UnsupportedError, "inside the compiled function", "changes none", "run_eagerly=True"),
        embgrad.perturbed(model, {"word": 1.0}),
    ):
        run()
    assert arrays(model) == before
    if name == "tf.function":
        np.testing.assert_allclose(run(), plain, rtol=1e-6)  # nothing was added to the trace


def test_a_part_that_is_recomputed_is_refused(keras: Any) -> None:
    model = net(keras)
    bend = model.bend
    call = tf.recompute_grad(lambda rows: bend(rows) * 1.0)
    model.call = lambda ids, training=False: model.head(tf.reduce_mean(call(model.words(ids)), 1))
    with (
        refused(embgrad.errors.UnsupportedError, "recomputed in the pullback", "choose a point outside of it"),
        embgrad.perturbed(model, {"bend": 1.0}),
    ):
        gradients_of(model, BATCH)
    with embgrad.perturbed(model, {"word": 1.0}) as perturbation:
        gradients_of(model, BATCH)
    assert perturbation.passes == 1


def test_a_variable_is_refused_and_a_constant_is_taken(keras: Any) -> None:
    model = net(keras)
    with refused(embgrad.errors.PointError, "add['word'] is", "which requires a gradient"):
        embgrad.perturbed(model, {"word": tf.Variable(tf.zeros(DIM))})
    with embgrad.perturbed(model, {"word": tf.ones(DIM, tf.bfloat16)}), embgrad.capture(model) as tap:
        gradients_of(model, BATCH)
    rows = np.asarray(tf.convert_to_tensor(model.words.table))[BATCH.numpy()]
    np.testing.assert_array_equal(tap.steps[0].activations, rows + np.float32(1))
