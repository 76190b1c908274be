"""TensorFlow and Keras models that carry a state from call to call, and objectives of several examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.company import expect_of_own_number, expect_state_of_one_number

IDS = np.array([[5, 6, 2], [7, 8, 1], [3, 3, 4]])
RANDOM = np.random.default_rng(0)
TABLE, HEAD = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((9, 4), (4, 2)))


class Carry(tf.Module):
    """A sum of rows that begins with that of the call before, kept in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.table, self.head, self.way = tf.Variable(TABLE), tf.constant(HEAD), way
        self.variable = tf.Variable(tf.zeros((3, 4)), shape=(None, 4), trainable=False)
        self.attribute: Any = None
        self.mapping: Any = {"state": None}

    def read(self) -> Any:
        if self.way == "variable":
            return self.variable.read_value()
        return self.mapping["state"] if self.way == "mapping" else self.attribute

    def write(self, value: Any) -> None:
        if self.way == "variable":
            self.variable.assign(value)
        elif self.way == "mapping":
            self.mapping["state"] = value
        else:
            self.attribute = value

    def __call__(self, ids: Any) -> Any:
        rows = tf.nn.embedding_lookup(self.table, ids)
        before = self.read()
        if before is None or before.shape[0] != rows.shape[0]:
            before = tf.zeros((rows.shape[0], 4))
        out = tf.tanh(tf.reduce_sum(rows, 1) + before)
        self.write(tf.stop_gradient(out))
        return out @ self.head


@pytest.mark.parametrize("way", ["variable", "attribute", "mapping"])
def test_a_state_that_goes_on_from_call_to_call(way: str) -> None:
    model = Carry(way)
    model(tf.constant(IDS[::-1].copy()))
    state = np.array(model.read())
    own = np.tanh(TABLE[IDS].sum(1) + state) @ HEAD[:, 1]
    expect_of_own_number(model, IDS, own)
    np.testing.assert_array_equal(model.read(), state)


class OfOneNumber(tf.Module):
    """A sum of rows that begins with what it kept, in a pass of as many examples alone."""

    def __init__(self, way: str, count: int) -> None:
        super().__init__()
        self.table, self.head, self.way = tf.Variable(TABLE), tf.constant(HEAD), way
        state = tf.constant(np.random.default_rng(1).normal(size=(count, 4)).astype(np.float32))
        self.kept = [state] if way == "list" else tf.Variable(state) if way == "variable" else state

    def __call__(self, ids: Any) -> Any:
        rows = tf.reduce_sum(tf.nn.embedding_lookup(self.table, ids), 1)
        state = self.kept[0] if self.way == "list" else self.kept
        if state.shape[0] != ids.shape[0]:
            return tf.tanh(rows) @ self.head
        out = tf.tanh(rows + state)
        if self.way == "variable":
            self.kept.assign(out)
        elif self.way == "list":
            self.kept[0] = tf.stop_gradient(out)
        else:
            self.kept = tf.stop_gradient(out)
        return out @ self.head


@pytest.mark.parametrize("way", ["variable", "attribute", "list"])
def test_a_state_that_passes_of_one_number_of_examples_write(way: str) -> None:
    expect_state_of_one_number(lambda count: OfOneNumber(way, count), IDS)
