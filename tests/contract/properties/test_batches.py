"""Padding, sub-batches and `split=True` change nothing. The closed form shows that other examples and their order do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.properties.cases import Case, built, close
from tests.contract.properties.closed_form import Batch
from tests.contract.properties.generating import cases
from tests.contract.properties.goals import IGNORED
from tests.contract.properties.running import each_framework, property_of
from tests.contract.properties.specs import SEGMENTS


def close_at(case: Case, found: Any, expected: Any, name: str, examples: Any = slice(None)) -> None:
    """Assert that two results are the same within the rounding of both: values, what they are at, and the objective."""
    allowed = case.closed_form().allowed
    for attribute, key in (("values", "word"), ("activations", "at word"), ("objective", "objective")):
        one, other = getattr(found, attribute), getattr(expected, attribute)[examples]
        close(one, other, 2 * allowed[key], f"{name}: {attribute}")


def close_tables(case: Case, found: np.ndarray, expected: np.ndarray, name: str) -> None:
    """Assert that two gradients of the table are the same within the rounding of all that they are sums of."""
    close(found, expected, 2 * case.batch.ids.size * case.closed_form().allowed["word"], f"{name}: table")


@each_framework
@property_of
@given(case=cases(masked=True), data=st.data())
def test_padding_of_any_length_on_any_side(framework: str, case: Case, data: Any) -> None:
    """On the left only where no position is counted from there."""
    before = 0 if case.spec.positions else data.draw(st.integers(0, 3))
    after, pad = data.draw(st.integers(0, 3)), data.draw(st.integers(0, case.spec.vocab - 1))
    segment = data.draw(st.integers(0, SEGMENTS - 1))
    widths, positions = ((0, 0), (before, after)), case.batch.ids.shape[1]
    fields = {"ids": pad, "mask": 0, "types": segment}
    wide: dict[str, Any] = {
        name: None if (one := getattr(case.batch, name)) is None else np.pad(one, widths, constant_values=value)
        for name, value in fields.items()
    }
    goal = case.goal
    if goal.kind == "cross-entropy" and goal.numbers.ndim == 2:
        label = data.draw(st.just(IGNORED) | st.integers(0, case.spec.entries - 1))
        goal = replace(goal, numbers=np.pad(goal.numbers, widths, constant_values=label))
    model = built(framework, case.spec)
    plain, padded = case.gradients(model), replace(case, batch=Batch(**wide), goal=goal).gradients(model)
    inside = slice(before, before + positions)
    allowed = case.closed_form().allowed
    close(padded.values[:, inside], plain.values, 2 * allowed["word"], "with padding: values")
    close(padded.objective, plain.objective, 2 * allowed["objective"], "with padding: objective")
    assert padded.pad_leak == plain.pad_leak == 0
    assert not np.delete(padded.values, range(before, before + positions), axis=1).any()


@each_framework
@property_of
@given(case=cases(), data=st.data())
def test_micro_batches(framework: str, case: Case, data: Any) -> None:
    size = data.draw(st.integers(1, len(case.batch.ids) + 1))
    model, allowed = built(framework, case.spec), case.closed_form().allowed
    plain, pieces = case.gradients(model, case.points), case.gradients(model, case.points, batch_size=size)
    for point in case.points:
        one, other = plain[point], pieces[point]
        close(other.values, one.values, 2 * allowed[point], f"in micro-batches: values at {point}")
        close(other.activations, one.activations, 2 * allowed[f"at {point}"], f"in micro-batches: value at {point}")
        close(other.objective, one.objective, 2 * allowed["objective"], "in micro-batches: objective")
        assert other.values.dtype == one.values.dtype
        np.testing.assert_array_equal(other.ids, one.ids)
        np.testing.assert_array_equal(other.real, one.real)


@each_framework
@property_of
@given(case=cases())
def test_split_gives_what_one_call_for_each_example_gives(framework: str, case: Case) -> None:
    model = built(framework, case.spec)
    split, tables = (found := case.gradients(model, split=True)), found.per_example()
    for example in range(len(case.batch.ids)):
        only = slice(example, example + 1)
        alone = case.take(only).gradients(model)
        close_at(case.take(only), alone, split, "one by one", only)
        close_tables(case, tables[example].to_dense(), alone.table().to_dense(), "one by one")


@each_framework
@property_of
@given(case=cases(meets=True, least=2))
def test_split_where_examples_meet(framework: str, case: Case) -> None:
    model = built(framework, case.spec)
    found = case.gradients(model, split=True)
    for example, table in enumerate(found.per_example()):
        answer = case.closed_form(only=example)
        allowed = answer.allowed["word"]
        close(found.values[example], answer["word"][example], allowed, f"values of example {example}")
        close(table.to_dense(), answer["table"], case.batch.ids.size * allowed, f"table of example {example}")
