"""The comparison of a row's results alone with those beside other rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embgrad.ray.alone import LEAST, NOISE, _least, compare_alone


def result(objective: list[float], count: int = 2) -> Any:
    """Return results whose rows of (position, dim) begin with the same numbers for any number of positions."""
    values = np.array([[[row + position, 1.0] for position in range(count)] for row, _ in enumerate(objective, 1)])
    return SimpleNamespace(
        objective=np.array(objective),
        values=values,
        activations=values + 1,
        provenance={"compute_dtype": "float64"},
    )


def last_of(beside: Any) -> Any:
    return SimpleNamespace(**{**vars(beside), **{name: getattr(beside, name)[-1:, ...] for name in PARTS}})


PARTS = ("objective", "values", "activations")


def test_rows_are_compared_without_their_padding() -> None:
    alone = last_of(result([0.5, 0.25]))
    verdict = compare_alone(result([0.5, 0.25], 3), alone, 1, lambda: pytest.fail("the batch was run again"))
    assert (verdict.conclusive, verdict.difference, verdict.limit) == (True, None, LEAST)


@pytest.mark.parametrize(("largest", "scale"), [(0.5, 1.0), (4.0, 4.0), (-4.0, 4.0)])
@pytest.mark.parametrize("part", PARTS)
def test_each_part_shows_a_difference(part: str, largest: float, scale: float) -> None:
    beside = result([largest, 0.25], 3)
    alone = last_of(result([largest, 0.25]))
    getattr(alone, part)[0] += 0.02
    verdict = compare_alone(beside, alone, 1, lambda: beside)
    array = getattr(alone, part)[0]
    expected = 0.02 / scale if part == "objective" else 0.02 * array.size**0.5 / np.linalg.norm(array)
    assert verdict.difference == pytest.approx(expected)
    assert (verdict.conclusive, verdict.limit) == (True, LEAST)


def test_a_difference_from_one_pass_to_the_next_is_random() -> None:
    beside, again = result([0.5, 0.25], 3), result([0.5, 0.35], 3)
    verdict = compare_alone(beside, last_of(result([0.5, 0.3])), 1, lambda: again)
    assert (verdict.conclusive, verdict.difference) == (True, None)


@pytest.mark.parametrize(("gradient", "activation", "conclusive"), [(0.0, 0.0, True), (0.0, 1.0, False)])
def test_a_gradient_of_rounding_alone_shows_nothing(gradient: float, activation: float, conclusive: bool) -> None:
    beside = result([0.5, 0.25])
    beside.values[1], beside.activations[1] = gradient, activation
    verdict = compare_alone(beside, last_of(beside), 1, lambda: beside)
    assert (verdict.conclusive, verdict.difference) == (conclusive, None)


def test_gradients_whose_rounding_would_exceed_the_limit_are_compared_by_a_larger_norm() -> None:
    result: Any = SimpleNamespace(objective=np.array([8.0, -20.0]), activations=np.array([[[3.0, 4.0]], [[0.0, 0.0]]]))
    assert _least(result, 0, 0.5) == pytest.approx(NOISE * 20 / (0.5 * 5))
    assert _least(result, 1, 0.5) == 0.0
