"""Rotary positions are explained where what they turn is a point of both models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.site import Explanation
from embgrad.comparison.hypotheses.turned import TurnedFeatures, moved_positions
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


def test_positions_that_b_alone_applies_are_named() -> None:
    """A port may turn what the norms of queries and keys are given, where the reference turns what they return."""
    at = site_of(QUERY, turned_heads(base=500000.0), BEFORE, real=REAL)
    (found,) = TurnedFeatures().explain(at)
    expect_exact(at, found)
    assert (found.cause, found.text) == ("missing-rotary", "rotary positions are missing in a and of base 500000 in b")
    assert TurnedFeatures().explain(replace(at, b=turned_heads() + 0.01 * OTHER)) == []


def test_a_rotation_of_no_features_is_no_rotation() -> None:
    """Heads of four features, of which a quarter would be turned, are no heads of which a turns some."""
    assert TurnedFeatures().explain(site_of(QUERY, OTHER, BEFORE, real=REAL, settings=({"head_dim": 4}, {}))) == []


COME, TURNS = "the norms of queries and keys come", "rotary positions"
NAMED = f"{TURNS} are"
EARLY, LATE = ("missing", "of base 10000"), ("of base 10000", "missing")


@pytest.mark.parametrize(
    ("values", "layer", "text"),
    [
        ([EARLY, EARLY, LATE], 0, f"{COME} before {TURNS} in a and after {TURNS} in b"),
        ([LATE, LATE, EARLY], 0, f"{COME} after {TURNS} in a and before {TURNS} in b"),
        ([LATE, LATE], 0, f"{NAMED} of base 10000 in a and missing in b"),
        ([EARLY, LATE], 1, None),
    ],
    ids=["before", "behind", "missing", "in another layer"],
)  # fmt: skip
def test_positions_before_norms_in_one_model_and_behind_them_in_the_other_are_an_order(
    values: list[tuple[str, str]], layer: int, text: str | None
) -> None:
    at = site_of(QUERY, A, BEFORE, real=REAL)
    sites = [*(at for _ in values[:-1]), replace(at, layer=layer)]
    explained = [Explanation("missing-rotary", NAMED, it, A) for it in values]
    other = Explanation("rotary-base", "rotary base", ("10000", "20000"), A)
    found = moved_positions([*zip(sites, explained, strict=True), (at, other), (at, None)])
    assert [it for _, it in found[-2:]] == [other, None]
    texts = [it and it.text for _, it in found[:-2]]
    assert texts == ([it.text for it in explained] if text is None else [text] * len(values))
