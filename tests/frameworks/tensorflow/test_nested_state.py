"""What a model keeps in containers and arrays, at any depth, is what it was after a call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.frameworks.tensorflow.helpers import KERAS, make_model
from tests.keeping import (
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
    assert_put_back_after_an_error,
)


class Module(tf.Module):
    """Keeps something at each pass, and gives other numbers for what it has kept."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        make, self._write, self._count = way
        self.table = tf.Variable(tf.random.stateless_normal((VOCAB, 4), (1, 2), dtype=tf.float64))
        self.kept = make()

    def __call__(self, x: Any) -> Any:
        self._write(self.kept, 1.0)
        return tf.reduce_sum(tf.tanh(tf.gather(self.table, x) + 0.1 * float(self._count(self.kept))), 1)


def _keras(keras: Any, way: Way) -> Any:
    """The same as a model of Keras."""
    make, write, count = way

    def call(self: Any, x: Any) -> Any:
        write(self.kept, 1.0)
        return tf.reduce_sum(tf.tanh(self.table(x) + 0.1 * float(count(self.kept))), 1)

    model = make_model(call, keras.Model, table=keras.layers.Embedding(VOCAB, 4), kept=make())
    model(IDS)
    return model


MAKING = {"tf.Module": Module, **{name: lambda way, keras=one: _keras(keras, way) for name, one in KERAS.items()}}

#: Keras 3 makes dicts of its own of these, which are not what the user's are.
LOST = {("keras3", "lists by need"), ("keras3", "a dict of the user's class")}

CASES = [(making, way) for making in MAKING for way in WAYS if (making, way) not in LOST and way not in OBJECTS]


@pytest.mark.parametrize(("making", "way"), CASES)
def test_calls_leave_what_is_kept_and_see_what_the_user_keeps(making: str, way: str) -> None:
    model = MAKING[making](WAYS[way])
    kept = model.kept
    assert_left_and_seen(model, kept, WAYS[way])
    assert model.kept is kept


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("making", "way"), CASES)
def test_traces_leave_what_is_kept(making: str, way: str) -> None:
    model = MAKING[making](WAYS[way])
    assert_left_by_traces(model, model.kept, WAYS[way])


def test_what_an_error_leaves_is_put_back() -> None:
    assert_put_back_after_an_error(Module(WAYS["a dict of lists"]))


@pytest.mark.parametrize("builder", [Builder, SlottedBuilder])
def test_parts_that_an_object_makes_in_the_first_call_stay(builder: Any) -> None:

    assert_parts_stay(
        make_model(
            lambda self, x: tf.reduce_sum(tf.gather(self.builder.table(), x) ** 2, 1),
            builder=builder(lambda: tf.Variable(np.ones((VOCAB, 4)))),
        )
    )
