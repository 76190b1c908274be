"""Points inside saved models: the scopes that their layers left stand for the modules that they were."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras2

import embgrad
from tests.frameworks.tensorflow.helpers import make_model
from tests.frameworks.tensorflow.savedmodels import SMALL, TOTAL, close

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports pkg_resources
    import tensorflow_hub as hub

DIM = 4


class Attend(tf.Module):
    def __init__(self) -> None:
        super().__init__("attend")
        self.keys = tf.Variable(np.random.default_rng(5).normal(size=(DIM, DIM)).astype(np.float32), name="keys")

    def __call__(self, hidden: Any) -> Any:
        with tf.name_scope(self.name):
            scores = tf.matmul(tf.matmul(hidden, self.keys), hidden, transpose_b=True)
            return tf.nn.silu(hidden) + tf.matmul(tf.nn.softmax(scores), hidden)


class Block(tf.Module):
    def __init__(self, number: int) -> None:
        super().__init__(f"block_{number}")
        self.attend = Attend()

    def __call__(self, hidden: Any) -> Any:
        with tf.name_scope(self.name):
            return tf.tanh(hidden + self.attend(hidden))


class Encoder(tf.Module):
    """A stack of blocks, each with a residual connection around what attends."""

    def __init__(self, layers: int) -> None:
        super().__init__("encoder")
        self.table = tf.Variable(np.random.default_rng(4).normal(size=(12, DIM)).astype(np.float32), name="table")
        self.blocks = [Block(number) for number in range(layers)]

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, name="ids")])
    def __call__(self, ids: Any) -> Any:
        hidden = tf.gather(self.table, ids)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


@pytest.fixture(scope="module", params=[1, 2], name="encoder")
def _encoder(request: Any) -> Encoder:
    return Encoder(request.param)


@pytest.fixture(scope="module", name="folder")
def _folder(encoder: Encoder, tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("encoder")
    tf.saved_model.save(encoder, str(folder))
    return folder


def test_the_roles_are_those_of_the_python_model(encoder: Encoder, folder: Path) -> None:
    loaded = tf.saved_model.load(str(folder))
    names = [role for point in embgrad.points(encoder, SMALL) for role in point.roles]
    assert names == [role for point in embgrad.points(loaded, SMALL) for role in point.roles]
    own, saved = (embgrad.gradients(model, SMALL, embgrad.Sum(), at=names) for model in (encoder, loaded))
    for name in names:
        close(saved[name].activations, own[name].activations)
        close(saved[name].values, own[name].values)


def test_a_scopes_input_is_replaced_inside_the_scope_only(encoder: Encoder, folder: Path) -> None:
    """Beside it goes the residual connection; and the gradient of SiLU is its author's own, which keeps its input."""
    loaded, name = tf.saved_model.load(str(folder)), "block_0/attend:input"
    own = "blocks.0.attend:input"
    instead = np.random.default_rng(6).normal(size=(*SMALL.shape, DIM)).astype(np.float32)
    close(
        embgrad.gradients(loaded, SMALL, embgrad.Sum(), at=name).values,
        embgrad.gradients(encoder, SMALL, embgrad.Sum(), at=own).values,
    )
    with tf.GradientTape() as tape:
        rows, replaced = tf.gather(encoder.table, SMALL), tf.constant(instead)
        tape.watch([rows, replaced])
        hidden = tf.tanh(rows + encoder.blocks[0].attend(replaced))
        for block in encoder.blocks[1:]:
            hidden = block(hidden)
        total = tf.reduce_sum(hidden)
    expected = tape.gradient(total, [rows, replaced])
    result = embgrad.gradients(loaded, SMALL, embgrad.Sum(), at=["word", name], override={name: instead})
    close(result["word"].values, expected[0])
    close(result[name].values, expected[1])
    close(result["word"].objective.sum(), total)


def test_a_scopes_output_is_replaced_outside_the_scope_only() -> None:
    table = tf.Variable(np.random.default_rng(4).normal(size=(12, DIM)).astype(np.float32), name="table")

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32, name="ids")])
    def forward(ids: Any) -> Any:
        with tf.name_scope("block"):
            with tf.name_scope("inner"):
                value = tf.gather(table, ids) * 2
            positive = tf.reduce_sum(tf.cast(value > 0, tf.int32), [1, 2])
        return tf.reduce_sum(value, [1, 2]) * tf.cast(positive, tf.float32)

    function = forward.get_concrete_function()
    positive = (tf.gather(table, SMALL).numpy() > 0).sum((1, 2))
    instead = -np.ones(DIM, np.float32)
    whole = embgrad.gradients(function, SMALL, TOTAL, at="block", override={"block": instead})
    np.testing.assert_array_equal(whole.objective.sum(), -4 * DIM * positive.sum())
    inner = embgrad.gradients(function, SMALL, TOTAL, at="block/inner", override={"block/inner": instead})
    assert inner.objective.sum() == 0
    edited = embgrad.gradients(function, SMALL, TOTAL, edit={"block": lambda gradient: gradient * 3})
    np.testing.assert_array_equal(edited.values, np.broadcast_to(6.0 * positive[:, None, None], (2, 4, DIM)))


def test_a_scope_and_a_layer_of_one_name(folder: Path) -> None:
    """Their calls are counted together."""
    ids = keras2.layers.Input((None,), dtype="int32", name="ids")
    table = keras2.layers.Embedding(12, DIM)
    value = table(ids)
    for name in ("block_0", "second", "third"):  # so deep that Keras calls them first
        value = keras2.layers.Dense(DIM, name=name)(value)
    whole = keras2.layers.Lambda(lambda both: both[0] + tf.cast(tf.reduce_sum(both[1]) * 0, tf.int32))
    model = keras2.Model(ids, value + hub.KerasLayer(str(folder))(whole([ids, value])))
    at = ["block_0:input#0", "block_0:input#1", "block_0#0", "block_0#1"]
    result = embgrad.gradients(model, SMALL, embgrad.Sum(), at=at)
    loaded = embgrad.gradients(tf.saved_model.load(str(folder)), SMALL, embgrad.Sum(), at=["block_0:input", "block_0"])
    close(result["block_0:input#1"].values, loaded["block_0:input"].values)
    close(result["block_0:input#1"].activations, loaded["block_0:input"].activations)
    close(result["block_0#1"].values, loaded["block_0"].values)
    close(result["block_0:input#0"].activations, table(SMALL))


@pytest.mark.parametrize("training", [True, False])
def test_a_saved_model_with_a_tensor_as_its_mode(training: bool, tmp_path: Path) -> None:
    table = tf.Variable(np.random.default_rng(4).normal(size=(12, DIM)).astype(np.float32), name="table")

    @tf.function(
        input_signature=[tf.TensorSpec([None, None], tf.int32, name="ids"), tf.TensorSpec([], tf.bool, "training")]
    )
    def forward(self: Any, ids: Any, training: Any) -> Any:
        rows = tf.gather(self.table, ids)
        return tf.reduce_sum(tf.cond(training, lambda: 3 * rows, lambda: rows), [1, 2])

    tf.saved_model.save(make_model(forward, table=table), str(tmp_path))
    result = embgrad.gradients(tf.saved_model.load(str(tmp_path)), SMALL, TOTAL, training=training)
    np.testing.assert_array_equal(result.values, np.full((2, 4, DIM), 3.0 if training else 1.0))
