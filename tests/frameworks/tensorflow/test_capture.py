"""capture: the gradient at a point inside the user's own loop, against the tape's own, and the same weights bit for bit."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras2

import embgrad
from tests.frameworks.tensorflow.helpers import make_model
from tests.frameworks.tensorflow.transformers_by_hand import IDS, VECTOR, build

BATCHES = [IDS, IDS[:, ::-1].copy(), (IDS + 3) % 12]


def loss_of(model: Any, ids: Any, **options: Any) -> Any:
    return tf.reduce_mean(tf.cast(model(tf.constant(ids, tf.int32), **options), tf.float64) * VECTOR)


def weights(model: Any) -> list[bytes]:
    return [np.asarray(tf.convert_to_tensor(one)).tobytes() for one in model.variables]


def step(model: Any, ids: Any, optimiser: Any) -> None:
    with tf.GradientTape() as tape:
        loss = loss_of(model, ids, training=True)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimiser.apply_gradients(
        [(one, variable) for one, variable in zip(gradients, model.trainable_variables, strict=True) if one is not None]
    )


def expected_at(model: Any, ids: Any, at: str = "word") -> Any:
    """Of the loss above, a mean: the projection over the number of entries."""
    return embgrad.gradients(model, ids, embgrad.Projection(VECTOR / (IDS.size * 4)), at=at).values


def trained(keras: Any, optimiser: str, at: str | None) -> tuple[list[bytes], int]:
    """A model's weights after three steps, and how many of them were captured."""
    model = build(keras)
    keras.utils.set_random_seed(3)
    made = getattr(keras.optimizers, optimiser)(0.1)
    with contextlib.nullcontext() if at is None else embgrad.capture(model, at=at) as tap:
        for ids in BATCHES:
            step(model, ids, made)
    return weights(model), 0 if tap is None else tap.count


@functools.cache
def trained_without(keras: Any, optimiser: str) -> list[bytes]:
    return trained(keras, optimiser, None)[0]


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("at", "optimiser"),
    [
        ("word", "SGD"),
        *(
            (at, "Adam")
            for at in ("word", "embeddings", "layer.1", "blocks.1.drop", "blocks.1:input", "embed.words:output")
        ),
    ],
)
def test_the_same_weights_bit_for_bit(keras: Any, at: str, optimiser: str) -> None:
    """Dropout draws as it would have drawn, and the point is found by a pass that draws nothing."""
    found, count = trained(keras, optimiser, at)
    assert count == 3
    assert found == trained_without(keras, optimiser)


def test_gradient_accumulation(keras: Any) -> None:
    """Two forward passes behind one loss are one step; two losses are two."""
    model = build(keras)
    with embgrad.capture(model) as tap:
        with tf.GradientTape() as tape:
            loss = loss_of(model, BATCHES[0]) + loss_of(model, BATCHES[1])
        tape.gradient(loss, model.trainable_variables)
        for ids in BATCHES[:2]:
            with tf.GradientTape() as tape:
                loss = loss_of(model, ids)
            tape.gradient(loss, model.trainable_variables)
    assert (tap.count, tap.passes) == (3, 4)
    assert tap.steps[0].values.shape == (4, 5, 4)
    np.testing.assert_allclose(
        tap.steps[0].values, np.concatenate([one.values for one in tap.steps[1:]]), rtol=1e-12, atol=1e-15
    )


def test_a_persistent_tape_gives_a_step_for_each_gradient(keras: Any) -> None:
    model = build(keras)
    with embgrad.capture(model, at="layer.0") as tap:
        with tf.GradientTape(persistent=True) as tape:
            logits = model(tf.constant(IDS, tf.int32))
            losses = [tf.reduce_sum(logits[..., number]) for number in range(2)]
        for loss in losses:
            tape.gradient(loss, model.trainable_variables)
    for number in range(2):
        expected = embgrad.gradients(model, IDS, embgrad.Projection(np.eye(4)[number]), at="layer.0")
        np.testing.assert_allclose(tap.steps[number].values, expected.values, rtol=1e-10, atol=1e-14)


def test_sources_in_any_structure_and_zeros_for_unconnected_ones(keras: Any) -> None:
    model, apart = build(keras), tf.Variable(np.ones(3))
    table, kernel = model.embed.words.embeddings, model.head.kernel
    with embgrad.capture(model) as tap:
        with tf.GradientTape() as tape:
            loss = loss_of(model, IDS)
        found = tape.gradient(loss, {"a": kernel, "b": [apart, table]}, unconnected_gradients="zero")
        with tf.GradientTape() as tape:
            model(tf.constant(IDS, tf.int32))
            loss = tf.reduce_sum(apart)
        zeros = tape.gradient(loss, [table], unconnected_gradients=tf.UnconnectedGradients.ZERO)
    with tf.GradientTape() as tape:
        loss = loss_of(model, IDS)
    np.testing.assert_array_equal(found["a"], tape.gradient(loss, kernel))
    np.testing.assert_array_equal(found["b"][0], np.zeros(3))
    np.testing.assert_array_equal(zeros[0], np.zeros((12, 4)))
    assert (tap.count, tap.passes) == (1, 2)  # the second loss does not depend on the model


def test_a_pass_without_a_gradient_has_no_step(keras: Any) -> None:
    model = build(keras)

    def captured(sources: Callable[[], Any] | None) -> None:
        with embgrad.capture(model), tf.GradientTape() as tape:
            loss = loss_of(model, IDS)
            if sources is not None:
                tape.gradient(loss, sources())

    with pytest.raises(embgrad.errors.NoGradientError, match=r"called 1 time\(s\), and no gradient reached 'word'"):
        captured(None)
    with pytest.raises(embgrad.errors.NoGradientError, match="that the loss depends on the point"):
        captured(lambda: model.head.trainable_variables)
    model.embed.trainable = False
    with pytest.raises(embgrad.errors.NoGradientError, match="that the loss depends on the point"):
        captured(lambda: model.trainable_variables)


COMPILED: dict[str, Callable[[Any, Any], Callable[[], Any]]] = {
    "a forward pass": lambda model, keras: tf.function(lambda: loss_of(model, IDS)),
    "by xla": lambda model, keras: tf.function(lambda: loss_of(model, IDS), jit_compile=True),
    "fit": lambda model, keras: lambda: model.fit(IDS, np.zeros((2, 5, 4)), verbose=0),
    "fit by two": lambda model, keras: lambda: model.fit(IDS, np.zeros((2, 5, 4)), batch_size=1, verbose=0),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", ["a forward pass", "by xla", "fit", "fit by two"])
def test_a_compiled_step_is_an_error(keras: Any, name: str, traced: bool) -> None:
    model = build(keras)
    if name.startswith("fit"):
        model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=2 if name == "fit by two" else 1)
    compiled = COMPILED[name](model, keras)
    if traced:
        compiled()
    before = weights(model)
    inside = pytest.raises(embgrad.errors.UnsupportedError, match=r"inside the compiled function .*run_eagerly=True")
    with inside, embgrad.capture(model):
        compiled()
    assert weights(model) == before
    compiled()  # as before


def test_a_compiled_lookup_without_a_product_is_an_error(keras: Any) -> None:
    model = keras.Sequential([keras.layers.Embedding(12, 4, dtype="float64")])
    model(tf.constant(IDS, tf.int32))
    compiled = tf.function(lambda: loss_of(model, IDS))
    with pytest.raises(embgrad.errors.UnsupportedError, match="inside the compiled function"), embgrad.capture(model):
        compiled()


def test_a_compiled_model_is_an_error(keras: Any) -> None:
    @tf.function
    def call(self: Any, ids: Any) -> Any:
        return self.words(ids)

    model = make_model(call, keras.Model, words=keras.layers.Embedding(12, 4, dtype="float64"))
    model.words.build((None,))
    model(tf.constant(IDS, tf.int32))
    hidden = pytest.raises(embgrad.errors.UnsupportedError, match=r"compiled graph.*run_functions_eagerly")
    with hidden, embgrad.capture(model), tf.GradientTape():
        loss_of(model, IDS)


def test_a_compiled_update_of_the_weights_is_allowed(keras: Any) -> None:
    model = build(keras)
    optimiser = keras.optimizers.Adam(0.1)
    optimiser.build(model.trainable_variables)

    @tf.function
    def update(gradients: Any) -> None:
        optimiser.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    before = weights(model)
    with embgrad.capture(model) as tap:
        for ids in BATCHES:
            with tf.GradientTape() as tape:
                loss = loss_of(model, ids)
            update([tf.convert_to_tensor(one) for one in tape.gradient(loss, model.trainable_variables)])
    assert tap.count == 3
    assert weights(model) != before


class _Net(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(np.random.default_rng(0).normal(size=(12, 4)))

    def __call__(self, text: Any, training: bool = False) -> Any:
        return tf.tanh(tf.gather(self.table, text))


def test_a_plain_module() -> None:
    model = _Net()
    method = vars(_Net)["__call__"]
    with embgrad.capture(model) as tap:
        with tf.GradientTape() as tape:
            loss = loss_of(model, IDS)
        tape.gradient(loss, model.table)
        embgrad.gradients(model, IDS, embgrad.Sum())
    np.testing.assert_allclose(tap.steps[0].values, expected_at(model, IDS), rtol=1e-12)
    assert vars(_Net)["__call__"] is method


@pytest.mark.parametrize("form", ["list", "dict"])
def test_the_argument_with_the_ids_is_found_by_name(keras: Any, form: str) -> None:
    names = ["segment_ids", "input_ids"]
    inputs = {name: keras.layers.Input((None,), dtype="int32", name=name) for name in names}
    tables = {name: keras.layers.Embedding(12, 4, name=f"{name}_table", dtype="float64") for name in names}
    added = keras.layers.Add(dtype="float64")([tables[name](inputs[name]) for name in names])
    model = keras.Model(inputs if form == "dict" else list(inputs.values()), added)
    given = {"segment_ids": tf.zeros(IDS.shape, tf.int32), "input_ids": tf.constant(IDS, tf.int32)}
    with embgrad.capture(model) as tap, tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(given if form == "dict" else list(given.values())) * VECTOR)
        tape.gradient(loss, model.trainable_variables)
    assert tap.steps[0].provenance["path"] == "input_ids_table#0"
    np.testing.assert_array_equal(tap.steps[0].ids, IDS)
    np.testing.assert_array_equal(tap.steps[0].types, 0 * IDS)


def test_a_pass_is_held_no_longer_than_its_tape(keras: Any) -> None:
    model = build(keras)
    with embgrad.capture(model, at="head:output", keep="mean") as tap:
        tape = tf.GradientTape()
        with tape:
            held = weakref.ref(model(tf.constant(IDS, tf.int32)))
        del tape
        gc.collect()
        assert held() is None
        step(model, IDS, keras.optimizers.SGD(0.1))
    assert tap.count == 1


@pytest.mark.parametrize("keras", [keras2, keras3], ids=["keras2", "keras3"])
def test_a_wrapper_that_was_not_called_is_named_with_its_child(keras: Any) -> None:
    class Wrapper(keras.Model):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            layers = keras.layers
            self.net = keras.Sequential([layers.Embedding(12, 4), layers.GlobalAveragePooling1D(), layers.Dense(2)])

        def call(self, ids: Any) -> Any:
            return self.net(ids)

        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(self.net(data[0]) ** 2)
            tape.gradient(loss, self.net.trainable_variables)
            return {"loss": loss}

    model = Wrapper()
    model(IDS)
    model.compile(optimizer="sgd", run_eagerly=True)
    with pytest.raises(embgrad.errors.NoGradientError) as caught, embgrad.capture(model):
        model.fit(IDS, np.zeros(len(IDS)), verbose=0)
    assert caught.value.message == (
        "the forward of Wrapper was never called while the capture was open, and that of its child 'net' was: capture that "
        "child, as in embgrad.capture(model.net)"
    )
    with embgrad.capture(model.net) as tap:
        model.fit(IDS, np.zeros(len(IDS)), verbose=0)
    assert tap.count == 1
    with embgrad.capture(model) as tap:  # no gradient is computed
        model.net(IDS)
    assert tap.count == 0
