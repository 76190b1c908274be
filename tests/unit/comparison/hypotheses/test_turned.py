"""Rotary positions are explained where what they turn is a point of both models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.turned import TurnedFeatures
from tests.unit.comparison.hypotheses.attended import HEADS, OTHER, QUERY, REAL, SIZE, turned
from tests.unit.comparison.hypotheses.planted import expect_exact, site_of

BEFORE = {"layers.0.attention.other": OTHER, "layers.0.attention.q": QUERY}


def turned_heads(*, ahead: int = 0, **rotary: Any) -> np.ndarray:
    """Return queries with each head turned by its position."""
    heads = QUERY.reshape(*REAL.shape, HEADS, SIZE)
    result = np.zeros(heads.shape)
    for example, row, head in np.ndindex(*heads.shape[:3]):
        result[example, row, head] = turned(heads[example, row, head], row + ahead, **rotary)
    return result.reshape(QUERY.shape)


A = turned_heads()


@pytest.mark.parametrize(
    ("b", "cause", "text"),
    [
        (turned_heads(base=500000.0), "rotary-base", "rotary base 10000 in a and 500000 in b"),
        (turned_heads(base=7000.0), "rotary-base", "rotary base 10000 in a and 7000 in b"),
        (turned_heads(factor=4.0), "rotary-scaling", "rotary scaling none in a and linear with factor 4 in b"),
        (turned_heads(interleaved=True), "rotary-layout",
            "rotary pairs are halves of the head in a and neighbouring features in b"),
        (turned_heads(turned=4), "rotary-partial", "rotary share of a head 1 in a and 0.5 in b"),
        (turned_heads(ahead=1), "rotary-offset", "the first rotary position is 0 in a and 1 in b"),
        (QUERY, "missing-rotary", "rotary positions are of base 10000 in a and missing in b"),
    ],
    ids=["base", "unusual base", "scaling", "layout", "share", "offset", "none"],
)  # fmt: skip
def test_other_positions_are_named(b: np.ndarray, cause: str, text: str) -> None:
    at = site_of(A, b, BEFORE, real=REAL)
    (found,) = TurnedFeatures().explain(at)
    expect_exact(at, found)
    assert (found.cause, found.text) == (cause, text)


@pytest.mark.parametrize("declared", [{}, {"heads": HEADS}, {"head_dim": SIZE}])
def test_heads_may_be_declared(declared: dict[str, int]) -> None:
    a, b = turned_heads(turned=4), turned_heads(turned=4, base=1000.0)
    (found,) = TurnedFeatures().explain(site_of(a, b, BEFORE, real=REAL, settings=(declared, declared)))
    assert found.text == "rotary base 10000 in a and 1000 in b"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (A + 0.01 * OTHER, QUERY),
        (2 * A * (1 + np.arange(REAL.shape[1]))[:, None], QUERY),
        (A, OTHER),
        (A, np.where(REAL[..., None], np.nan, A)),
    ],
    ids=["with a sum", "longer at later positions", "another tensor", "not a number"],
)
def test_what_no_positions_turn_is_not_explained(a: np.ndarray, b: np.ndarray) -> None:
    assert TurnedFeatures().explain(site_of(a, b, BEFORE, real=REAL)) == []
