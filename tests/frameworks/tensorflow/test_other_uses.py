"""Lookups of the ids that are not read as lookups, beside one that is: errors instead of wrong numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad

IDS = np.array([[3, 5, 8, 1], [2, 2, 7, 1]])
VOCAB, DIM = 10, 4


class Net(tf.Module):
    """A mean of rows that are made in some way, with a bias of one number for each token."""

    def __init__(self, rows: Callable[[Any, Any], Any], *, bias: bool = True) -> None:
        super().__init__()
        rng = np.random.default_rng(0)

        def variable(*shape: int) -> Any:
            return tf.Variable(rng.normal(size=shape).astype(np.float32))

        self.rows, self.has_bias = rows, bias
        self.table, self.words, self.columns = variable(VOCAB, DIM), variable(VOCAB, DIM), variable(DIM, VOCAB)
        self.blocks, self.scale, self.classes = variable(VOCAB, 2, 2), variable(VOCAB, 1), variable(VOCAB)
        self.head = variable(DIM, 2)
        self.whole = tf.Variable(rng.integers(-9, 9, (VOCAB, DIM)).astype(np.int8), trainable=False)
        self.loose = tf.constant(self.whole.numpy())
        self.characters = tf.constant(rng.integers(0, VOCAB, (VOCAB, 3)))

    @tf.function(input_signature=[tf.TensorSpec([2, 4], tf.int32)])
    def serve(self, ids: Any) -> Any:
        return self(ids)

    def __call__(self, ids: Any) -> Any:
        logits = tf.tanh(tf.reduce_mean(self.rows(self, ids), 1)) @ self.head
        return logits + tf.reduce_sum(tf.gather(self.scale, ids), 1) if self.has_bias else logits


def flat(ids: Any) -> Any:
    return tf.reshape(ids, [-1])


def shaped(rows: Any) -> Any:
    return tf.reshape(rows, [2, 4, DIM])


def hot(ids: Any) -> Any:
    return tf.one_hot(ids, VOCAB)


def distinct(net: Net, ids: Any) -> Any:
    each, which = tf.unique(flat(ids))
    return shaped(tf.gather(tf.gather(net.table, each), which))


UNREAD: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "columns": (
        lambda net, ids: tf.transpose(tf.gather(net.columns, ids, axis=1), [1, 2, 0]),
        r"entries along axis 1 of '\w+', of shape .* float32, where embgrad expects rows, along axis 0 \(GatherV2\)",
    ),
    "columns of a transposed table": (
        lambda net, ids: tf.transpose(tf.gather(tf.transpose(net.table), ids, axis=1), [1, 2, 0]),
        "entries along axis 1 of 'lookup'",
    ),
    "as many columns as examples": (
        lambda net, ids: tf.transpose(
            tf.concat([tf.gather(tf.transpose(half), ids, axis=1) for half in (net.table[:, :2], net.table[:, 2:])], 0),
            [1, 2, 0],
        ),
        r"entries along axis 1 of 'lookup', of shape \(2, 10\)",
    ),
    "three axes": (
        lambda net, ids: shaped(tf.gather(net.blocks, ids)),
        r"entries of '\w+', of shape \(10, 2, 2\) .* rows of",
    ),
    "three axes, by gather_nd": (lambda net, ids: shaped(tf.gather_nd(net.blocks, ids[..., None])), "GatherNd"),
    "whole numbers": (
        lambda net, ids: tf.cast(tf.gather(net.whole, ids), tf.float32),
        "int8, which is not floating point",
    ),
    "whole numbers outside of variables": (
        lambda net, ids: tf.cast(tf.gather(net.loose, ids), tf.float32),
        "rows of 'lookup', of shape .* int8",
    ),
    "a product with a transposed table": (
        lambda net, ids: shaped(tf.matmul(hot(flat(ids)), net.columns, transpose_b=True)),
        r"one-hot rows of a product \(MatMul\) with '\w+', of shape \(4, 10\)",
    ),
    "a sparse product": (
        lambda net, ids: shaped(tf.sparse.sparse_dense_matmul(tf.sparse.from_dense(hot(flat(ids))), net.table)),
        r"one-hot rows of a product \(SparseTensorDenseMatMul\)",
    ),
    "distinct ids": (distinct, r"the rows of the ids in '\w+', .* in another order or number"),
}


def own(logits: Any) -> Any:
    """Return for each example the logits of its ids, of those of all examples' ids, (example, example, position)."""
    return tf.transpose(tf.linalg.diag_part(tf.transpose(logits, [2, 0, 1])))[..., None]


def of_text(net: Net, rows: Any) -> Any:
    return tf.reduce_mean(rows, 1) @ net.columns


#: Other uses of ids in ordinary models.
ORDINARY: dict[str, Callable[[Any, Any], Any]] = {
    "a mask": lambda net, ids: tf.gather(net.words, ids) * tf.cast(ids != 0, tf.float32)[..., None],
    "characters": lambda net, ids: (
        tf.gather(net.words, ids) + tf.reduce_mean(tf.gather(net.table, tf.gather(net.characters, ids)), -2)
    ),
    "a number for each token": lambda net, ids: tf.gather(net.words, ids) * tf.gather(net.classes, ids)[..., None],
    "log-probabilities of the ids": lambda net, ids: (
        lambda rows: rows + tf.gather(tf.nn.log_softmax(rows @ net.columns), ids[..., None], batch_dims=2)
    )(tf.gather(net.words, ids)),
    "logits of the ids, with an entry for each example": lambda net, ids: (
        lambda rows: rows + own(tf.gather(of_text(net, rows), ids, axis=1))
    )(tf.gather(net.words, ids)),
    "a product of the ids with logits of each example": lambda net, ids: (
        lambda rows: (
            rows + own(tf.reshape(tf.matmul(of_text(net, rows), hot(flat(ids)), transpose_b=True), [2, *ids.shape]))
        )
    )(tf.gather(net.words, ids)),
    "labels": lambda net, ids: (
        lambda rows: (
            rows + tf.nn.sparse_softmax_cross_entropy_with_logits(labels=ids, logits=rows @ net.columns)[..., None]
        )
    )(tf.gather(net.words, ids)),
    "smoothed labels": lambda net, ids: (
        lambda rows: rows + tf.reduce_sum(rows @ net.columns * hot(ids), -1, keepdims=True)
    )(tf.gather(net.words, ids)),
}


@pytest.mark.parametrize("kind", ["module", "compiled", "saved"])
@pytest.mark.parametrize("way", UNREAD)
def test_another_lookup_is_not_word(way: str, kind: str, tmp_path: Any) -> None:
    rows, message = UNREAD[way]
    model: Any = Net(rows)
    if kind == "saved":
        tf.saved_model.save(model, str(tmp_path))
        model = tf.saved_model.load(str(tmp_path))
    options: dict[str, Any] = {"compile": True} if kind == "compiled" else {}
    options |= {"call": lambda net, ids: net.serve(ids)} if kind == "saved" else {}
    with pytest.raises(
        embgrad.errors.PointNotReachedError,
        match=rf"lookup .* may not be the model's embedding of the ids, which .*{message}",
    ):
        embgrad.gradients(model, IDS, embgrad.Logit(1), **options)


@pytest.mark.parametrize("way", ORDINARY)
def test_ordinary_uses_of_ids_are_no_lookups(way: str) -> None:
    found = embgrad.gradients(Net(ORDINARY[way], bias=False), IDS, embgrad.Logit(1))
    assert (found.provenance["path"], found.values.shape) == ("words#0", (2, 4, DIM))


def test_the_other_table_can_be_named_and_a_capture_refuses_word() -> None:
    model = Net(UNREAD["columns"][0])
    assert [point.roles for point in embgrad.points(model, IDS) if point.lookup is not None] == [()]
    found = embgrad.gradients(model, IDS, embgrad.Logit(1), at="scale")
    np.testing.assert_array_equal(found.values, np.ones((2, 4, 1), np.float32))
    with (
        pytest.raises(embgrad.errors.PointNotReachedError, match="may not be the model's embedding of the ids"),
        embgrad.capture(model),
        tf.GradientTape() as tape,
    ):
        tape.gradient(tf.reduce_sum(model(tf.constant(IDS))), model.trainable_variables)
