"""Products of queries and keys with vectors by distance are found, and another setting of them is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses import core_fit
from embgrad.comparison.hypotheses.attention import AttentionCore
from embgrad.comparison.hypotheses.core_distances import DistanceTerms, _Table, distance_terms, other_terms
from embgrad.comparison.hypotheses.projections import Projections
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Source
from tests.unit.comparison.hypotheses.planted import expect_exact, site_of

RANDOM = np.random.default_rng(8)
EXAMPLES, POSITIONS, HEADS, SIZE = 2, 12, 2, 4
WIDTH = HEADS * SIZE
X = RANDOM.normal(size=(EXAMPLES, POSITIONS, WIDTH))
Q, K, V = RANDOM.normal(size=(3, WIDTH, WIDTH)) / 2
BIAS_Q, BIAS_K = RANDOM.normal(size=(2, WIDTH))
TABLE = RANDOM.normal(size=(16, WIDTH))
GAIN, OFFSET = RANDOM.normal(size=(2, WIDTH))
SHAW = RANDOM.normal(size=(2 * POSITIONS - 1, SIZE))
QUERY, KEY, VALUE = X @ Q.T + BIAS_Q, X @ K.T + BIAS_K, X @ V.T
BEFORE = {
    **{"layers.0.v": VALUE, "layers.0.v:input": X, "layers.0.k": KEY},
    **{"layers.0.k:input": X, "layers.0.q": QUERY, "layers.0.q:input": X},
}
PROJECTIONS = {"layers.0.q.weight": Q, "layers.0.q.bias": BIAS_Q, "layers.0.k.weight": K, "layers.0.k.bias": BIAS_K}
DEBERTA = {**PROJECTIONS, "layers.0.v.weight": V, "outside.table": TABLE}
SETTINGS: Any = ({"positions": 40, "heads": HEADS, "epsilon": 1e-12},) * 2
NORMED = {**DEBERTA, "outside.norm.weight": GAIN, "outside.norm.bias": OFFSET}


def row_of(behind: int, longest: int | None) -> int:
    """Return the row of sixteen for a distance: eight on each side, of which those from 4 become coarser."""
    distance = abs(behind)
    if longest is not None and distance > 4:
        distance = 4 + math.ceil(3 * math.log(distance / 4) / math.log((longest - 1) / 4))
    return min(max(8 + (distance if behind >= 0 else -distance), 0), 15)


def attended(
    *,
    of: str = "queries and keys",
    longest: int | None = 40,
    normed: bool = False,
    terms: int = 3,
    turned: bool = False,
    exchanged: bool = False,
) -> np.ndarray:
    """Return DeBERTa's attention, (example, position, feature), row by row."""
    rows = TABLE
    if normed:
        unit = (rows - rows.mean(1, keepdims=True)) / rows.std(1, keepdims=True)
        rows = unit * GAIN + OFFSET
    as_keys, as_queries = rows @ K.T + BIAS_K, rows @ Q.T + BIAS_Q
    if exchanged:
        as_keys, as_queries = as_queries, as_keys
    result = np.zeros((EXAMPLES, POSITIONS, WIDTH))
    for example, row, head in np.ndindex(EXAMPLES, POSITIONS, HEADS):
        own = slice(head * SIZE, (head + 1) * SIZE)
        query, scores = QUERY[example, row, own], []
        for column in range(POSITIONS):
            key, at = KEY[example, column, own], row_of(row - column, longest)
            score = query @ key
            score += query @ as_keys[at, own] if "queries" in of else 0
            at = row_of(column - row, longest) if turned else at
            score += key @ as_queries[at, own] if "keys" in of else 0
            scores.append(score / math.sqrt(terms * SIZE))
        weights = np.exp(scores) / np.exp(scores).sum()
        result[example, row, own] = weights @ VALUE[example, :, own]
    return result


def with_rows_of_heads(*, keys: bool) -> np.ndarray:
    """Return an attention whose heads multiply with one table of rows by distance."""
    result = np.zeros((EXAMPLES, POSITIONS, WIDTH))
    for example, row, head in np.ndindex(EXAMPLES, POSITIONS, HEADS):
        own = slice(head * SIZE, (head + 1) * SIZE)
        query, rows = QUERY[example, row, own], SHAW[row - np.arange(POSITIONS) + POSITIONS - 1]
        scores = KEY[example, :, own] @ query + rows @ query
        scores += (rows * KEY[example, :, own]).sum(1) if keys else 0
        weights = np.exp(scores / math.sqrt(SIZE)) / np.exp(scores / math.sqrt(SIZE)).sum()
        result[example, row, own] = weights @ VALUE[example, :, own]
    return result


def found(a: np.ndarray, b: np.ndarray, weights: Mapping[str, np.ndarray]) -> tuple[str, str]:
    """Return the cause and its text, which hold for b turned around as well."""
    site: Site = site_of(a, b, BEFORE, weights=weights, settings=SETTINGS)
    explanation = AttentionCore().explain(site)[0]
    expect_exact(site, explanation)
    return explanation.cause, explanation.text


@pytest.mark.parametrize(
    ("planted", "cause", "text"),
    [
        ({"of": "queries"}, "attention-bias",
            "vectors by distance are multiplied with queries and keys in a and queries in b"),
        ({"of": "keys"}, "attention-bias",
            "vectors by distance are multiplied with queries and keys in a and keys in b"),
        ({"longest": None}, "attention-bias",
            "vectors by distance have buckets up to distance 40 in a and a row for each distance in b"),
        ({"longest": 512}, "attention-bias",
            "vectors by distance have buckets up to distance 40 in a and buckets up to distance 512 in b"),
        ({"turned": True}, "attention-bias", "vectors are those of the opposite distances for none in a and keys in b"),
        ({"exchanged": True}, "swapped-weights",
            "vectors by distance of queries are projected as keys in a and queries in b"),
        ({"terms": 1}, "attention-scale", "attention scale 0.288675 in a and 0.5 in b"),
    ],
)  # fmt: skip
def test_other_products_with_projected_rows_are_named(planted: Mapping[str, Any], cause: str, text: str) -> None:
    assert found(attended(), attended(**planted), DEBERTA) == (cause, text)


@pytest.mark.parametrize("terms", [1, 2, 3])
def test_the_scale_of_so_many_products_is_not_fitted(terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_fit, "_refined", lambda *_: None)
    core = core_fit.fitted_core(site_of(a := attended(terms=terms), a, BEFORE, weights=DEBERTA, settings=SETTINGS))
    assert core is not None
    assert core.scale == 1 / math.sqrt(terms * SIZE)


def test_missing_products_are_named() -> None:
    text = "the products with vectors by distance are added in a and missing in b"
    assert found(attended(), attended(of=""), DEBERTA) == ("attention-bias", text)


def test_a_table_without_its_norm_is_named() -> None:
    text = "the table of distances goes through outside.norm in a and no norm in b"
    assert found(attended(normed=True), attended(), NORMED) == ("missing-norm", text)


def test_rows_of_heads_by_each_distance_are_found() -> None:
    weights = {**PROJECTIONS, "layers.0.distances": SHAW}
    text = "vectors by distance are multiplied with queries and keys in a and queries in b"
    found_cause = found(with_rows_of_heads(keys=True), with_rows_of_heads(keys=False), weights)
    assert found_cause == ("attention-bias", text)


def test_keys_of_several_modules_have_no_products_with_projected_rows() -> None:
    """Keys with latent parts are called as one of the modules that they come from, whose projection is narrower than they are."""
    before = {**BEFORE, "layers.0.k": KEY[..., :SIZE]}
    weights = {**DEBERTA, "layers.0.k.weight": K[:SIZE], "layers.0.k.bias": BIAS_K[:SIZE]}
    site = site_of(attended(), attended(of=""), before, weights=weights)
    query, wide = Source("layers.0.q", QUERY), Source("layers.0.k", KEY)
    narrow = Source("layers.0.k", KEY[..., :SIZE])
    assert [list(distance_terms(site, Projections(query, key, query, SIZE))) for key in (wide, narrow)] == [[], []]
    assert list(
        distance_terms(
            site_of(attended(), attended(of=""), BEFORE, weights=DEBERTA), Projections(query, wide, query, SIZE)
        )
    )


def test_distances_are_in_their_rows() -> None:
    """Of sixteen rows four on each side are exact, then ceil(3 log(d / 4) / log(8 / 4)) further, where 9 is the longest."""
    terms = DistanceTerms(_Table(np.arange(16.0)[:, None], ""), None, of_keys=False, longest=9)
    ones = np.ones((1, 31, 1, 1))
    rows = terms.products(ones[:, :1], ones, np.array([15]), np.arange(1))[0, 0, 0]
    wanted = {0: 8, 1: 9, 4: 12, 5: 13, 6: 14, 7: 15, 8: 15, 15: 15, -1: 7, -4: 4, -5: 3, -6: 2, -7: 1, -8: 1, -15: 0}
    assert {behind: int(rows[15 - behind]) for behind in wanted} == wanted


def test_products_of_queries_of_keys_and_of_both_are_tried() -> None:
    at = site_of(VALUE, VALUE, BEFORE, weights=DEBERTA, settings=SETTINGS)
    query, key = (Source(f"layers.0.{name}", BEFORE[f"layers.0.{name}"]) for name in "qk")
    terms = next(distance_terms(at, Projections(query, key, Source("layers.0.v", VALUE), SIZE)))
    found = list(other_terms(at, terms, query, key, SIZE))
    assert [(it.of_queries, it.of_keys) for it in found[:3]] == [(True, True), (True, False), (False, True)]
    assert {it.senses for it in found} >= {(-1, -1), (-1, 1), (1, -1), (1, 1)}
    assert {it.exchanged for it in found} == {True, False}
