"""Layer norms of which a step or two is another: whatever comes out, the gradient is TensorFlow's own."""

from __future__ import annotations

from typing import Any, Final

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from embgrad_tensorflow import normalising

import embgrad
from tests.sampling import slow
from tests.tensorflow.helpers import halved
from tests.tensorflow.programs import Language, Step, Steps, expected_of
from tests.tensorflow.test_normalising import IDS, Normed

#: What is given: the rows, the scale, the shift, and epsilon.
X, SCALE, SHIFT, EPSILON, FIRST = range(5)

LANGUAGE: Final = Language(
    FIRST,
    of_one={
        "halved": halved,
        "mean": lambda x: tf.reduce_mean(x, -1, keepdims=True),
        "mean over positions": lambda x: tf.reduce_mean(x, 1, keepdims=True),
        "negative": lambda x: -x,
        "root": tf.sqrt,
        "root below": tf.math.rsqrt,
        "square": tf.square,
        "stopped": tf.stop_gradient,
    },
    of_two={
        "sum": lambda x, y: x + y,
        "difference": lambda x, y: x - y,
        "product": lambda x, y: x * y,
        "quotient": lambda x, y: x / y,
        "squared difference": tf.math.squared_difference,
    },
)

#: As `tf.nn`, Keras 3, code by hand and root-mean-square norms go.
NORMS: Final[tuple[tuple[Step, ...], ...]] = (
    (
        ("mean", (X,)),
        ("stopped", (FIRST,)),
        ("squared difference", (X, FIRST + 1)),
        ("mean", (FIRST + 2,)),
        ("sum", (FIRST + 3, EPSILON)),
        ("root below", (FIRST + 4,)),
        ("product", (FIRST + 5, SCALE)),
        ("product", (X, FIRST + 6)),
        ("product", (FIRST, FIRST + 6)),
        ("difference", (SHIFT, FIRST + 8)),
        ("sum", (FIRST + 7, FIRST + 9)),
    ),
    (
        ("mean", (X,)),
        ("squared difference", (X, FIRST)),
        ("mean", (FIRST + 1,)),
        ("sum", (EPSILON, FIRST + 2)),
        ("root below", (FIRST + 3,)),
        ("negative", (FIRST,)),
        ("product", (FIRST + 5, FIRST + 4)),
        ("product", (FIRST + 4, X)),
        ("sum", (FIRST + 6, FIRST + 7)),
        ("product", (FIRST + 8, SCALE)),
    ),
    (
        ("mean", (X,)),
        ("difference", (X, FIRST)),
        ("square", (FIRST + 1,)),
        ("mean", (FIRST + 2,)),
        ("sum", (FIRST + 3, EPSILON)),
        ("root", (FIRST + 4,)),
        ("product", (SCALE, FIRST + 1)),
        ("quotient", (FIRST + 6, FIRST + 5)),
        ("sum", (FIRST + 7, SHIFT)),
    ),
    (
        ("square", (X,)),
        ("mean", (FIRST,)),
        ("sum", (FIRST + 1, EPSILON)),
        ("root below", (FIRST + 2,)),
        ("product", (X, FIRST + 3)),
        ("product", (SCALE, FIRST + 4)),
    ),
)


def normed(program: Steps) -> Normed:
    """A model of what a program makes of rows: a sum as wide as they are."""

    def read(x: Any, scale: Any, shift: Any) -> Any:
        epsilon = tf.fill((1, 1, 1), tf.constant(1e-2, x.dtype))
        return sum(LANGUAGE.run(program, [x, scale[None, None], shift[None, None], epsilon]), tf.zeros_like(x))

    return Normed(read)


@pytest.mark.parametrize("examples", [30, slow(300)])
def test_a_changed_norm_is_tensorflows(examples: int) -> None:
    @hypothesis.settings(max_examples=examples, deadline=None, derandomize=True)
    @hypothesis.given(program=LANGUAGE.changed(NORMS))
    def check(program: Steps) -> None:
        model = normed(program)
        expected = expected_of(model, IDS)
        if expected is None:
            with pytest.raises(embgrad.NoGradientError):
                embgrad.gradients(model, IDS, embgrad.Sum())
            return
        found = embgrad.gradients(model, IDS, embgrad.Sum())
        np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=1e-9 * np.abs(expected).max())

    check()


def test_each_norm_as_it_is_has_its_gradient_from_here(monkeypatch: Any) -> None:
    """Else nothing above would be about what it is meant to be."""
    completed: list[Any] = []
    complete = normalising.Norms._complete

    def noted(norms: Any, *parts: Any) -> None:
        completed.append(parts)
        complete(norms, *parts)

    monkeypatch.setattr(normalising.Norms, "_complete", noted)
    for number, steps in enumerate(NORMS):
        model = normed(LANGUAGE.unchanged(steps))
        embgrad.gradients(model, IDS, embgrad.Sum())
        assert len(completed) == number + 1
