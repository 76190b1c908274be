"""The fewest changes of a function that predict the port's output are found, and nothing where none do."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.changes import Change, explained_by_changes
from embgrad.comparison.hypotheses.site import Explanation, Values
from tests.unit.comparison.hypotheses.planted import expect_exact, site_of

X = np.random.default_rng(0).normal(size=(2, 3, 4))

#: What is added to each feature of X, by its index.
Shifts = tuple[float, float, float, float]
NONE: Shifts = (0.0, 0.0, 0.0, 0.0)


class Shifted:
    """The sum of X and a shift of each feature, in all places."""

    def off(self, function: Shifts, wanted: np.ndarray) -> float:
        return float(np.linalg.norm(X + function - wanted) / np.linalg.norm(wanted))

    def outputs(self, function: Shifts, at: Values) -> np.ndarray:
        return np.asarray(at("x") + function)

    def inputs(self, function: Shifts) -> tuple[str, ...]:
        return ("x",)


def moved(feature: int, step: float, function: Shifts) -> Shifts:
    values = list(function)
    values[feature] += step
    return tuple(values)  # type: ignore[return-value]


def change(feature: int, step: float = 1.0) -> Change:
    return Change("different-weight", f"feature {feature} by {step}", partial(moved, feature, step))


def never(function: Shifts) -> Shifts:
    raise AssertionError("a change was tried although another one is exact")


def explained(b: Shifts, changes: list[Change], **further: Any) -> list[Explanation]:
    site = site_of(X, X + b, {"x": X})
    found = explained_by_changes(site, NONE, changes, Shifted(), "the shift", **further)
    if found:
        expect_exact(site, found[0])
    return found


def texts(found: list[Explanation]) -> list[str]:
    return [found[0].text, *(other.text for other in found[0].also)] if found else []


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_up_to_three_changes_are_found_at_once(count: int) -> None:
    wanted: Shifts = tuple(float(feature < count) for feature in range(4))  # type: ignore[assignment]
    found = texts(explained(wanted, [change(feature) for feature in range(4)]))
    assert sorted(found) == [f"feature {feature} by 1.0" for feature in range(count if count < 4 else 0)]


def test_a_change_that_brings_nothing_is_not_named() -> None:
    assert explained((0.0, 0.0, 0.0, -1.0), [change(feature) for feature in range(4)]) == []


def test_no_change_is_looked_for_behind_an_exact_one() -> None:
    found = explained((1.0, 0.0, 0.0, 0.0), [change(0), Change("activation", "never", never)])
    assert texts(found) == ["feature 0 by 1.0"]


@pytest.mark.parametrize("steps", [(1.0 + 1e-5, 1.0), (1.0 + 1e-5, 1.0 - 2e-6)])
def test_of_changes_within_the_bound_the_nearest_is_named(steps: tuple[float, float]) -> None:
    """Two approximations of one function are both near; the second of these leaves less."""
    site = site_of(X, X + np.array([1.0, 0.0, 0.0, 0.0]), {"x": X})
    found = explained_by_changes(site, NONE, [change(0, step) for step in steps], Shifted(), "the shift")
    assert texts(found) == [f"feature 0 by {steps[1]}"]


def test_of_many_changes_the_nearer_ones_are_tried_further() -> None:
    """By itself the change of feature 3 leads further away, and only together with another one nearer."""

    def along(function: Shifts) -> Shifts:
        return moved(3, 1.0, function) if function[0] else moved(3, -9.0, function)

    changes = [change(0), Change("activation", "along", along)]
    wanted: Shifts = (1.0, 0.0, 0.0, 1.0)
    assert sorted(texts(explained(wanted, changes))) == ["along", "feature 0 by 1.0"]
    assert explained(wanted, changes, further=1) == []
