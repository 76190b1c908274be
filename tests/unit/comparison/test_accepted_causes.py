"""Which hypotheses become findings, by what they leave of a difference, and in which order."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.diagnosis.case import Case, Match, Measure, Reference
from embgrad.comparison.diagnosis.factors import Factor
from embgrad.comparison.diagnosis.rearrangements import Prediction
from embgrad.comparison.diagnosis.search import (
    Candidate,
    _best,
    _candidate,
    _fits,
    _products,
    accepted,
    finding_of,
    is_exact,
    select,
)

TOLERANCE = 2.0**-20


def case_of(*, half: str | None = None, side: str = "b", positions: int = 4, exact: float = 5 * TOLERANCE) -> Any:
    """Return a direction of a comparison at so many positions, with two numbers at each."""
    return SimpleNamespace(
        matched=np.ones((1, positions), bool),
        values=np.ones((1, positions, 2)),
        exact=0.01 if half else exact,
        tolerance=TOLERANCE,
        half=half,
        side=side,
        names=("a", "b") if side == "b" else ("b", "a"),
    )


CASE, HALF = case_of(), case_of(half="float16")


def candidate(
    remaining: float,
    *causes: str,
    case: Any = CASE,
    explained: float = 0.95,
    scale: float = 1.0,
    fitted: bool = False,
    factor: bool = False,
    side: str = "",
    **further: Any,
) -> Candidate:
    names = causes or ("mask-ignored",)
    measure = Measure(explained, remaining, scale)
    return Candidate(case, names, " and ".join(names), measure, fitted, factor, side, **further)


EXACT = {
    "up to rounding": (candidate(5 * TOLERANCE), True),
    "beyond rounding": (candidate(5.1 * TOLERANCE), False),
    "hardly anything explained": (candidate(0.0, explained=0.89), False),
    "nine tenths explained": (candidate(0.0, explained=0.9), True),
    "in half precision": (candidate(0.01, case=HALF), True),
    "beyond half precision": (candidate(0.0101, case=HALF), False),
    "of another size": (candidate(0.01, case=HALF, scale=1.0081), False),
    "of nearly the same size": (candidate(0.01, case=HALF, scale=1.0079), True),
    "smaller": (candidate(0.01, case=HALF, scale=0.9919), False),
    "of another size, up to rounding": (candidate(5 * TOLERANCE, case=HALF, scale=2.0), True),
}


@pytest.mark.parametrize(("found", "wanted"), EXACT.values(), ids=EXACT)
def test_a_prediction_is_exact_up_to_rounding(found: Candidate, wanted: bool) -> None:
    assert is_exact(found) is wanted


ACCEPTED = {
    "another run": (candidate(0.3), True),
    "a worse run": (candidate(0.31), False),
    "a factor": (candidate(0.15, "sign", factor=True), True),
    "a worse factor": (candidate(0.16, "sign", factor=True), False),
    "a rearrangement": (candidate(0.1, "position-shift"), True),
    "a worse rearrangement": (candidate(0.11, "position-shift"), False),
    "two causes": (candidate(0.05, "sign", "mask-ignored"), True),
    "two worse causes": (candidate(0.06, "sign", "mask-ignored"), False),
    "two causes inside the models": (candidate(0.3, "sign", "mask-ignored", checked=True), True),
    "worse causes inside the models": (candidate(0.31, checked=True), False),
    "what was fitted": (candidate(0.01, fitted=True), False),
    "what was fitted exactly": (candidate(1e-6, fitted=True), True),
    "little explained": (candidate(0.1, explained=0.89), False),
    "nine tenths explained": (candidate(0.1, explained=0.9), True),
    "another size": (candidate(0.1, scale=1.11), False),
    "nearly the same size": (candidate(0.1, scale=1.09), True),
    "smaller": (candidate(0.1, scale=0.89), False),
    "a factor of another size": (candidate(0.1, "sign", factor=True, scale=1.0051), False),
    "a factor of nearly the same size": (candidate(0.1, "sign", factor=True, scale=1.0049), True),
    "eight numbers": (candidate(0.0, case=case_of(positions=4)), True),
    "six numbers": (candidate(0.0, case=case_of(positions=3)), False),
}


@pytest.mark.parametrize(("found", "wanted"), ACCEPTED.values(), ids=ACCEPTED)
def test_a_prediction_is_accepted_by_its_kind(found: Candidate, wanted: bool) -> None:
    assert accepted(found) is wanted


def causes_of(*found: Candidate) -> list[tuple[str, ...]]:
    return [each.causes for each in select(found)]


def test_exact_causes_are_alone_the_simplest_first() -> None:
    exact, pair, near = candidate(0, "sign"), candidate(0, "sign", "mask-ignored"), candidate(0.1, "pads-counted")
    assert causes_of(near, pair, exact) == [("sign",)]
    assert causes_of(exact, candidate(0, "pads-counted")) == [("sign",), ("pads-counted",)]
    assert causes_of(candidate(0, "other-point"), exact) == [("sign",)]
    assert causes_of(candidate(0, "other-point")) == [("other-point",)]
    assert causes_of(candidate(0, "constant-factor", fitted=True), exact) == [("sign",)]
    assert causes_of() == causes_of(candidate(0.5)) == []


def test_a_product_by_chance_stands_beside_a_fitted_number() -> None:
    fitted, chance = candidate(0, "constant-factor", fitted=True), candidate(0, "sign", "scaled-lookup", chance=True)
    assert causes_of(chance, fitted) == [("constant-factor",), ("sign", "scaled-lookup")]
    sure = replace(chance, chance=False)
    assert causes_of(sure, fitted) == [("sign", "scaled-lookup")]


def test_at_most_four_exact_pairs_are_returned_and_the_best_single_cause() -> None:
    pairs = [candidate(0, "sign", name) for name in "pqrstu"]
    singles = [candidate(0.02, "mask-ignored"), candidate(0.01, "pads-counted")]
    fitted = candidate(0.001, "constant-factor", fitted=True)
    assert causes_of(*pairs, *singles, fitted) == [*(("sign", name) for name in "pqrs"), ("pads-counted",)]


@pytest.mark.parametrize(("left", "named"), [(0.009, True), (0.011, False)])
def test_a_pair_must_leave_a_third_of_what_a_single_cause_leaves(left: float, named: bool) -> None:
    single, pair = candidate(0.03, "sign"), candidate(left, "sign", "mask-ignored")
    assert causes_of(single, pair) == [("sign", "mask-ignored")] * named + [("sign",)]
    assert causes_of(pair) == [("sign", "mask-ignored")]
    assert causes_of(single, candidate(0.2, "mask-ignored"), pair)[-1] == ("sign",)


def test_a_pair_is_measured_by_the_best_single_cause() -> None:
    single, worse, pair = (
        candidate(0.05, "sign"),
        candidate(0.2, "mask-ignored"),
        candidate(0.03, "sign", "pads-counted"),
    )
    assert causes_of(worse, single, pair) == [("sign",)]


def test_the_best_of_those_that_are_not_exact_is_returned() -> None:
    assert causes_of(candidate(0.2, "mask-ignored"), candidate(0.1, "pads-counted")) == [("pads-counted",)]


def test_in_half_precision_the_far_more_accurate_cause_counts() -> None:
    near = [candidate(left, name, case=HALF) for left, name in ((0.004, "p"), (0.0059, "q"), (0.0061, "r"))]
    assert causes_of(*near) == [("p",), ("q",)]
    tiny = [
        candidate(left, name, case=HALF) for left, name in ((1e-6, "p"), (5 * TOLERANCE, "q"), (6 * TOLERANCE, "r"))
    ]
    assert causes_of(*tiny) == [("p",), ("q",)]
    assert causes_of(*(replace(each, case=case_of(exact=0.01)) for each in near)) == [("p",), ("q",), ("r",)]


def test_of_equal_causes_the_first_that_is_hardly_worse_is_taken() -> None:
    first, best, worse = (candidate(left, "p") for left in (2.1e-6, 2e-6, 2.3e-6))
    assert _best([first, best]) is first
    assert _best([worse, best]) is best
    small = candidate(0.9 * TOLERANCE, "p")
    assert _best([small, candidate(1e-9, "p")]) is small  # both are below the tolerance


def test_a_cause_that_is_exact_from_either_side_has_none() -> None:
    own, other = candidate(0, "p", side="b"), candidate(0, "p", side="a", case=case_of(side="a"))
    assert _best([own, other]).side == ""
    assert _best([own, replace(other, side="b")]).side == "b"
    assert _best([own, replace(other, measure=Measure(0.95, 0.1, 1.0))]).side == "b"
    assert _best([own, replace(own, side="a")]).side == "b"
    near = [replace(each, measure=Measure(0.95, 0.1, 1.0)) for each in (own, other)]
    assert _best(near).side == "b"


def test_a_finding_in_half_precision_names_the_rounding() -> None:
    found = finding_of(candidate(0.009, "sign", case=HALF, side="b"))
    assert (found.causes, found.explained, found.remaining, found.side) == (
        ("sign", "half-precision"),
        0.95,
        0.009,
        "b",
    )
    assert found.text == "sign, and rounding: b was computed in float16"
    for other in (
        candidate(5 * TOLERANCE, "sign", case=HALF),
        candidate(0.02, "sign", case=HALF),
        candidate(0.009, "sign"),
        candidate(0.009, "half-precision", case=HALF),
    ):
        assert finding_of(other).causes == other.causes
        assert finding_of(other).text == other.text


def factor(name: str, number: float = 2.0, **further: Any) -> Factor:
    return Factor(name, f"the factor {name}", np.array([number]), **further)


def test_two_means_are_no_pair() -> None:
    mean, other, sign = factor("m", mean_on="source"), factor("n", mean_on="target"), factor("s")
    assert [(first.cause, second.cause) for first, second in _products([mean, other, sign])] == [("m", "s"), ("n", "s")]


def real_case(wanted: np.ndarray) -> Case:
    """Return a direction of a comparison of ones with what is wanted, over one example or more."""
    ones = np.ones_like(wanted)
    fake: Any = SimpleNamespace(
        values=ones, wanted=wanted, matched=np.ones(wanted.shape[:2], bool), names=("a", "b"), tolerance=TOLERANCE
    )
    fake.source = SimpleNamespace(ids=np.zeros(wanted.shape[:2], int))
    result: Case = fake
    return result


def candidate_of(*factors: Factor, causes: tuple[str, ...] = ()) -> Candidate:
    case = real_case(np.full((1, 2, 4), 6.0))
    match = Match(Reference(case, case.matched), case.values)
    return _candidate(case, Prediction(causes, "moved" if causes else "", case.values), match, factors)


def test_a_candidate_has_the_causes_and_the_side_of_its_parts() -> None:
    mean, taken, whole = factor("m", 3.0, mean_on="source"), factor("t", mean_on="target"), factor("w", whole=True)
    found = candidate_of(mean, whole)
    assert (found.causes, found.text) == (("m", "w"), "the factor m, and the factor w")
    assert (found.side, found.factor, found.fitted, found.chance) == ("a", True, False, True)
    assert found.measure == Measure(1.0, 0.0, 1.0)
    assert (candidate_of(taken).side, candidate_of(whole).side, candidate_of().side) == ("b", "", "")
    assert (candidate_of(whole).chance, candidate_of(mean).chance) == (False, False)
    moved = candidate_of(replace(whole, fitted=True), causes=("position-shift",))
    assert (moved.causes, moved.text) == (("position-shift", "w"), "moved, and the factor w")
    assert (moved.side, moved.factor, moved.fitted) == ("b", False, True)
    assert candidate_of(factor("c", fitted=True)).fitted
    assert not candidate_of().factor


def fits(wanted: np.ndarray, causes: tuple[str, ...] = ()) -> list[list[float]]:
    case = real_case(wanted)
    prediction = Prediction(causes, "", case.values)
    return [
        each.numbers.tolist() for each in _fits(case, prediction, Match(Reference(case, case.matched), case.values))
    ]


def test_numbers_are_fitted_to_all_examples_and_to_each() -> None:
    wanted = np.ones((2, 2, 4)) * np.array([3.0, 5.0])[:, None, None]
    assert fits(wanted) == [[4.0, 4.0], [3.0, 5.0]]
    assert fits(wanted, ("position-shift",)) == [[4.0, 4.0]]
    assert fits(wanted[:1]) == [[3.0]]
    assert fits(wanted[:, :1]) == [[4.0, 4.0]]  # four numbers are too few for one of their own
    assert fits(np.array([1.0, 1.009])[:, None, None] * np.ones((2, 2, 4))) == []
    nearly = fits(np.array([1.0, 1.011])[:, None, None] * np.ones((2, 2, 4)))
    np.testing.assert_allclose(nearly, [[1.0, 1.011]])
    assert len(fits(np.full((2, 2, 4), 1.011))) == 2
