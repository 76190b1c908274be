"""Attention whose keys and values are made of a latent vector, and whose turned keys all heads share, is explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.attention import AttentionCore
from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_difference import differences
from embgrad.comparison.hypotheses.core_fit import fitted_core
from embgrad.comparison.hypotheses.core_search import Places
from embgrad.comparison.hypotheses.core_variants import variants
from embgrad.comparison.hypotheses.latent import latent_projections
from embgrad.comparison.hypotheses.site import Explanation, Site
from embgrad.comparison.hypotheses.sources import Fused, Source
from tests.unit.comparison.hypotheses.attended import REAL, turned
from tests.unit.comparison.hypotheses.planted import expect_exact, site_of

RANDOM = np.random.default_rng(5)
HEADS, PLAIN, TURNED, VALUES, LATENT = 3, 4, 6, 5, 7
SHAPE = REAL.shape
QUERY = RANDOM.normal(size=(*SHAPE, HEADS * (PLAIN + TURNED)))
COMPRESSED = RANDOM.normal(size=(*SHAPE, LATENT))
SHARED = RANDOM.normal(size=(*SHAPE, LATENT + TURNED))
UP = RANDOM.normal(size=(HEADS * (PLAIN + VALUES), LATENT))
BEFORE = {
    "layers.0.attention.up": COMPRESSED @ UP.T,
    "layers.0.attention.up:input": COMPRESSED,
    "layers.0.attention.down": SHARED,
    "layers.0.attention.q": QUERY,
}


def attended(
    *,
    rotary: Mapping[str, Any] = {},
    scale: float = (PLAIN + TURNED) ** -0.5,
    is_causal: bool = True,
    turned_first: bool = False,
    values_first: bool = False,
    shared_first: bool = False,
) -> np.ndarray:
    """Return what each head takes of the values, (example, position, head × feature), row by row."""
    result = np.zeros((*SHAPE, HEADS * VALUES))
    both = (COMPRESSED @ UP.T).reshape(*SHAPE, HEADS, PLAIN + VALUES)
    keys, values = (both[..., VALUES:], both[..., :VALUES]) if values_first else (both[..., :PLAIN], both[..., PLAIN:])
    shared = SHARED[..., :TURNED] if shared_first else SHARED[..., LATENT:]
    query = QUERY.reshape(*SHAPE, HEADS, PLAIN + TURNED)
    for example, row, head in np.ndindex(*SHAPE, HEADS):
        own = query[example, row, head]
        plain, rest = (own[TURNED:], own[:TURNED]) if turned_first else (own[:PLAIN], own[PLAIN:])
        columns = [c for c in range(SHAPE[1]) if REAL[example, c] and (c <= row or not is_causal)]
        scores = [
            plain @ keys[example, c, head]
            + turned(rest, row, **{"base": 10000.0, **rotary})
            @ turned(shared[example, c], c, **{"base": 10000.0, **rotary})
            for c in columns
        ]
        weights = np.exp(scale * (np.array(scores) - max(scores)))
        taken = weights @ values[example, columns, head] / weights.sum()
        result[example, row, head * VALUES : (head + 1) * VALUES] = taken
    return result


A = attended()


def explained(a: np.ndarray, b: np.ndarray, before: Mapping[str, np.ndarray] = BEFORE, **settings: Any) -> Explanation:
    at: Site = site_of(a, b, before, real=REAL, **settings)
    (found,) = AttentionCore().explain(at)
    expect_exact(at, found)
    return found


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"rotary": {"base": 500000.0}}, "rotary base 10000 in a and 500000 in b"),
        ({"rotary": {"factor": 4.0}}, "rotary scaling none in a and linear with factor 4 in b"),
        ({"rotary": {"interleaved": True}}, "rotary pairs are halves of the head in a and neighbouring features in b"),
        ({"scale": PLAIN**-0.5}, "attention scale 0.316228 in a and 0.5 in b"),
        ({"is_causal": False}, "the mask is causal in a and missing in b"),
        ({"turned_first": True}, "the fused projection is split into one order in a and another in b"),
        ({"values_first": True}, "the fused projection is split into one order in a and another in b"),
        ({"shared_first": True}, "the fused projection is split into one order in a and another in b"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_another_setting_is_named(changed: dict[str, Any], text: str) -> None:
    assert explained(A, attended(**changed)).text == text


@pytest.mark.parametrize("order", ["turned_first", "values_first", "shared_first"])
def test_features_may_stand_in_any_order_in_the_reference(order: str) -> None:
    a, b = (attended(**{order: True}, rotary=rotary) for rotary in ({}, {"base": 1000.0}))
    assert explained(a, b).text == "rotary base 10000 in a and 1000 in b"


@pytest.mark.parametrize(("features", "turned"), [(1, set()), (2, {2}), (TURNED, {TURNED})])
def test_two_features_at_least_are_turned(features: int, turned: set[int]) -> None:
    at, width = site_of(A, A, BEFORE, real=REAL), HEADS * (PLAIN + features)
    both, shared, query = (Source(name, BEFORE[f"layers.0.attention.{name}"]) for name in ("up", "down", "q"))
    query = replace(query, values=query.values[..., :width])
    assert {it.turned for it in latent_projections(at, [both], [query, shared])} == turned


def test_parts_of_a_fused_projection_are_no_latent_keys() -> None:
    """A port's fused projection, which is split in another order, is changed further like any other."""
    parts = tuple(Source(name, RANDOM.normal(size=(*SHAPE, 12))) for name in "qkv")
    order = np.arange(36)
    whole = Fused("q", np.concatenate([part.values for part in parts], -1), parts=parts, order=order)
    query, key, value = (
        whole.part(order[start : start + 12], name) for start, name in ((12, "query"), (0, "key"), (24, "value"))
    )
    core = Core(query, key, value, HEADS, 0.5, REAL)
    assert not core.is_latent
    before = {part.name: part.values for part in parts}
    changed = list(variants(site_of(value.values, query.values, before, real=REAL), core))
    assert any(each.heads != HEADS for each in changed)


def test_latent_keys_of_another_layer_have_the_same_name_as_those_that_are_found() -> None:
    at = site_of(A, attended(scale=1.0), BEFORE, real=REAL)
    found = fitted_core(at)
    assert found is not None
    assert found.is_latent
    places = Places.of(at, found)
    assert places is not None
    again = places.at(at)
    assert again is not None
    np.testing.assert_array_equal(again.predicted, found.predicted)
    assert differences(found, again) == []
