"""The gradient at every point is the closed form's, which has the slopes of its own forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tests.contract.properties.cases import Case, built, close
from tests.contract.properties.closed_form import Batch, Forward
from tests.contract.properties.generating import cases, seeds
from tests.contract.properties.goals import Goal
from tests.contract.properties.running import by_hand, each_framework, property_of
from tests.contract.properties.slopes import direction_of, slope, slope_at
from tests.contract.properties.specs import Block, Spec, weights_of

#: The types are the ids by chance, and a symmetric square, which does not tell which axis is the examples: once refused.
TYPES_LIKE_IDS = Case(
    Spec(vocab=4, width=3, types=True, blocks=(Block("tanh"),), head="linear"),
    Batch(np.array([[0, 1], [1, 2]]), types=np.array([[0, 1], [1, 2]])),
    Goal("logit", np.array([0, 1])),
)


@by_hand
@given(case=cases(meets=True) | cases(), seed=seeds, data=st.data())
def test_the_closed_form_has_the_slopes_of_its_forward_pass(case: Case, seed: int, data: Any) -> None:
    point = data.draw(st.sampled_from(["word", "embeddings", *case.blocks]))
    answer = case.closed_form()
    direction = direction_of(answer[point].shape, seed)
    found, uncertainty = slope_at(case, point, answer[f"at {point}"], direction)
    assert abs((answer[point] * direction).sum() - found) <= uncertainty
    assert uncertainty < 1e-6 * max(1.0, np.abs(answer[point]).max())


@by_hand
@given(case=cases(meets=True) | cases(), seed=seeds)
def test_the_closed_form_has_the_slopes_of_its_table(case: Case, seed: int) -> None:
    """Through the lookups, and through a head that is tied to it."""
    weights, answer = weights_of(case.spec), case.closed_form()
    direction = direction_of(weights["words"].shape, seed)

    def total(table: np.ndarray) -> float:
        output = Forward(case.spec, case.batch, weights={**weights, "words": table}).output
        return float(case.goal.evaluate(output, case.batch.real)[0].sum())

    found, uncertainty = slope(total, weights["words"], direction)
    assert abs(((answer["table"] + answer["head"]) * direction).sum() - found) <= uncertainty
    assert uncertainty < 1e-6 * max(1.0, np.abs(answer["table"] + answer["head"]).max())


@each_framework
@property_of
@given(case=cases(meets=True) | cases(), seed=seeds)
@example(case=TYPES_LIKE_IDS, seed=0)
def test_the_gradient_is_the_closed_form(framework: str, case: Case, seed: int) -> None:
    answer, model = case.closed_form(), built(framework, case.spec)
    results = case.gradients(model, case.points)
    for point, result in results.items():
        assert result.values.dtype == result.activations.dtype == case.spec.dtype
        close(result.values, answer[point], answer.allowed[point], f"the gradient at {point}")
        close(result.activations, answer[f"at {point}"], answer.allowed[f"at {point}"], f"the value at {point}")
        close(result.objective, answer["objective"], answer.allowed["objective"], "the objective")
    word = results["word"].values
    direction = direction_of(word.shape, seed)
    found, uncertainty = slope_at(case, "word", answer["at word"], direction)
    allowed = uncertainty + answer.allowed["word"] * np.abs(direction).sum()
    assert abs((word * direction).sum() - found) <= allowed
