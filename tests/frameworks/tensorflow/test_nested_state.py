"""Containers and arrays in a model, at any depth, are restored after a call."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.frameworks.tensorflow.helpers import KERAS, make_model
from tests.support.keeping import (
    IDS,
    OBJECTS,
    VOCAB,
    WAYS,
    Builder,
    SlottedBuilder,
    Way,
    assert_left_and_seen,
    assert_left_by_traces,
    assert_parts_stay,
)


def module(way: Way) -> Any:
    """Return a module that keeps something at each pass, and computes with it."""
    make, write, count = way

    def forward(self: Any, x: Any) -> Any:
        write(self.kept, 1.0)
        return tf.reduce_sum(tf.tanh(tf.gather(self.table, x) + 0.1 * float(count(self.kept))), 1)

    table = tf.Variable(tf.random.stateless_normal((VOCAB, 4), (1, 2), dtype=tf.float64))
    return make_model(forward, table=table, kept=make())


def keras_model(keras: Any, way: Way) -> Any:
    """Return the same as a model of Keras."""
    make, write, count = way

    def call(self: Any, x: Any) -> Any:
        write(self.kept, 1.0)
        return tf.reduce_sum(tf.tanh(self.table(x) + 0.1 * float(count(self.kept))), 1)

    model = make_model(call, keras.Model, table=keras.layers.Embedding(VOCAB, 4), kept=make())
    model(IDS)
    return model


MAKING = {"module": module, **{name: functools.partial(keras_model, keras) for name, keras in KERAS.items()}}

#: Keras 3 replaces these dicts by dicts of its own.
LOST = {("keras3", "lists by need"), ("keras3", "a dict of the user's class")}

CASES = [(making, way) for making in MAKING for way in WAYS if (making, way) not in LOST and way not in OBJECTS]


@pytest.mark.sampled(40)
@pytest.mark.parametrize(("making", "way"), CASES)
def test_calls_restore_containers_in_a_model_and_read_what_users_put_there(making: str, way: str) -> None:
    model = MAKING[making](WAYS[way])
    kept = model.kept
    assert_left_and_seen(model, kept, WAYS[way])
    assert_left_by_traces(model, kept, WAYS[way])
    assert model.kept is kept


@pytest.mark.parametrize("builder", [Builder, SlottedBuilder])
def test_variables_that_an_object_makes_in_the_first_call_stay(builder: Any) -> None:
    parts = builder(lambda: tf.Variable(np.ones((VOCAB, 4))))
    assert_parts_stay(
        make_model(lambda self, x: tf.reduce_sum(tf.gather(self.builder.table(), x) ** 2, 1), builder=parts)
    )
