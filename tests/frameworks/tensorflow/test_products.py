"""Products with matrices of no module are points by the names of the matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import embgrad

VOCAB, DIM, LAYERS = 20, 4, 3
IDS = np.array([[3, 4, 5], [6, 7, 8]])


class Functional(tf.Module):
    """A model in functions of variables: a matrix of each layer, or those of all layers in one array."""

    def __init__(self, way: str) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        self.way = way
        self.table = tf.Variable(random.normal(size=(VOCAB, DIM)))
        matrices = random.normal(size=(LAYERS, DIM, DIM))
        self.stack = tf.Variable(matrices) if way in ("stack", "split") else None
        self.layers = [] if self.stack is not None else [{"w": tf.Variable(matrix)} for matrix in matrices]
        self.matrices = [matrix.T if way == "transposed" else matrix for matrix in matrices]

    @tf.function
    def __call__(self, ids: Any) -> Any:
        x = tf.gather(self.table, ids)
        parts = [] if self.stack is None else [tf.squeeze(part, 0) for part in tf.split(self.stack, LAYERS)]
        for number in range(LAYERS):
            held = parts[number] if self.way == "split" else None
            if held is None:
                held = self.layers[number]["w"] if self.layers else self.stack[number]
            x = tf.tanh(self.product(x, held))
        return tf.reduce_sum(x, (1, 2))

    def product(self, x: Any, matrix: Any) -> Any:
        if self.way == "einsum":
            return tf.einsum("bsm,mn->bsn", x, matrix)
        if self.way == "tensordot":
            return tf.tensordot(x, matrix, 1)
        if self.way == "flat":
            return tf.reshape(tf.reshape(x, (-1, DIM)) @ matrix, x.shape)
        return tf.matmul(x, matrix, transpose_b=self.way == "transposed")


@pytest.mark.parametrize("way", ["matmul", "transposed", "einsum", "tensordot", "flat", "stack", "split"])
def test_a_product_with_a_variable_of_no_module_is_a_point(way: str) -> None:
    """Each has its values, its gradient, and is replaced; the other points are as without it."""
    model = Functional(way)
    names = ["stack#1", "stack:input#2", "stack#2"] if way in ("stack", "split") else []
    names = names or ["layers.1.w", "layers.2.w:input", "layers.2.w"]
    first, entered, last = embgrad.gradients(model, IDS, embgrad.Sum(), at=names).values()
    given = [model.table.numpy()[IDS]]
    for matrix in model.matrices:
        given.append(np.tanh(given[-1] @ matrix))
    gradient = 1 - given[3] ** 2
    before = (1 - given[2] ** 2) * (gradient @ model.matrices[2].T)
    for result, values in ((first, given[1] @ model.matrices[1]), (entered, given[2])):
        np.testing.assert_allclose(result.activations.reshape(values.shape), values, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(last.values.reshape(gradient.shape), gradient, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(first.values.reshape(before.shape), before, rtol=1e-9, atol=1e-12)
    changed = embgrad.gradients(
        model, IDS, embgrad.Sum(), at=names[2], override={names[0]: np.zeros_like(first.values)}
    )
    np.testing.assert_array_equal(changed.activations, 0)
    word = embgrad.gradients(model, IDS, embgrad.Sum())
    wanted = ((1 - given[1] ** 2) * (before @ model.matrices[1].T)) @ model.matrices[0].T
    np.testing.assert_allclose(word.values, wanted, rtol=1e-9, atol=1e-12)


class Tied(tf.Module):
    """A model whose table is also its output's matrix."""

    def __init__(self) -> None:
        super().__init__()
        random = np.random.default_rng(0)
        self.table, self.other = (tf.Variable(random.normal(size=(VOCAB, DIM))) for _ in range(2))

    def __call__(self, ids: Any) -> Any:
        return tf.matmul(tf.gather(self.table, ids), self.table, transpose_b=True)


def test_a_product_with_a_table_is_no_point() -> None:
    assert [point.key for point in embgrad.points(Tied(), IDS)] == ["table#0"]
