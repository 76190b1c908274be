"""Each hypothesis looks at so many of the nearest tensors before a site, and at no others."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from embgrad.comparison.hypotheses.activation import ActivationFunction
from embgrad.comparison.hypotheses.attention import AttentionCore
from embgrad.comparison.hypotheses.combination import Combination
from embgrad.comparison.hypotheses.core_fit import fitted_core
from embgrad.comparison.hypotheses.dropping import Dropout
from embgrad.comparison.hypotheses.explain import Hypothesis
from embgrad.comparison.hypotheses.gate import Gate
from embgrad.comparison.hypotheses.product import Product
from tests.unit.comparison.hypotheses import attended as attention
from tests.unit.comparison.hypotheses.modules import module_site
from tests.unit.comparison.hypotheses.planted import site_of

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(2, 2, 5, 6))
KEPT = RANDOM.uniform(size=X.shape) > 0.3


def behind(number: int, before: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return tensors behind so many others of their shape."""
    shape = next(iter(before.values())).shape
    return {**{f"t{index}": RANDOM.normal(size=shape) for index in range(number)}, **before}


def logistic(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / (1 + np.exp(-x)))


CASES: dict[str, tuple[Hypothesis, np.ndarray, np.ndarray, dict[str, np.ndarray], int]] = {
    "activation": (ActivationFunction(), logistic(X), np.maximum(X, 0), {"x": X}, 12),
    "dropout": (Dropout(), X, np.where(KEPT, X / 0.7, 0), {"x": X}, 12),
    "sum": (Combination(), X, 2 * X, {"x": X}, 12),
    "gate": (Gate(), logistic(X) * Y, np.maximum(X, 0) * Y, {"x": X, "y": Y}, 10),
}


@pytest.mark.parametrize(("hypothesis", "a", "b", "before", "most"), CASES.values(), ids=CASES)
def test_tensors_further_away_are_not_tried(
    hypothesis: Hypothesis, a: np.ndarray, b: np.ndarray, before: dict[str, np.ndarray], most: int
) -> None:
    number = most - len(before)
    assert hypothesis.explain(site_of(a, b, behind(number, before)))
    assert not hypothesis.explain(site_of(a, b, behind(number + 1, before)))


def test_queries_keys_and_values_are_among_twelve_tensors() -> None:
    a, before = attention.attended(), dict(attention.BEFORE)
    assert fitted_core(site_of(a, 2 * a, behind(8, before), real=attention.REAL)) is not None
    assert fitted_core(site_of(a, 2 * a, behind(9, before), real=attention.REAL)) is None


def test_the_factor_of_a_product_with_a_table_is_among_four_tensors() -> None:
    table = RANDOM.normal(size=(9, 6))
    for number in (3, 4):
        site = module_site(
            X @ table.T,
            2 * X @ table.T,
            behind(number, {"x": X}),
            key="output",
            held_a={"table.W": table},
            roles={"table": ["word"]},
        )
        assert bool(Product().explain(site)) is (number < 4)


def test_one_position_or_infinite_outputs_are_no_attention() -> None:
    a = attention.attended()
    broken = np.array(a)
    broken[0, 3, 1] = np.inf
    assert AttentionCore().explain(site_of(a, broken, attention.BEFORE, real=attention.REAL)) == []
    first = {name: values[:, :1] for name, values in attention.BEFORE.items()}
    assert AttentionCore().explain(site_of(a[:, :1], 2 * a[:, :1], first)) == []
