"""Attention of which a step or two is another: whatever comes out, the gradient is TensorFlow's own."""

from __future__ import annotations

from typing import Any, Final

import hypothesis
import numpy as np
import pytest
import tensorflow as tf

import embgrad
from tests.sampling import slow
from tests.tensorflow.helpers import halved, own_table_gradient
from tests.tensorflow.programs import Language, Step, Steps

EXAMPLES, HEADS, POSITIONS = 2, 2, 3
IDS: Final = np.array([[4, 0, 3], [1, 5, 2]])

#: What is given: queries, keys, values, the mask, a number, and one with a gradient.
Q, K, V, MASK, NUMBER, SLOPED, FIRST = range(7)

#: A head is as wide as there are positions, so that most go together.
LANGUAGE: Final = Language(
    FIRST,
    of_one={
        "halved": halved,
        "identity": tf.identity,
        "mean": lambda x: tf.reduce_mean(x, -1, keepdims=True),
        "negative": lambda x: -x,
        "softmax": tf.nn.softmax,
        "softmax over queries": lambda x: tf.nn.softmax(x, axis=-2),
        "stopped": tf.stop_gradient,
        "turned": lambda x: tf.linalg.matrix_transpose(x),
    },
    of_two={
        "scores": lambda x, y: tf.matmul(x, y, transpose_b=True),
        "product": tf.matmul,
        "product of the first turned": lambda x, y: tf.matmul(x, y, transpose_a=True),
        "einsum": lambda x, y: tf.einsum("bhqk,bhkd->bhqd", x, y),
        "einsum over queries": lambda x, y: tf.einsum("bhqk,bhqd->bhkd", x, y),
        "einsum, values first": lambda x, y: tf.einsum("bhkd,bhqk->bhqd", x, y),
        "sum": lambda x, y: x + y,
        "difference": lambda x, y: x - y,
        "times": lambda x, y: x * y,
        "quotient": lambda x, y: x / y,
    },
)

#: As transformers, code by hand, and Keras go.
ATTENTIONS: Final[tuple[tuple[Step, ...], ...]] = (
    (
        ("scores", (Q, K)),
        ("quotient", (FIRST, NUMBER)),
        ("sum", (FIRST + 1, MASK)),
        ("softmax", (FIRST + 2,)),
        ("identity", (FIRST + 3,)),
        ("product", (FIRST + 4, V)),
    ),
    (
        ("scores", (Q, K)),
        ("times", (NUMBER, FIRST)),
        ("difference", (FIRST + 1, MASK)),
        ("softmax", (FIRST + 2,)),
        ("scores", (FIRST + 3, V)),
        ("softmax", (FIRST + 4,)),
        ("product", (FIRST + 5, V)),
    ),
    (
        ("times", (Q, NUMBER)),
        ("scores", (FIRST, K)),
        ("softmax", (FIRST + 1,)),
        ("einsum", (FIRST + 2, V)),
        ("einsum, values first", (V, FIRST + 2)),
        ("sum", (FIRST + 3, FIRST + 4)),
    ),
)


class Attending(tf.Module):
    """Rows → what a program makes of them → one number an example."""

    def __init__(self, program: Steps) -> None:
        super().__init__()
        self.table = tf.Variable(np.random.default_rng(3).normal(size=(EXAMPLES * POSITIONS, POSITIONS)))
        self.program = program

    def __call__(self, input_ids: Any, **_: Any) -> Any:
        rows = tf.nn.embedding_lookup(self.table, input_ids)
        heads = [tf.stack([tf.sin(rows * (number + 1)), tf.cos(rows - number)], 1) for number in range(3)]
        mask = tf.constant([[[[0.0, -2.0, 0.5]]]] * EXAMPLES, rows.dtype)
        given = [*heads, mask, tf.constant(1.7, rows.dtype), tf.reduce_mean(rows)]
        read = [tf.sin(one) + tf.zeros_like(heads[0]) for one in LANGUAGE.run(self.program, given)]
        return tf.reduce_sum(tf.add_n(read) * (1 + heads[1]), [1, 2, 3])


def expected_of(model: Attending) -> np.ndarray:
    """TensorFlow's own gradient, of a program that can be run, and whose gradient is one."""
    try:
        expected = own_table_gradient(model.table, lambda: tf.reduce_sum(model(IDS)))
    except (tf.errors.InvalidArgumentError, ValueError):
        hypothesis.reject()
    hypothesis.assume(np.isfinite(expected).all() and np.abs(expected).max() > 0)
    return expected


@pytest.mark.parametrize("examples", [30, slow(300)])
def test_a_changed_attention_is_tensorflows(examples: int) -> None:
    @hypothesis.settings(max_examples=examples, deadline=None, derandomize=True)
    @hypothesis.given(program=LANGUAGE.changed(ATTENTIONS))
    def check(program: Steps) -> None:
        model = Attending(program)
        expected = expected_of(model)
        found = embgrad.gradients(model, IDS, embgrad.Sum())
        np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=1e-9 * np.abs(expected).max())

    check()


@pytest.mark.parametrize("examples", [5, slow(40)])
def test_a_changed_attention_in_a_trace_is_tensorflows(examples: int) -> None:
    @hypothesis.settings(max_examples=examples, deadline=None, derandomize=True)
    @hypothesis.given(program=LANGUAGE.changed(ATTENTIONS))
    def check(program: Steps) -> None:
        model = Attending(program)
        expected = expected_of(model)
        found = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
        assert found.provenance["compiled"]
        np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=1e-9 * np.abs(expected).max())

    check()


@pytest.mark.parametrize(("steps", "times"), [*zip(ATTENTIONS, (1, 2, 1), strict=True)])
def test_each_attention_as_it_is_has_its_gradient_from_here(
    steps: tuple[Step, ...], times: int, served: list[str]
) -> None:
    """Else nothing above would be about what it is meant to be. A second product of the same weights has its own."""
    embgrad.gradients(Attending(LANGUAGE.unchanged(steps)), IDS, embgrad.Sum())
    assert served == ["Attention"] * times
