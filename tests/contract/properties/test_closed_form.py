"""The gradient at every point is the closed form's, which has the slopes of its own forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.conftest import REFERENCE
from tests.contract.properties.cases import Case, built, close_to
from tests.contract.properties.closed_form import Batch
from tests.contract.properties.generating import cases, seeds
from tests.contract.properties.goals import Goal
from tests.contract.properties.running import each_framework, in_numpy, property_of
from tests.contract.properties.slopes import direction_of, slope_at
from tests.contract.properties.specs import Block, Spec

#: The types equal the ids by chance, in a symmetric square that does not show which axis is the examples: once refused.
TYPES_LIKE_IDS = Case(
    Spec(vocab=4, width=3, types=True, blocks=(Block("tanh"),), head="linear"),
    Batch(np.array([[0, 1], [1, 2]]), types=np.array([[0, 1], [1, 2]])),
    Goal("logit", np.array([0, 1])),
)


@pytest.mark.framework(REFERENCE)
@in_numpy
@given(case=cases(mixes=True) | cases(), seed=seeds, data=st.data())
def test_the_closed_form_has_the_slopes_of_its_forward_pass(case: Case, seed: int, data: Any) -> None:
    heads = ["head"] if case.spec.head == "tied" else []
    point = data.draw(st.sampled_from(["embeddings", *case.changeable, *heads]))
    answer = case.closed_form()
    direction = direction_of(answer[point].shape, seed)
    slope, uncertainty = slope_at(case, point, answer[f"at {point}"], direction)
    assert abs((answer[point] * direction).sum() - slope) <= uncertainty
    assert uncertainty < 1e-6 * max(1.0, np.abs(answer[point]).max())


@pytest.mark.framework(REFERENCE)
def test_rounding_is_allowed_little() -> None:
    """In nearly all cases; a layer norm of two entries makes a gradient near zero, of which more is rounding."""
    shares: dict[str, list[float]] = {"float64": [], "float32": []}

    @in_numpy
    @given(case=cases(mixes=True) | cases())
    def collect(case: Case) -> None:
        answer = case.closed_form()
        shares[case.spec.dtype].append(answer.allowed("word") / max(float(np.abs(answer["word"]).max()), 1e-300))

    collect()
    for dtype, little in (("float64", 1e-11), ("float32", 1e-3)):
        assert len(shares[dtype]) > 20
        assert np.mean(np.array(shares[dtype]) < little) > 0.75


@each_framework
@property_of
@given(case=cases(mixes=True) | cases(), seed=seeds)
@example(case=TYPES_LIKE_IDS, seed=0)
def test_the_gradient_is_the_closed_form(framework: str, case: Case, seed: int) -> None:
    answer = case.closed_form()
    results = case.gradients(built(framework, case.spec), case.points)
    for point, result in results.items():
        assert result.values.dtype == result.activations.dtype == case.spec.dtype
        close_to(answer, point, result)
    expect_slope(case, "word", results["word"], seed, answer)


@each_framework
@property_of
@given(case=cases(mixes=True) | cases(), seed=seeds, option=st.sampled_from(["override", "add"]), data=st.data())
def test_the_gradient_at_a_changed_point_is_that_at_the_new_value(
    framework: str, case: Case, seed: int, option: str, data: Any
) -> None:
    point = data.draw(st.sampled_from(case.changeable))
    new = np.random.default_rng(seed).normal(size=case.closed_form()[f"at {point}"].shape)
    change: dict[str, Any] = {option: {point: new.astype(case.spec.dtype).astype(np.float64)}}
    answer = case.closed_form(**change)
    result = case.gradients(built(framework, case.spec), point, **change)
    close_to(answer, point, result)
    expect_slope(case, point, result, seed + 1, answer)


def expect_slope(case: Case, point: str, result: Any, seed: int, answer: Any) -> None:
    direction = direction_of(result.shape, seed)
    slope, uncertainty = slope_at(case, point, answer[f"at {point}"], direction)
    allowed = uncertainty + answer.allowed(point) * np.abs(direction).sum()
    assert abs((result.values * direction).sum() - slope) <= allowed


@each_framework
@property_of
@given(case=cases(), data=st.data())
def test_a_point_that_is_replaced_by_itself_keeps_its_gradient(framework: str, case: Case, data: Any) -> None:
    point = data.draw(st.sampled_from(case.changeable))
    model, answer = built(framework, case.spec), case.closed_form()
    for option in ("override", "edit"):
        result = case.gradients(model, point, **{option: {point: lambda value: value}})
        close_to(answer, point, result)
    np.testing.assert_array_equal(result.before, result.values)
