"""Lookups by one-hot rows, however those are made, and what is said of ids that are used for something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad
from embgrad.errors import BatchError, PointNotReachedError
from tests.frameworks.tensorflow.helpers import own_table_gradient
from tests.frameworks.tensorflow.savedmodels import SMALL, TOTAL, close, saved, weighed, weighed_gradient

TABLE = np.random.default_rng(1).normal(size=(12, 4)).astype(np.float32)

ONE_HOTS: dict[str, Callable[[Any], Any]] = {
    "tf.one_hot": lambda ids: tf.one_hot(ids, 12),
    "of booleans": lambda ids: tf.cast(tf.one_hot(ids, 12, True, False, dtype=tf.bool), tf.float32),
    "equality": lambda ids: tf.cast(tf.equal(ids[..., None], tf.range(12)), tf.float32),
    "equality, swapped": lambda ids: tf.cast(tf.range(12)[None, None] == tf.expand_dims(ids, -1), tf.float32),
    "equality, chosen": lambda ids: tf.where(ids[..., None] == tf.range(12), 1.0, 0.0),
}

PRODUCTS: dict[str, Callable[[Any, Any], Any]] = {
    "einsum": lambda rows, table: tf.einsum("bsv,vd->bsd", rows, table),
    "matmul": lambda rows, table: rows @ table,
    "tensordot": lambda rows, table: tf.tensordot(rows, table, 1),
}

Forward = Callable[[Any, Any], Any]

#: Lookups by one-hot rows: each way to make these with each product, and some that reshape.
LOOKUPS: dict[str, Forward] = {
    **{
        f"{way} by {product}": lambda table, ids, make=make, multiply=multiply: multiply(make(ids), table)
        for way, make in ONE_HOTS.items()
        for product, multiply in PRODUCTS.items()
    },
    "flat": lambda table, ids: tf.reshape(tf.matmul(tf.one_hot(tf.reshape(ids, [-1]), 12), table), [2, 4, 4]),
    "reshaped": lambda table, ids: tf.reshape(tf.matmul(tf.reshape(tf.one_hot(ids, 12), [-1, 12]), table), [2, 4, 4]),
    "einsum of any axes": lambda table, ids: tf.einsum("...v,vd->...d", tf.one_hot(ids, 12), table),
    "einsum, table first": lambda table, ids: tf.einsum("vd,bsv->bsd", table, tf.one_hot(ids, 12)),
}

NO_LOOKUPS: dict[str, Forward] = {
    "twos": lambda table, ids: tf.matmul(tf.one_hot(ids, 12, 2.0, 0.0), table),
    "halves for zeros": lambda table, ids: tf.matmul(tf.one_hot(ids, 12, 1.0, 0.5), table),
    "halved": lambda table, ids: tf.matmul(tf.one_hot(ids, 12) * 0.5, table),
    "on another axis": lambda table, ids: tf.matmul(tf.one_hot(ids, 4, axis=1), table[:4]),
    "transposed": lambda table, ids: tf.matmul(tf.transpose(tf.one_hot(ids, 4), [0, 2, 1]), table[:4]),
    "rows cut up": lambda table, ids: tf.matmul(tf.reshape(tf.one_hot(ids, 12), [-1, 4]), table[:4]),
    "summed": lambda table, ids: tf.einsum("bsv,vd->bd", tf.one_hot(ids, 12), table),
    "by example": lambda table, ids: tf.einsum("bsv,bd->bsd", tf.one_hot(ids, 12), table[:2]),
    "transposed table": lambda table, ids: tf.matmul(tf.one_hot(ids, 4), table[:4], transpose_b=True),
    "zero rows": lambda table, ids: tf.matmul(tf.one_hot(tf.where(ids > 3, ids, -1), 12), table),
    "moved": lambda table, ids: tf.cast(tf.equal(ids[..., None], tf.range(12) + 1), tf.float32) @ table,
    "pairs": lambda table, ids: tf.cast(tf.equal(ids[..., None] // 2, tf.range(12)), tf.float32) @ table,
    "too short": lambda table, ids: tf.cast(tf.equal(ids[..., None], tf.range(8)), tf.float32) @ table[:8],
    "chosen twos": lambda table, ids: tf.where(ids[..., None] == tf.range(12), 2.0, 0.0) @ table,
}


class Net(tf.Module):
    def __init__(self, forward: Callable[[Any, Any], Any], table: np.ndarray = TABLE, trainable: bool = True) -> None:
        super().__init__()
        self.rows = tf.Variable(table, name="rows", trainable=trainable)
        self.forward = forward

    @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32, name="ids")])
    def __call__(self, ids: Any) -> Any:
        return self.forward(self.rows, ids)


def loaded(model: Any, folder: Any, is_saved: bool) -> Any:
    return saved(model, folder) if is_saved else model


@pytest.mark.sampled(20)
@pytest.mark.parametrize("is_saved", [False, True], ids=["module", "saved"])
@pytest.mark.parametrize("way", LOOKUPS)
def test_a_product_of_one_hot_rows_with_a_table_is_a_lookup(way: str, is_saved: bool, tmp_path: Any) -> None:
    model = loaded(Net(lambda table, ids: weighed(LOOKUPS[way](table, ids))), tmp_path, is_saved)
    found = embgrad.gradients(model, SMALL, TOTAL)
    np.testing.assert_allclose(found.activations, TABLE[SMALL], rtol=1e-6)
    close(found.values, weighed_gradient(TABLE[SMALL]))
    own = own_table_gradient(model.rows, lambda: tf.reduce_sum(model(tf.constant(SMALL))))
    close(found.table().to_dense(), own)
    # a variable that tf.einsum reads itself has no name
    is_named = is_saved or "einsum" not in way
    assert found.provenance["path"] == ("rows#0" if is_named else "lookup#0")
    if is_named:
        assert not embgrad.tables.table_gradients(model, SMALL, TOTAL).head.any()
    moved = embgrad.gradients(model, SMALL, TOTAL, add={"word": np.full(4, 0.25)})
    close(moved.values, weighed_gradient(TABLE[SMALL] + 0.25))


@pytest.mark.parametrize("way", NO_LOOKUPS)
def test_other_products_are_no_lookups(way: str) -> None:
    model = Net(lambda table, ids: tf.reduce_sum(NO_LOOKUPS[way](table, ids)))
    seen = "rows#0" if way == "pairs" else "none"  # those are one-hot rows of other ids
    sliced = (
        r"rows#0 \(12 rows × 4, indices of shape \(4,\)\)"  # rows 0 to 3 of the table, as many as there are positions
    )
    with pytest.raises(PointNotReachedError, match=rf"made no lookup .*lookups seen: ({seen}|{sliced})"):
        embgrad.gradients(model, SMALL, TOTAL)


def test_an_id_beyond_the_one_hot_rows_is_refused(tmp_path: Any) -> None:
    model = saved(Net(lambda table, ids: tf.reduce_sum(tf.one_hot(ids, 12) @ table)), tmp_path)
    with pytest.raises(BatchError, match=r"id 12 at example 0, position 1 is outside the table.*12 rows"):
        embgrad.gradients(model, [[1, 12]], TOTAL)


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
    "an identity matrix": (
        lambda table, ids: tf.gather(tf.eye(12), ids) @ table,
        TABLE,
        True,
        r"they look up entries of 'lookup', of shape \(12, 12\) .*; the rows are one-hot: use tf\.one_hot",
    ),
}


@pytest.mark.parametrize("is_saved", [False, True], ids=["module", "saved"])
@pytest.mark.parametrize("way", NO_WAY_IN)
def test_other_uses_of_the_ids_are_named(way: str, is_saved: bool, tmp_path: Any) -> None:
    forward, table, trainable, message = NO_WAY_IN[way]
    model = loaded(Net(lambda table, ids: weighed(forward(table, ids)), table, trainable), tmp_path, is_saved)
    with pytest.raises(PointNotReachedError, match=rf"made no lookup .* The ids were used otherwise: {message}"):
        embgrad.gradients(model, SMALL, TOTAL)


@pytest.mark.parametrize("trainable", [False, True])
def test_a_variable_that_holds_the_identity_is_a_table(trainable: bool) -> None:
    model = Net(lambda table, ids: weighed(tf.gather(table, ids)[..., :4]), np.eye(12, dtype=np.float32), trainable)
    found = embgrad.gradients(model, SMALL, TOTAL)
    assert found.values.shape == (2, 4, 12)
    assert found.provenance["path"] == "rows#0"
