"""Where a value is replaced the gradient is that at the new value; changes that change nothing change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.contract.properties.cases import Case, built, close
from tests.contract.properties.generating import cases, seeds
from tests.contract.properties.running import each_framework, property_of
from tests.contract.properties.slopes import direction_of, slope_at


@each_framework
@property_of
@given(case=cases(meets=True) | cases(), seed=seeds, option=st.sampled_from(["override", "add"]), data=st.data())
def test_the_gradient_is_that_at_the_new_value(framework: str, case: Case, seed: int, option: str, data: Any) -> None:
    point = data.draw(st.sampled_from(case.changeable))
    shape = case.closed_form()[f"at {point}"].shape
    drawn, direction = np.random.default_rng(seed).normal(size=shape), direction_of(shape, seed + 1)
    change: dict[str, Any] = {option: {point: drawn.astype(case.spec.dtype).astype(np.float64)}}
    answer = case.closed_form(**change)
    found = case.gradients(built(framework, case.spec), point, **change)
    close(found.values, answer[point], answer.allowed[point], f"the gradient at {point}")
    close(found.activations, answer[f"at {point}"], answer.allowed[f"at {point}"], f"the value at {point}")
    close(found.objective, answer["objective"], answer.allowed["objective"], "the objective")
    expected, uncertainty = slope_at(case, point, answer[f"at {point}"], direction)
    allowed = uncertainty + answer.allowed[point] * np.abs(direction).sum()
    assert abs((found.values * direction).sum() - expected) <= allowed


@each_framework
@property_of
@given(case=cases(meets=True) | cases(), data=st.data())
def test_changes_that_change_nothing(framework: str, case: Case, data: Any) -> None:
    """But for the last bits: a library of matrix products gives others where an array lies elsewhere in memory."""
    point = data.draw(st.sampled_from(case.changeable))
    model, answer = built(framework, case.spec), case.closed_form()
    at = list(dict.fromkeys(["word", point]))
    plain = case.gradients(model, at)
    nothing: dict[str, Any] = {
        "add": np.zeros(answer[f"at {point}"].shape),
        "override": lambda value: value,
        "edit": lambda gradient: gradient,
    }
    for option, change in nothing.items():
        same = case.gradients(model, [point] if option == "override" else at, **{option: {point: change}})
        for name, found in same.items():
            close(found.values, plain[name].values, 2 * answer.allowed[name], f"{option}: the gradient at {name}")
            allowed = 2 * answer.allowed[f"at {name}"]
            close(found.activations, plain[name].activations, allowed, f"{option}: the value at {name}")
            close(found.objective, plain[name].objective, 2 * answer.allowed["objective"], f"{option}: the objective")
    np.testing.assert_array_equal(same[point].before, same[point].values)
