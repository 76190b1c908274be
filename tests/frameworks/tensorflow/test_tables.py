"""The ledger of a table: lookups and head apart, against the tape's own gradient of the whole table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras2

import embgrad
from tests.frameworks.tensorflow.helpers import (
    make_model,
    own_table_gradient,
    policy,
    small_bert,
    small_gpt2,
)
from tests.frameworks.tensorflow.transformers_by_hand import IDS

VECTOR = np.cos(np.arange(12))
OBJECTIVE = embgrad.Projection(VECTOR)
TIED = {"TFBertForMaskedLM": small_bert, "TFGPT2LMHeadModel": small_gpt2}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", TIED)
def test_a_tied_head_of_hugging_face(name: str, frozen: bool) -> None:
    with policy(keras2, "float64"):
        model = TIED[name](name, initializer_range=0.5)
        model(tf.constant(IDS, tf.int32))
        table = next(one for one in model.variables if tuple(one.shape) == (12, 4))
        own = own_table_gradient(table, lambda: tf.reduce_sum(model(tf.constant(IDS, tf.int32)).logits * VECTOR))
        model.trainable = not frozen
        found = embgrad.tables.table_gradients(model, {"input_ids": IDS}, OBJECTIVE)
        lookup = embgrad.gradients(model, {"input_ids": IDS}, OBJECTIVE).table().to_dense()
    np.testing.assert_allclose(found.total, own, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.lookup, lookup, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.head, own - lookup, rtol=1e-8, atol=1e-10)
    assert found.head[11].any()  # an id that is not in the batch
    assert not found.lookup[11].any()
    assert found.names == (table.name,)
    assert (found.own is None) == frozen
    assert frozen or found.apart < 1e-12


def test_several_lookups_and_a_penalty(keras: Any) -> None:
    def call(self: Any, ids: Any) -> Any:
        both = tf.reduce_sum(self.words(ids) * tf.tanh(self.words(ids)), (1, 2))
        return both[:, None] + tf.reduce_sum(tf.convert_to_tensor(self.words.embeddings) ** 2)

    model = make_model(call, keras.Model, words=keras.layers.Embedding(12, 4, dtype="float64", mask_zero=True))
    own = None
    found = embgrad.tables.table_gradients(model, IDS, embgrad.Sum())
    own = own_table_gradient(model.words.embeddings, lambda: tf.reduce_sum(model(tf.constant(IDS, tf.int32))))
    rows = model.words.embeddings.numpy()
    np.testing.assert_allclose(found.head, 2 * 2 * rows, rtol=1e-12)
    np.testing.assert_allclose(found.total, own, rtol=1e-10)
    assert (found.lookups, found.padding) == (2, 0)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_table_with_a_custom_gradient_is_no_parameter(compiled: bool) -> None:
    """What is looked up in is no variable then, whatever its values are: of that the tape says something else."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def halved(table: Any) -> Any:
        return tf.identity(table), lambda gradient: 0.5 * tf.convert_to_tensor(gradient)

    class Halved(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            random = np.random.default_rng(0)
            self.table = tf.Variable(random.normal(size=(12, 4)))
            self.top = tf.Variable(random.normal(size=(4, 12)))

        def __call__(self, input_ids: Any) -> Any:
            rows = tf.gather(halved(tf.convert_to_tensor(self.table)), input_ids)
            return tf.reduce_mean(tf.tanh(rows), 1) @ self.top

    model, batch = Halved(), {"input_ids": IDS}
    own = own_table_gradient(model.table, lambda: tf.reduce_sum(model(tf.constant(IDS)) * VECTOR))
    found = embgrad.gradients(model, batch, OBJECTIVE, compile=compiled)
    assert found.provenance["path"] == "lookup#0"
    np.testing.assert_allclose(0.5 * found.table().to_dense(), own, rtol=1e-12)
    with pytest.raises(
        embgrad.errors.PointError, match="is no parameter of the model: it is computed in the forward pass"
    ):
        embgrad.tables.table_gradients(model, batch, OBJECTIVE)
    (values,) = [
        one for one in embgrad.tables.parameter_gradients(model, batch, OBJECTIVE).values() if one.shape == own.shape
    ]
    np.testing.assert_allclose(np.asarray(values), own, rtol=1e-12)
