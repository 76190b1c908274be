"""Looked-up rows that the port changes before a norm are told from other settings of the norm by later sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.causes import causes_of
from embgrad.comparison.hypotheses.norm import Norm
from embgrad.comparison.hypotheses.site import NEAR, Explanation, Site
from embgrad.comparison.hypotheses.terms import OtherTerm
from embgrad.comparison.recording import Tensor
from tests.unit.comparison.hypotheses.modules import best, module_site
from tests.unit.comparison.hypotheses.normed import GAIN, SIZE, ZERO, X, norm

EPSILON = 1e-3
ADDED = np.random.default_rng(1).normal(size=X.shape)
TABLE = Tensor("table#0", "table", None, 0, (), 0.0, X, ids=np.zeros(X.shape[:2], int))

Function = Callable[[np.ndarray], np.ndarray]


def normed(x: np.ndarray) -> np.ndarray:
    return norm(x, EPSILON, shift=ZERO, centred=False)


def first_site(changed: np.ndarray, memory: dict[str, Any], after: Function = normed, x: np.ndarray = X) -> Site:
    """Return the site at a norm of the rows."""
    before = {"norm:input": x, "table": x}
    settings = {
        "key": "norm:output#0",
        "held_a": {"norm.gain": GAIN},
        "others": [TABLE],
        "memory": memory,
        "floor": 1e-9,
    }
    return module_site(normed(x), after(changed), before, **settings)


def later_site(changed: np.ndarray, memory: dict[str, Any]) -> Site:
    """Return the site at a norm of a sum of the rows and of what a module has added."""
    before = {"norm:input": X + ADDED, "added": ADDED, "table": X}
    settings = {
        "key": "norm:output#0",
        "held_a": {"norm.gain": GAIN},
        "others": [TABLE],
        "memory": memory,
        "floor": 1e-9,
    }
    return module_site(normed(X + ADDED), normed(changed + ADDED), before, **settings)


def explained(changed: np.ndarray) -> list[tuple[Site, Explanation]]:
    """Return both sites with their explanations."""
    memory: dict[str, Any] = {}
    first, later = first_site(changed, memory), later_site(changed, memory)
    sites = ((first, Norm()), (later, OtherTerm()))
    return [(at, min(each.explain(at), key=lambda it: at.off(it.predicted))) for at, each in sites]


def by_squares(x: np.ndarray, epsilon: float = 0.0) -> np.ndarray:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon))


def centred(x: np.ndarray) -> np.ndarray:
    return by_squares(x - x.mean(-1, keepdims=True), 1e-5)


CHANGES: dict[str, tuple[Function, str, str]] = {
    "root mean square": (by_squares, "missing-norm",
        "b divides the rows of table by their root mean square, and a does not"),
    "with the norm's epsilon": (lambda x: by_squares(x, EPSILON), "missing-norm",
        "b divides the rows of table by their root mean square, and a does not"),
    "layer norm": (centred, "missing-norm", "b applies a layer norm without weights to the rows of table, and a does not"),
    "length 1": (lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True), "missing-norm",
        "b scales the rows of table to length 1, and a does not"),
    "the norm": (normed, "missing-norm", "b applies the next norm to the rows of table as well, and a does not"),
    "root of the width": (lambda x: math.sqrt(SIZE) * x, "scaled-lookup",
        f"table is multiplied by 1 in a and {math.sqrt(SIZE):.6g} in b"),
    "a number of one digit": (lambda x: 3 * x, "scaled-lookup", "table is multiplied by 1 in a and 3 in b"),
    "a number of two digits": (lambda x: 1.7 * x, "scaled-lookup", "table is multiplied by 1 in a and 1.7 in b"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "cause", "text"), CHANGES.values(), ids=CHANGES)
def test_a_change_of_rows_is_one_cause_of_their_norm_and_of_later_sums(change: Function, cause: str, text: str) -> None:
    (found,) = causes_of(explained(change(X)))
    assert found.cause == cause
    assert found.text.removesuffix(", at norm") == text
    assert found.remaining <= NEAR


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-5])
def test_small_rows_show_the_epsilon_of_their_norm(epsilon: float) -> None:
    at = first_site(by_squares(X / 100, epsilon), {}, x=X / 100)
    (found, *_) = Norm().explain(at)
    assert min(at.off(it.predicted) for it in (found, *found.rivals) if it.cause == "missing-norm") <= 1e-9


def test_another_epsilon_is_named_where_no_later_sum_shows_other_rows() -> None:
    def with_other(x: np.ndarray) -> np.ndarray:
        return norm(x, 1e-5, shift=ZERO, centred=False)

    at = first_site(X, {}, with_other)
    found = best(at, Norm().explain(at))
    assert found.text == "epsilon 0.001 in a and 1e-05 in b"
    assert any(rival.cause == "scaled-lookup" for rival in found.rivals)
    assert found not in found.rivals


def test_rows_that_no_table_holds_have_no_rivals() -> None:
    at = first_site(by_squares(X), {})
    at = replace(at, before=[replace(it, name="another") if it.name == "table" else it for it in at.before])
    assert all(not found.rivals for found in Norm().explain(at))
