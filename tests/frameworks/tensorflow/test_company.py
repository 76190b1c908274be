"""TensorFlow and Keras models that carry a state from call to call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.company import expect_state_of_one_number

IDS = np.array([[5, 6, 2], [7, 8, 1], [3, 3, 4]])
RANDOM = np.random.default_rng(0)
TABLE, HEAD = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((9, 4), (4, 2)))


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
