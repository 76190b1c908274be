"""What a golden file says of numbers that moved, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.golden import (
    _descriptions,
    _difference,
    _made_with,
    _objective_change,
    _other_names,
    _prefix,
    _relative,
    _scale,
    _value_change,
    _versions,
)
from embgrad.results.gradients import EmbeddingGradients
from tests.unit.comparison.test_factors import result


def golden(objective: Any = None, activations: np.ndarray | None = None, **further: Any) -> EmbeddingGradients:
    """Return a result whose gradients and activations are ones, of which each example has 16."""
    base = result(objective=None if objective is None else np.asarray(objective, np.float64))
    return replace(base, activations=base.activations if activations is None else activations, **further)


def test_an_objective_moves_by_more_than_the_tolerance_of_its_size() -> None:
    """The size is that of the largest objective, 2, and of the pull of the activations, which is the root of 16."""
    before = golden([1.0, -2.0, 0.5])
    np.testing.assert_allclose(_scale(before), [6, 6, 6])
    assert _objective_change(before, golden([1.0, -2.0, 0.5 + 0.59]), 0.1) == ""
    text = _objective_change(before, golden([1.0, -2.7, 0.5 + 0.61]), 0.1)
    assert text == "the objective moved, most at example 1, from -2 to -2.7"
    nan = _objective_change(before, golden([1.0, np.nan, 0.5]), 0.1)
    assert nan == "the objective moved, most at example 1, from -2 to nan"
    infinite = golden([np.inf, 1.0, 1.0])
    assert _objective_change(infinite, infinite, 0.1) == ""
    np.testing.assert_allclose(_scale(infinite), [5, 5, 5])
    assert _objective_change(golden(), before, 0.1) == _objective_change(before, golden(), 0.1) == ""


def test_one_objective_of_all_examples() -> None:
    before = golden(2.0)
    np.testing.assert_allclose(_scale(before), 2 + 48**0.5)
    assert _objective_change(before, golden(2.8), 0.1) == ""
    assert _objective_change(before, golden(3.0), 0.1) == "the objective moved, from 2 to 3"
    shapes = _objective_change(before, golden([1.0, 2.0, 3.0]), 0.1)
    assert shapes == "the objective has the shape (3,), and () in the golden file"


def test_activations_that_are_infinite_pull_nothing() -> None:
    activations = np.ones((3, 4, 4))
    activations[0, 0] = np.inf
    np.testing.assert_allclose(_scale(golden([0.0, 0.0, 0.0], activations)), [12**0.5, 4, 4])


def test_values_at_the_point_move() -> None:
    ones = np.ones((3, 4, 4))
    assert _value_change(golden(), golden(activations=1.25 * ones), 0.25) == ""
    text = _value_change(golden(), golden(activations=1.26 * ones), 0.25)
    assert text == "the value at the point moved, relative L2 2.60e-01"
    shapes = _value_change(golden(), golden(activations=ones[..., :2]), 0.25)
    assert shapes == "the value at the point has the shape (3, 4, 2), and (3, 4, 4) in the golden file"


def test_differences_of_numbers_that_are_not_finite() -> None:
    a, b = np.array([np.inf, 1.0, np.nan, 2.0]), np.array([np.inf, 3.0, 1.0, -np.inf])
    np.testing.assert_array_equal(_difference(a, b), [0, 2, np.nan, np.inf])
    assert _relative(np.array([3.0, 4.0]), np.array([3.0, 6.5])) == 0.5
    assert _relative(np.array([3.0, np.inf, 4.0]), np.array([3.0, np.inf, 6.5])) == 0.5
    assert (_relative(np.zeros(2), np.zeros(2)), _relative(np.zeros(2), np.ones(2))) == (0, float("inf"))
    assert _relative(np.array([2.0, 2.0]), np.array([np.inf, 2.0])) == float("inf")


def described(a: EmbeddingGradients, b: EmbeddingGradients, *, agrees: bool) -> list[str]:
    figures = SimpleNamespace(relative_l2=0.5)
    comparison: Any = SimpleNamespace(a=a, b=b, tolerance=0.1, agrees=agrees, figures=figures)
    return _descriptions(comparison)


MOVED = "the gradient moved, relative L2 5.00e-01, tolerance 1.0e-01"
VALUE = "the value at the point moved, relative L2 1.00e+00"
OBJECTIVE = "the objective moved, most at example 0, from 0 to 5"
STILL = "the gradient did not, within the tolerance"
AFTER = "the forward pass agrees up to this point and differs after it"
CASES: dict[str, tuple[dict[str, Any], bool, list[str]]] = {
    "nothing": ({}, True, []),
    "gradient": ({}, False, [MOVED, "nothing in the forward pass moved, within the tolerance"]),
    "value": (
        {"activations": np.full((3, 4, 4), 2.0)},
        False,
        [MOVED, VALUE, "the forward pass already differs at this point"],
    ),
    "objective": ({"objective": [5.0, 0, 0]}, False, [MOVED, OBJECTIVE, AFTER]),
    "objective alone": ({"objective": [5.0, 0, 0]}, True, [OBJECTIVE, STILL]),
    "value alone": ({"activations": np.full((3, 4, 4), 2.0)}, True, [VALUE, STILL]),
}


@pytest.mark.parametrize(("changes", "agrees", "wanted"), CASES.values(), ids=CASES)
def test_what_moved_is_described(changes: dict[str, Any], agrees: bool, wanted: list[str]) -> None:
    assert described(golden([0.0] * 3), golden(**{"objective": [0.0] * 3, **changes}), agrees=agrees) == wanted


def names(expected: list[str | None], checked: list[str | None]) -> list[tuple[str, list[str]]]:
    one = golden()
    found = _other_names(dict.fromkeys(expected, one), dict.fromkeys(checked, one))
    return [(change.gist, list(change.lines)) for change in found]


def test_other_names_are_missing_or_new() -> None:
    assert names(["word", "layer.0"], ["word", "layer.0"]) == []
    assert names([None], ["word"]) == [("several results were checked against one, 'word'", [])]
    assert names(["word"], [None]) == [("one result was checked against several, 'word'", [])]
    assert names(["word", "layer.0"], ["word", "layer.1"]) == [
        ("'layer.0' is missing", ["Did you mean 'layer.1'?"]),
        ("'layer.1' is new", ["Did you mean 'layer.0'?"]),
    ]
    assert names(["word"], ["word", "wrod"]) == [("'wrod' is new", ["Did you mean 'word'?"])]
    assert names(["word", "x"], ["word"]) == [("'x' is missing", [])]
    both = ("'word', 'x' is missing", ["Did you mean 'wrod'?"]), ("'wrod', 'y' is new", ["Did you mean 'word'?"])
    assert names(["word", "x"], ["wrod", "y"]) == [*both]


def test_versions_that_differ_are_listed() -> None:
    def made(**provenance: Any) -> EmbeddingGradients:
        return golden(provenance=provenance)

    first = made(embgrad="0.1", python="3.12", versions={"torch": "2.4", "numpy": "2.0"}, model="M")
    assert _versions(first) == {"embgrad": "0.1", "python": "3.12", "torch": "2.4", "numpy": "2.0"}
    assert list(_made_with(first, first)) == []
    second = made(embgrad="0.1", python="3.11", versions={"torch": "2.5", "numpy": "2.0"})
    text = "the golden file was made with python 3.12, torch 2.4, and these results with python 3.11, torch 2.5"
    assert list(_made_with(first, second)) == [text]
    none = "the golden file was made with none of these, and these results with numpy 2.0"
    assert list(_made_with(made(), made(versions={"numpy": "2.0"}))) == [none]
    assert (_prefix(None), _prefix("word")) == ("", "at 'word' ")
