"""Lookups by one-hot rows, however those are made, and what is said of ids that are used for something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad
from tests.frameworks.tensorflow.savedmodels import SMALL, TOTAL, saved, weighed, weighed_gradient

TABLE = np.random.default_rng(1).normal(size=(12, 4)).astype(np.float32)

ONE_HOTS: dict[str, Callable[[Any], Any]] = {
    "tf.one_hot": lambda ids: tf.one_hot(ids, 12),
    "equality": lambda ids: tf.cast(tf.equal(ids[..., None], tf.range(12)), tf.float32),
    "equality, turned": lambda ids: tf.cast(tf.range(12)[None, None] == tf.expand_dims(ids, -1), tf.float32),
    "equality, chosen": lambda ids: tf.where(ids[..., None] == tf.range(12), 1.0, 0.0),
    "identity": lambda ids: tf.gather(tf.eye(12), ids),
    "a constant identity": lambda ids: tf.nn.embedding_lookup(tf.constant(np.eye(12, dtype=np.float32)), ids),
}

PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "einsum": lambda rows, table: tf.einsum("bsv,vd->bsd", rows, table),
    "matmul": lambda rows, table: rows @ table,
    "tensordot": lambda rows, table: tf.tensordot(rows, table, 1),
}


class Net(tf.Module):
    def __init__(self, forward: Callable[[Any, Any], Any], table: np.ndarray = TABLE, trainable: bool = True) -> None:
        super().__init__()
        self.rows = tf.Variable(table, name="rows", trainable=trainable)
        self.forward = forward

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32, name="ids")])
    def __call__(self, ids: Any) -> Any:
        return weighed(self.forward(self.rows, ids))


def loaded(model: Any, folder: Any, is_saved: bool) -> Any:
    return saved(model, folder) if is_saved else model


@pytest.mark.parametrize("is_saved", [False, True], ids=["module", "saved"])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("way", ONE_HOTS)
def test_a_product_of_one_hot_rows_with_a_table(way: str, product: str, is_saved: bool, tmp_path: Any) -> None:
    model = loaded(Net(lambda table, ids: PRODUCTS[product](ONE_HOTS[way](ids), table)), tmp_path, is_saved)
    for _ in range(2):  # the second call runs a trace, if there is one
        found = embgrad.gradients(model, SMALL, TOTAL)
        # a variable that tf.einsum reads by itself goes unnamed
        unnamed = product == "einsum" and not is_saved
        assert found.provenance["path"] == ("lookup#0" if unnamed else "rows#0")
        np.testing.assert_allclose(found.activations, TABLE[SMALL], rtol=1e-6)
        np.testing.assert_allclose(found.values, weighed_gradient(TABLE[SMALL]), rtol=1e-4, atol=1e-6)
    if not unnamed:
        assert not embgrad.table_gradients(model, SMALL, TOTAL).head.any()
    moved = embgrad.gradients(model, SMALL, TOTAL, add={"word": np.full(4, 0.25)})
    np.testing.assert_allclose(moved.values, weighed_gradient(TABLE[SMALL] + 0.25), rtol=1e-4, atol=1e-6)


NO_WAY_IN: dict[str, tuple[Callable[[Any, Any], Any], np.ndarray, bool, str]] = {
    "columns": (
        lambda table, ids: tf.transpose(tf.gather(table, ids, axis=1), [1, 2, 0]),
        np.ascontiguousarray(TABLE.T),
        True,
        r"they look up entries along axis 1 of '(rows|lookup)', of shape \(4, 12\) and dtype float32, where embgrad expects rows",
    ),
    "whole numbers": (
        lambda table, ids: tf.cast(tf.gather(table, ids), tf.float32) * 0.02,
        (TABLE * 50).astype(np.int8),
        False,
        r"they look up rows of 'rows', of shape \(12, 4\) and dtype int8, which is not floating point and has no gradient",
    ),
    "one-hot rows alone": (
        lambda table, ids: tf.gather(tf.eye(12), ids)[..., :4] + table[0],
        TABLE,
        True,
        r"they look up rows of the identity matrix, 'lookup', of shape \(12, 12\)",
    ),
    "an identity that is not learned": (
        lambda table, ids: tf.gather(table, ids)[..., :4] * 2.0,
        np.eye(12, dtype=np.float32),
        False,
        r"they look up rows of the identity matrix, 'rows', of shape \(12, 12\)",
    ),
}


@pytest.mark.parametrize("is_saved", [False, True], ids=["module", "saved"])
@pytest.mark.parametrize("way", NO_WAY_IN)
def test_what_is_no_way_in_is_said(way: str, is_saved: bool, tmp_path: Any) -> None:
    forward, table, trainable, message = NO_WAY_IN[way]
    model = loaded(Net(forward, table, trainable), tmp_path, is_saved)
    with pytest.raises(
        embgrad.PointNotReachedError, match=rf"made no lookup .* The ids were used otherwise: {message}"
    ):
        embgrad.gradients(model, SMALL, TOTAL)


def test_a_table_that_is_the_identity_and_learned_is_a_table() -> None:
    model = Net(lambda table, ids: tf.gather(table, ids)[..., :4], np.eye(12, dtype=np.float32))
    found = embgrad.gradients(model, SMALL, TOTAL)
    assert found.values.shape == (2, 4, 12)
    assert found.provenance["path"] == "rows#0"


@pytest.mark.parametrize(
    "one_hot",
    [
        lambda ids: tf.cast(tf.equal(ids[..., None], tf.range(12) + 1), tf.float32),
        lambda ids: tf.cast(tf.equal(ids[..., None] // 2, tf.range(12)), tf.float32),
        lambda ids: tf.cast(tf.equal(ids[..., None], tf.range(8)), tf.float32),
        lambda ids: tf.where(ids[..., None] == tf.range(12), 2.0, 0.0),
    ],
    ids=["moved", "halved", "too short", "twice"],
)
def test_what_only_looks_like_one_hot_rows_of_the_ids(one_hot: Any) -> None:
    def forward(table: Any, ids: Any) -> Any:
        rows = one_hot(ids)
        return rows @ table[: rows.shape[-1]]

    with pytest.raises(embgrad.PointNotReachedError, match="made no lookup whose indices are the batch's ids"):
        embgrad.gradients(Net(forward), SMALL, TOTAL)
