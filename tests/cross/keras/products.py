"""The products of a Keras layer with several matrices beside their closed form, on the Keras backend of KERAS_BACKEND."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import embgrad

VOCAB, DIM, HEADS, SIZE = 12, 4, 2, 3


class Attention(keras.layers.Layer):
    """An attention without projections' layers, whose heads are axes of their own."""

    def build(self, shape: Any) -> None:
        """Make the matrices."""
        self.v = self.add_weight(name="v", shape=(DIM, HEADS, SIZE))
        self.o = self.add_weight(name="o", shape=(HEADS, SIZE, DIM))
        self.bias = self.add_weight(name="bias", shape=(DIM,))

    def call(self, x: Any) -> Any:
        """Return the attention's output."""
        v = keras.ops.einsum("btd,dhk->bhtk", x, self.v)
        weights = keras.ops.softmax(keras.ops.einsum("bhtk,bhsk->bhts", v, v))
        if keras.backend.backend() == "jax":  # which chooses itself in which order it contracts several factors
            mixed = keras.ops.einsum("bhts,bhsk->bthk", weights, v)
            return keras.ops.tanh(keras.ops.einsum("bthk,hkd->btd", mixed, self.o) + self.bias)
        return keras.ops.tanh(keras.ops.einsum("bhts,bhsk,hkd->btd", weights, v, self.o) + self.bias)


class Single(keras.layers.Layer):
    """A layer with one matrix, which is a point by itself."""

    def build(self, shape: Any) -> None:
        """Make the matrix."""
        self.w = self.add_weight(name="w", shape=(DIM, DIM))

    def call(self, x: Any) -> Any:
        """Return the product."""
        return keras.ops.matmul(x, self.w)


def main() -> None:
    """Check names, values and gradients."""
    ids = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
    taken = keras.Input((None,), dtype="int32")
    embedding, attention = keras.layers.Embedding(VOCAB, DIM), Attention(name="attention")
    model = keras.Model(taken, Single(name="single")(attention(embedding(taken))))
    paths = [point.path for point in embgrad.points(model, ids) if point.lookup is None]
    assert paths == ["attention", "attention.v", "attention.o", "single"], paths
    names = ["attention.v:input", "attention.v", "attention.o:input", "attention.o"]
    results = embgrad.gradients(model, ids, embgrad.Sum(), at=names)
    given, v, mixed, product = (results[name] for name in names)
    table, weights_v, weights_o, bias, last = (
        np.asarray(keras.ops.convert_to_numpy(it))
        for it in (embedding.embeddings, attention.v, attention.o, attention.bias, model.layers[-1].w)
    )
    x = table[ids]
    values = np.einsum("btd,dhk->bthk", x, weights_v)
    scores = np.exp(np.einsum("bthk,bshk->bhts", values, values))
    context = np.einsum("bhts,bshk->bthk", scores / scores.sum(-1, keepdims=True), values)
    out = np.einsum("bthk,hkd->btd", context, weights_o)
    for result, wanted in ((given, x), (v, values), (mixed, context), (product, out)):
        np.testing.assert_allclose(result.activations.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-6)
    gradient = (1 - np.tanh(out + bias) ** 2) * last.sum(1)
    np.testing.assert_allclose(product.values, gradient, rtol=1e-4, atol=1e-6)
    wanted = np.einsum("btd,hkd->bthk", gradient, weights_o)
    np.testing.assert_allclose(mixed.values.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-6)
