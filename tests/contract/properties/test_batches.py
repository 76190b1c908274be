"""Padding, sub-batches and `split=True` change nothing. The closed form shows that other examples and their order do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.properties.cases import Case, built, close, close_results
from tests.contract.properties.closed_form import Batch
from tests.contract.properties.generating import cases
from tests.contract.properties.goals import IGNORED
from tests.contract.properties.running import each_framework, property_of
from tests.contract.properties.specs import SEGMENTS


@each_framework
@property_of
@given(case=cases(masked=True), data=st.data())
def test_padding_of_any_length_on_any_side(framework: str, case: Case, data: Any) -> None:
    before = 0 if case.spec.positions else data.draw(st.integers(0, 3))  # positions are counted from the left
    after, pad = data.draw(st.integers(0, 3)), data.draw(st.integers(0, case.spec.vocab - 1))
    segment = data.draw(st.integers(0, SEGMENTS - 1))
    widths, positions = ((0, 0), (before, after)), case.batch.ids.shape[1]
    padding = {"ids": pad, "mask": 0, "types": segment}
    wide: dict[str, Any] = {
        name: None if (array := getattr(case.batch, name)) is None else np.pad(array, widths, constant_values=value)
        for name, value in padding.items()
    }
    goal = case.goal
    if goal.kind == "cross-entropy" and goal.numbers.ndim == 2:
        label = data.draw(st.just(IGNORED) | st.integers(0, case.spec.entries - 1))
        goal = replace(goal, numbers=np.pad(goal.numbers, widths, constant_values=label))
    model, allowed = built(framework, case.spec), case.closed_form().allowed
    plain, padded = case.gradients(model), replace(case, batch=Batch(**wide), goal=goal).gradients(model)
    inside = slice(before, before + positions)
    close(padded.values[:, inside], plain.values, 2 * allowed("word"), "with padding: values")
    close(padded.objective, plain.objective, 2 * allowed("objective"), "with padding: objective")
    assert padded.pad_leak == plain.pad_leak == 0
    assert not np.delete(padded.values, range(before, before + positions), axis=1).any()


@each_framework
@property_of
@given(case=cases(), data=st.data())
def test_micro_batches_and_split_change_nothing(framework: str, case: Case, data: Any) -> None:
    size = data.draw(st.integers(1, len(case.batch.ids) + 1))
    model = built(framework, case.spec)
    plain = case.gradients(model, case.points)
    close_results(case, case.gradients(model, case.points, batch_size=size), plain, "in micro-batches")
    split = case.gradients(model, case.points, split=True)
    close_results(case, split, plain, "one by one")
    limit = 2 * case.batch.ids.size * case.closed_form().allowed("word")
    for table, expected in zip(split["word"].per_example(), plain["word"].per_example(), strict=True):
        close(table.to_dense(), expected.to_dense(), limit, "one by one: table")


@each_framework
@property_of
@given(case=cases(mixes=True, least=2))
def test_split_where_examples_interact(framework: str, case: Case) -> None:
    split = case.gradients(built(framework, case.spec), split=True)
    for example, table in enumerate(split.per_example()):
        answer = case.closed_form(only=example)
        allowed = answer.allowed("word")
        close(split.values[example], answer["word"][example], allowed, f"values of example {example}")
        close(table.to_dense(), answer["table"], case.batch.ids.size * allowed, f"table of example {example}")
