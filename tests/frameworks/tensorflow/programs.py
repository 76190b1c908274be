"""Programs of a few steps, of which some may be changed at random, for tests of what is recognised by its operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

__all__ = ["Language", "Step", "Steps", "expected_of"]

#: An operation, and the numbers of the values that it takes: of those given, and each step's.
Step = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Steps:
    """Steps, and the numbers of the values that are read in the end."""

    steps: tuple[Step, ...]
    read: tuple[int, ...]


@dataclass(frozen=True)
class Language:
    """What steps can be.

    Attributes:
        given: how many values there are before the first.
        of_one: by name what a step computes of one value; `of_two` of two.
    """

    given: int
    of_one: Mapping[str, Callable[[Any], Any]]
    of_two: Mapping[str, Callable[[Any, Any], Any]]

    def unchanged(self, steps: tuple[Step, ...]) -> Steps:
        """These, of which the last is read."""
        return Steps(steps, (self.given + len(steps) - 1,))

    def run(self, program: Steps, given: Sequence[Any]) -> list[Any]:
        """The values that are read."""
        values = [*given]
        for name, operands in program.steps:
            function: Any = self.of_one.get(name) or self.of_two[name]
            values.append(function(*[values[number] for number in operands]))
        return [values[number] for number in program.read]

    def changed(self, programs: Sequence[tuple[Step, ...]]) -> st.SearchStrategy[Steps]:
        """One of these with up to three changes: another operation, another operand, another value that is read, too."""

        @st.composite
        def drawn(draw: Any) -> Steps:
            steps = list(draw(st.sampled_from(programs)))
            for _ in range(draw(st.integers(0, 3))):
                place = draw(st.integers(0, len(steps) - 1))
                steps[place] = self._another(draw, place, *steps[place])
            last = self.given + len(steps) - 1
            also = draw(st.lists(st.integers(self.given, last), max_size=2))
            return Steps(tuple(steps), (last, *also))

        return drawn()

    def _another(self, draw: Any, place: int, name: str, operands: tuple[int, ...]) -> Step:
        if draw(st.booleans()):
            return draw(st.sampled_from(sorted(self.of_one if len(operands) == 1 else self.of_two))), operands
        which = draw(st.integers(0, len(operands) - 1))
        other = draw(st.integers(0, self.given + place - 1))
        return name, (*operands[:which], other, *operands[which + 1 :])


def expected_of(model: Any, ids: np.ndarray) -> np.ndarray | None:
    """TensorFlow's own gradient of a model's table, None where it has none; a program is passed over where it is not finite."""
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model(ids))
    hypothesis.assume(np.isfinite(total))
    gradient = tape.gradient(total, model.table)
    if gradient is None:
        return None
    expected: np.ndarray = tf.convert_to_tensor(gradient).numpy()
    hypothesis.assume(np.isfinite(expected).all() and np.abs(expected).max() > 0)
    return expected
