"""Layer norms of which a step or two is another: whatever comes out, the gradient is TensorFlow's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from embgrad_tensorflow import normalising
from hypothesis import strategies as st

import embgrad
from tests.tensorflow.test_normalising import IDS, Normed

#: By name what a step computes of one value, and of two.
OF_ONE: Final[dict[str, Callable[[Any], Any]]] = {
    "mean": lambda x: tf.reduce_mean(x, -1, keepdims=True),
    "mean over positions": lambda x: tf.reduce_mean(x, 1, keepdims=True),
    "negative": lambda x: -x,
    "root": tf.sqrt,
    "root below": tf.math.rsqrt,
    "square": tf.square,
    "stopped": tf.stop_gradient,
}
OF_TWO: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "sum": lambda x, y: x + y,
    "difference": lambda x, y: x - y,
    "product": lambda x, y: x * y,
    "quotient": lambda x, y: x / y,
    "squared difference": tf.math.squared_difference,
}

#: An operation, and the numbers of the values that it takes: of the rows, the scale, the shift, epsilon, and each step's.
Step = tuple[str, tuple[int, ...]]

X, SCALE, SHIFT, EPSILON, FIRST = range(5)

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


@dataclass(frozen=True)
class Program:
    """Steps, and the numbers of the values that are added up in the end."""

    steps: tuple[Step, ...]
    read: tuple[int, ...]

    def __call__(self, x: Any, scale: Any, shift: Any) -> Any:
        """The sum, as wide as the rows."""
        values = [x, scale[None, None], shift[None, None], tf.fill((1, 1, 1), tf.constant(1e-2, x.dtype))]
        for name, operands in self.steps:
            function: Any = OF_ONE.get(name) or OF_TWO[name]
            values.append(function(*[values[number] for number in operands]))
        return sum((values[number] for number in self.read), tf.zeros_like(x))


@st.composite
def changed(draw: Any) -> Program:
    """A norm with up to three changes: another operation, another operand, another value that is read, too."""
    steps = list(draw(st.sampled_from(NORMS)))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(steps) - 1))
        name, operands = steps[place]
        if draw(st.booleans()):
            name = draw(st.sampled_from(sorted(OF_ONE if len(operands) == 1 else OF_TWO)))
        else:
            which = draw(st.integers(0, len(operands) - 1))
            other = draw(st.integers(0, FIRST + place - 1))
            operands = (*operands[:which], other, *operands[which + 1 :])
        steps[place] = (name, operands)
    last = FIRST + len(steps) - 1
    also = draw(st.lists(st.integers(FIRST, last), max_size=2))
    return Program(tuple(steps), (last, *also))


@hypothesis.settings(max_examples=300, deadline=None, derandomize=True)
@hypothesis.given(program=changed())
def test_a_changed_norm_is_tensorflows(program: Program) -> None:
    model = Normed(program)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(IDS))
    hypothesis.assume(np.isfinite(total))
    expected = tape.gradient(total, model.table)
    if expected is None:
        with pytest.raises(embgrad.NoGradientError):
            embgrad.gradients(model, IDS, embgrad.Sum())
        return
    expected = tf.convert_to_tensor(expected).numpy()
    hypothesis.assume(np.isfinite(expected).all() and np.abs(expected).max() > 0)
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    np.testing.assert_allclose(found.table().to_dense(), expected, rtol=0, atol=1e-9 * np.abs(expected).max())


def test_each_norm_as_it_is_has_its_gradient_from_here(monkeypatch: Any) -> None:
    """Else nothing above would be about what it is meant to be."""
    completed: list[Any] = []
    complete = normalising.Norms._complete

    def noted(norms: Any, *parts: Any) -> None:
        completed.append(parts)
        complete(norms, *parts)

    monkeypatch.setattr(normalising.Norms, "_complete", noted)
    for number, steps in enumerate(NORMS):
        model = Normed(Program(steps, (FIRST + len(steps) - 1,)))
        embgrad.gradients(model, IDS, embgrad.Sum())
        assert len(completed) == number + 1
