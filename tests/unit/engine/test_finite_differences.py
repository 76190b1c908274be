"""Slopes by finite differences: of functions whose slopes, kinks and stairs are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embgrad.engine.finite_differences import PRECISION, Slopes, _Steps, differences, precision_of, tolerances

DOUBLE = PRECISION["float64"]
#: The steps of float64: the largest, and each a third of the one before.
STEPS = [3e-2 / 3.0**number for number in range(10)]


class Counted:
    """Functions of a step, which count their calls; the numbers that they are computed from have the size 1."""

    def __init__(self, *functions: Callable[[float], float]) -> None:
        self.functions = functions
        self.steps: list[float] = []

    def __call__(self, step: float) -> tuple[np.ndarray, np.ndarray]:
        self.steps.append(step)
        return np.array([function(step) for function in self.functions]), np.ones(len(self.functions))


def slopes_of(*functions: Callable[[float], float], expected: Any, share: float = 1.0) -> tuple[Slopes, Counted]:
    counted = Counted(*functions)
    wanted = np.broadcast_to(np.asarray(expected, np.float64), len(functions))
    return differences(counted, DOUBLE, wanted, np.full(len(functions), share)), counted


def test_a_polynomial_has_the_slope_of_its_linear_part() -> None:
    actual, counted = slopes_of(
        lambda step: 1 + 2 * step + 5 * step**2 + 7 * step**3, lambda step: -3 * step, expected=[2, -3]
    )
    np.testing.assert_allclose(actual.found, [2, -3], atol=1e-11)
    assert (np.abs(actual.found - [2, -3]) <= actual.uncertainty).all()
    assert (actual.uncertainty < 1e-9).all()
    assert actual.kink.tolist() == [0, 0]
    assert actual.stairs.tolist() == [False, False]
    np.testing.assert_allclose(counted.steps, [0, *(side for step in STEPS[:5] for side in (step, -step))])


def test_a_slope_that_is_not_the_expected_one_is_measured_at_all_steps_and_with_its_rounding() -> None:
    actual, counted = slopes_of(lambda step: 2 * step + step**2, expected=1.0)
    assert actual.found == pytest.approx([2], abs=1e-9)
    both_sides = [side for step in STEPS for side in (step, -step)]
    near = [number * 2.5e-7 for number in range(6)]
    np.testing.assert_allclose(counted.steps, [0, *both_sides, *near])


def test_a_kink_at_zero_is_the_change_of_the_slope_there() -> None:
    actual, _ = slopes_of(lambda step: 3 * abs(step) + 2 * step, lambda step: 2 * step, expected=[2, 2])
    assert actual.found == pytest.approx([2, 2], abs=1e-9)
    assert actual.kink == pytest.approx([6, 0], rel=1e-6)
    assert actual.uncertainty[0] == pytest.approx(3, rel=1e-6)  # the slope is 5 on one side, -1 on the other
    assert actual.uncertainty[1] < 1e-9


def test_a_kink_beside_zero_is_none_at_zero_and_smaller_steps_do_not_cross_it() -> None:
    actual, _ = slopes_of(lambda step: 2 * step + 10 * max(step - 1e-3, 0), expected=2.0)
    assert actual.found == pytest.approx([2], abs=1e-8)
    assert actual.kink.tolist() == [0]
    assert actual.uncertainty[0] < 1e-6


@pytest.mark.parametrize(
    ("turns", "kink"),
    [
        ((1.0, 1.0, 1.0), 1.0),
        ((1.0, 2.0, 2.0), 1.0),  # the least of those that look alike
        ((1.0, 1.0, -1.0), 0.0),  # together 1, less than half of three times the largest
        ((1.0, 1.0, -0.4), 0.4),  # together 1.6, more than half of it
        ((1.0, -1.0, -1.0), 0.0),
        ((9.0, 1.0, 1.0, 1.0), 1.0),  # whatever larger steps show
    ],
)
def test_a_kink_at_zero_looks_alike_at_the_last_steps(turns: tuple[float, ...], kink: float) -> None:
    bends = [turns[0]] * 8
    for turn in turns:  # turn = (3 · next - bend) / 2, see `_Steps.slopes`
        bends.append((2 * turn + bends[-1]) / 3)
    bends = bends[-10:]
    by_step = {0.0: 0.0} | dict(zip(STEPS, bends, strict=True))

    def bent(step: float) -> float:
        size = min(by_step, key=lambda known: abs(known - abs(step)))
        return by_step[size] * abs(step) / 2 if abs(size - abs(step)) < 1e-3 * size else 0.0

    actual, counted = slopes_of(bent, expected=5.0)  # so that all steps are taken
    assert len(counted.steps) == 27
    assert actual.kink == pytest.approx([kink], abs=1e-4)


def test_rounding_by_design_is_stairs() -> None:
    actual, _ = slopes_of(lambda step: round(1000 * step) / 1000, lambda step: step, expected=1.0)
    assert actual.stairs.tolist() == [True, False]
    assert actual.uncertainty[0] > 0.1  # as far as the steps contradict each other
    assert actual.found[1] == pytest.approx(1, abs=1e-9)


def test_noise_makes_a_slope_as_uncertain_as_it_is() -> None:
    noise = np.random.default_rng(0)
    actual, _ = slopes_of(lambda step: 2 * step + 1e-6 * noise.normal(), expected=1.0)
    assert abs(actual.found[0] - 2) <= actual.uncertainty[0]
    assert 1e-6 < actual.uncertainty[0] < 1


@pytest.mark.parametrize(("slope", "is_stairs"), [(7.11e-10, True), (7.09e-10, False)])
def test_rounding_is_measured_beside_zero(slope: float, is_stairs: bool) -> None:
    size = 4 * 2.0**-52  # the largest rounding error of numbers of the size 1
    near = {number * 2.5e-7: 1e-12 * sign for number, sign in enumerate((1, -1, 1, -1, 1, -1))}
    counted = Counted(lambda step: 0.0 if abs(step) < 1e-3 else slope * step, lambda step: near.get(step, 0.0))
    steps = _Steps(counted, DOUBLE)
    steps.add()
    noise, stairs = steps.rounding()
    np.testing.assert_allclose(noise, [size / 8, 1.5 * 4e-12 / 6**0.5])
    # The slope predicts a change of slope · 5 · 2.5e-7 over the six points.
    assert stairs.tolist() == [is_stairs, False]


def test_the_tolerance_is_of_the_uncertainty_and_of_the_largest_figure() -> None:
    slopes = Slopes(np.array([2.0, -1.0, 0.0]), np.array([0.1, 0.0, 0.0]), np.zeros(3), np.zeros(3, bool))
    actual = tolerances(slopes, DOUBLE, np.array([1.0, 3.0, 0.0]), np.array([0.5, 0.5, 7.0]))
    np.testing.assert_allclose(actual, [4 * 0.1 + 1e-6 * 2, 1e-6 * 3, 1e-6 * 7])


def test_an_unknown_dtype_has_the_precision_of_the_coarsest() -> None:
    assert precision_of("float8_e4m3fn") is precision_of("bfloat16")
    assert precision_of("float32").rounding == np.finfo(np.float32).eps
    assert precision_of("float16").rounding == np.finfo(np.float16).eps


def test_the_uncertainty_is_the_spread_of_three_successive_steps_and_what_smaller_ones_contradict() -> None:
    combined = [9.0, 7.0, 5.0, 11.0, 13.0, 2.0, 2.0, 2.0, 2.1]
    slopes = [1.0]
    for value in combined:  # of fourth order: (9 · next - slope) / 8
        slopes.append((8 * value + slopes[-1]) / 9)
    by_step = dict(zip(STEPS, slopes, strict=True))

    def odd(step: float) -> float:
        size = min(by_step, key=lambda known: abs(known - abs(step)))
        return by_step[size] * step if abs(size - abs(step)) < 1e-3 * size else slopes[-1] * step

    actual, _ = slopes_of(odd, expected=50.0)
    assert actual.found == pytest.approx([2], abs=1e-4)
    assert actual.uncertainty == pytest.approx([0.1], abs=1e-3)
