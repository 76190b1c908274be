"""Gradients of all trainable variables, against the model's own under a tape, by the names that each Keras gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras2
from embgrad_tensorflow import TensorFlowBackend

import embgrad
from tests.frameworks.tensorflow.helpers import make_model, policy, small_bert, small_gpt2
from tests.frameworks.tensorflow.transformers_by_hand import IDS, VECTOR, build

OBJECTIVE = embgrad.Projection(VECTOR)


def by_tape(variables: Any, total: Callable[[], Any]) -> list[Any]:
    with tf.GradientTape() as tape:
        value = total()
    gradients = tape.gradient(value, variables)
    return [None if one is None else tf.convert_to_tensor(one).numpy() for one in gradients]


def compare(found: Any, names: list[str], expected: list[Any]) -> None:
    assert list(found) == names
    for name, gradient in zip(names, expected, strict=True):
        if gradient is None:
            assert name in found.unreached
            assert not found[name].any()
        else:
            assert name not in found.unreached
            np.testing.assert_allclose(found[name], gradient, rtol=1e-11, atol=1e-14)


def test_a_transformer(keras: Any) -> None:
    model = build(keras)
    expected = by_tape(model.trainable_variables, lambda: tf.reduce_sum(model(tf.constant(IDS, tf.int32)) * VECTOR))
    names = [one.name if keras is keras2 else one.path for one in model.trainable_variables]
    assert len(set(names)) == len(names) == 18
    compare(embgrad.tables.parameter_gradients(model, IDS, OBJECTIVE), names, expected)


@pytest.mark.parametrize("name", ["TFBertForMaskedLM", "TFGPT2LMHeadModel"])
def test_hugging_face(name: str) -> None:
    with policy(keras2, "float64"):
        model = (small_gpt2 if "GPT2" in name else small_bert)(name)
        vector = np.cos(np.arange(12))
        expected = by_tape_of(model, vector)
        found = embgrad.tables.parameter_gradients(model, {"input_ids": IDS}, embgrad.Projection(vector))
    compare(found, [one.name for one in model.trainable_variables], expected)


def by_tape_of(model: Any, vector: np.ndarray) -> list[Any]:
    model(tf.constant(IDS, tf.int32))
    return by_tape(model.trainable_variables, lambda: tf.reduce_sum(model(tf.constant(IDS, tf.int32)).logits * vector))


def test_names_that_repeat_are_numbered() -> None:
    one, other = (tf.Variable(np.full((12, 4), float(number)), name="table") for number in (1, 2))

    found = embgrad.tables.parameter_gradients(
        make_model(
            lambda self, ids: tf.gather(self.first, ids) * 2 + tf.gather(self.second, ids) * 3, first=one, second=other
        ),
        IDS,
        OBJECTIVE,
    )
    assert list(found) == ["table:0", "table:0#1"]
    counts = np.bincount(IDS.ravel(), minlength=12)[:, None]
    np.testing.assert_allclose(found["table:0"], 2 * counts * VECTOR)
    np.testing.assert_allclose(found["table:0#1"], 3 * counts * VECTOR)


def test_frozen_variables_have_no_gradients(keras: Any) -> None:
    model = build(keras)
    model.blocks[1].trainable = False
    model.embed.places.trainable = False
    found = embgrad.tables.parameter_gradients(model, IDS, OBJECTIVE)
    names = [one.name if keras is keras2 else one.path for one in model.trainable_variables]
    assert list(found) == names
    assert len(names) == 13
    model.trainable = False
    with pytest.raises(embgrad.errors.NoGradientError, match="trainable"):
        embgrad.tables.parameter_gradients(model, IDS, OBJECTIVE)


@pytest.mark.parametrize("trainable", [True, False])
def test_a_layer_of_tf_hub_and_a_head(tmp_path: Any, trainable: bool) -> None:
    import tensorflow_hub as hub

    saved = tf.train.Checkpoint(table=tf.Variable(np.random.default_rng(0).normal(size=(12, 4)), name="table"))
    saved.variables = saved.trainable_variables = [saved.table]  # as TF Hub has it
    signature = [tf.TensorSpec((None, None), tf.int32)]
    saved.__call__ = tf.function(lambda ids: tf.tanh(tf.gather(saved.table, ids)), input_signature=signature)
    tf.saved_model.save(saved, str(tmp_path))
    encoder = hub.KerasLayer(str(tmp_path), trainable=trainable, dtype="float64")
    head = keras2.layers.Dense(4, dtype="float64")
    ids = tf.constant(IDS, tf.int32)
    head(encoder(ids))
    sources = [*encoder.trainable_variables, *head.trainable_variables]
    expected = by_tape(sources, lambda: tf.reduce_sum(head(encoder(ids)) * VECTOR))
    found = embgrad.tables.parameter_gradients(
        [encoder, head], IDS, OBJECTIVE, call=lambda parts, inputs: parts[1](parts[0](inputs))
    )
    numbers = [0] * len(encoder.trainable_variables) + [1, 1]
    compare(found, [f"{number}.{one.name}" for number, one in zip(numbers, sources, strict=True)], expected)
    assert len(found) == (3 if trainable else 2)


def exported(folder: Any) -> None:
    keras3.utils.set_random_seed(0)
    layers = [keras3.layers.Embedding(12, 4), keras3.layers.BatchNormalization(), keras3.layers.Dense(4)]
    model = keras3.Sequential(layers)
    model(tf.constant(IDS, tf.int32))
    layers[2].trainable = False
    specs = [keras3.InputSpec(shape=(None, None), dtype="int32")]
    model.export(str(folder), verbose=False, input_signature=specs)


@pytest.mark.parametrize("around", [None, "TFSMLayer"])
def test_an_export_of_keras_3_has_each_variable_once(tmp_path: Any, around: str | None) -> None:
    exported(tmp_path)
    if around is None:
        model = tf.saved_model.load(str(tmp_path))
    else:
        model = keras3.layers.TFSMLayer(str(tmp_path), call_endpoint="serve")
    expected = by_tape(model.trainable_variables, lambda: tf.reduce_sum(run_export(model) * VECTOR.astype(np.float32)))
    found = embgrad.tables.parameter_gradients(model, IDS, OBJECTIVE)
    assert list(found) == [getattr(one, "path", one.name) for one in model.trainable_variables]
    assert len(found) == (3 if around is None else 5)  # the layer trains again what the export had frozen
    assert not found.unreached
    for gradient, other in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=1e-4, atol=1e-6)
    assert embgrad.tables.table_gradients(model, IDS, OBJECTIVE).names == (next(iter(found)),)
    names = [weight.name for weight in TensorFlowBackend().weights(model)]
    assert len(names) == 7
    assert not [name for name in names if "#" in name]


def run_export(model: Any) -> Any:
    run = getattr(model, "serve", model)
    return run(tf.constant(IDS, tf.int32))
