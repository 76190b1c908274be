"""Which hypotheses become findings, by how much they leave of a difference."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.diagnosis.case import EXACT, Measure
from embgrad.comparison.diagnosis.rearrangements import STRUCTURES
from embgrad.comparison.diagnosis.search import Candidate, accepted, finding_of, is_exact, select
from embgrad.comparison.diagnosis.search import _products as products

TOLERANCE = 2.0**-20
CASE: Any = SimpleNamespace(
    tolerance=TOLERANCE,
    exact=EXACT * TOLERANCE,
    half=None,
    side="a",
    names=("a", "b"),
    values=np.ones((2, 2, 2)),
    matched=np.ones((2, 2), bool),
)
HALF: Any = SimpleNamespace(**{**vars(CASE), "exact": 1e-3, "half": "bfloat16"})
STRUCTURE = next(iter(STRUCTURES))


def candidate(
    remaining: float, *causes: str, explained: float = 1.0, scale: float = 1.0, case: Any = CASE, **more: Any
) -> Candidate:
    given = {"fitted": False, "factor": False, "side": "", **more}
    return Candidate(case, causes or ("eval-mode",), f"{causes}", Measure(explained, remaining, scale), **given)


@pytest.mark.parametrize(
    ("case", "remaining", "scale", "explained", "expected"),
    [
        (CASE, 5 * TOLERANCE, 2.0, 0.9, True),
        (CASE, 5.1e-6, 1.0, 1.0, False),
        (CASE, 5e-6, 1.0, 0.89, False),
        (HALF, 5 * TOLERANCE, 2.0, 1.0, True),
        (HALF, 1e-3, 1 + 0.79e-3, 1.0, True),
        (HALF, 1e-3, 1 + 0.81e-3, 1.0, False),  # rounding has no direction
        (HALF, 1.1e-3, 1.0, 1.0, False),
    ],
)
def test_what_is_right_up_to_rounding(
    case: Any, remaining: float, scale: float, explained: float, expected: bool
) -> None:
    assert is_exact(candidate(remaining, explained=explained, scale=scale, case=case)) is expected


@pytest.mark.parametrize(
    ("causes", "most", "off", "more"),
    [
        (("eval-mode",), 0.3, 0.1, {}),
        (("eval-mode",), 0.15, 0.005, {"factor": True}),
        ((STRUCTURE,), 0.1, 0.1, {}),
        (("eval-mode", STRUCTURE), 0.05, 0.1, {}),
        (("eval-mode", STRUCTURE), 0.3, 0.1, {"checked": True}),
    ],
)
def test_what_resembles_a_difference_is_accepted_up_to_a_limit(causes: Any, most: float, off: float, more: Any) -> None:
    assert accepted(candidate(most, *causes, scale=1 + 0.99 * off, explained=0.9, **more))
    assert not accepted(candidate(most * 1.01, *causes, **more))
    assert not accepted(candidate(most, *causes, scale=1 - 1.01 * off, **more))
    assert not accepted(candidate(most, *causes, explained=0.89, **more))
    assert not accepted(candidate(most, *causes, fitted=True, **more))
    assert accepted(candidate(1e-7, *causes, fitted=True, scale=3.0, **more))
    few: Any = SimpleNamespace(**{**vars(CASE), "matched": np.array([[1, 1], [1, 0]])})
    assert not accepted(candidate(1e-7, *causes, case=few)), "six numbers may match by chance"


EXACTLY, GENERAL, TWO = candidate(1e-7, "a"), candidate(0.0, "other-point"), candidate(1e-7, "b", "c")
ONE, BETTER, PAIR = candidate(0.2, "a"), candidate(0.1, "b"), candidate(0.03, "c", "d")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], []),
        ([candidate(0.4)], []),
        ([ONE, BETTER], [BETTER]),
        ([ONE, EXACTLY, BETTER], [EXACTLY]),
        ([TWO, EXACTLY], [EXACTLY]),
        ([GENERAL, EXACTLY], [EXACTLY]),
        ([TWO, BETTER], [TWO, BETTER]),
        ([TWO, BETTER, ONE], [TWO, BETTER]),
        ([replace(EXACTLY, fitted=True), TWO], [TWO]),
        (
            [candidate(1e-7, *name) for name in ("ab", "cd", "ef", "gh", "ij")] + [ONE],
            [*"ab", *"cd", *"ef", *"gh", "a"],
        ),
        ([PAIR, BETTER], [PAIR, BETTER]),  # which leaves a third of what one cause leaves
        ([replace(PAIR, measure=Measure(1.0, 0.034, 1.0)), BETTER], [BETTER]),
        ([PAIR], [PAIR]),
    ],
)
def test_the_best_become_findings(given: list[Candidate], expected: list[Any]) -> None:
    causes = [cause for one in expected for cause in (one.causes if isinstance(one, Candidate) else one)]
    assert [cause for one in select(given) for cause in one.causes] == causes


def test_of_two_that_are_right_up_to_half_precision_the_far_more_accurate_stays() -> None:
    rough, fine = candidate(9e-4, "a", case=HALF), candidate(6.1e-4, "b", case=HALF)
    assert select([rough, fine]) == [fine, rough]
    assert select([replace(rough, measure=Measure(1.0, 9.2e-4, 1.0)), fine]) == [fine]
    assert finding_of(fine).causes == ("b", "half-precision")
    assert finding_of(candidate(5 * TOLERANCE, "b", case=HALF)).causes == ("b",)


def test_a_cause_that_both_sides_explain_has_no_side() -> None:
    here = candidate(1e-7, "a", side="a")
    there = candidate(1e-7, "a", case=SimpleNamespace(**{**vars(CASE), "side": "b"}), side="b")
    assert [one.side for one in select([here, there])] == [""]
    assert [one.side for one in select([here, replace(there, side="a")])] == ["a"]
    assert [one.side for one in select([here, replace(there, case=CASE)])] == ["a"]


def test_two_known_factors_are_paired_once_and_never_two_means() -> None:
    a, b, c = (SimpleNamespace(mean_on=mean) for mean in ("source", "", "target"))
    assert list(products([a, b, c])) == [(a, b), (b, c)]  # type: ignore[list-item]
