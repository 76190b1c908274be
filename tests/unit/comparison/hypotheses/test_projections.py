"""Queries, keys and values are recognised among the tensors before a site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from embgrad.comparison.hypotheses.projections import (
    Projections,
    divisors,
    is_causal,
    least_window,
    projections,
    splits,
)
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Source, sources
from tests.unit.comparison.hypotheses.attended import BEFORE, OTHER, QUERY, REAL, VALUE, attended
from tests.unit.comparison.hypotheses.planted import site_of

A = attended()
EVERYWHERE = attended(seen=lambda row, column: True)
WINDOW = attended(seen=lambda row, column: row - 3 < column <= row)
NAMES = tuple(f"layers.0.attention.{name}" for name in "qkv")


# As many keys and values as queries, so that every size of heads would be possible.
WIDE = {**BEFORE, NAMES[1]: np.concatenate([BEFORE[NAMES[1]], OTHER[..., :16]], -1), NAMES[2]: np.tile(VALUE, 2)}


def found_at(site: Site, sizes: Sequence[int] = ()) -> list[Projections]:
    return projections(site, list(sources(site, 12)), sizes)


def found_in(
    a: np.ndarray, before: Mapping[str, np.ndarray], sizes: Sequence[int] = ()
) -> list[tuple[str, str, str, int]]:
    found = found_at(site_of(a, 2 * a, before, real=REAL), sizes)
    return [(one.query.name, one.key.name, one.value.name, one.size) for one in found]


def test_the_first_rows_show_the_size_of_heads() -> None:
    found = found_in(attended(key=WIDE[NAMES[1]], value=WIDE[NAMES[2]]), WIDE)
    assert (*NAMES, 8) in found
    assert {size for *_, size in found} == {8}


def test_shared_values_show_the_size_of_heads() -> None:
    assert (*NAMES, 8) in found_in(EVERYWHERE, BEFORE)
    assert {size for *_, size in found_in(EVERYWHERE, BEFORE)} == {8}


def test_other_sizes_are_possible_where_all_keys_are_seen_and_none_is_shared() -> None:
    a = attended(key=WIDE[NAMES[1]], value=WIDE[NAMES[2]], seen=lambda row, column: True)
    assert {size for *names, size in found_in(a, WIDE) if tuple(names) == NAMES} == {2, 4, 8, 16, 32}
    assert found_in(a, WIDE, [4])[0][-1] == 4


def test_values_must_surround_their_means() -> None:
    assert not found_in(1.5 * A, BEFORE)
    assert not found_in(OTHER, BEFORE)


def test_later_keys_are_recognised() -> None:
    first = found_at(site_of(A, A, BEFORE, real=REAL))[0]
    assert is_causal(site_of(A, A, BEFORE, real=REAL), first)
    assert not is_causal(site_of(EVERYWHERE, A, BEFORE, real=REAL), first)


def test_a_window_is_recognised() -> None:
    site = site_of(WINDOW, A, BEFORE, real=REAL)
    assert least_window(site, found_at(site)[0], causal=True) == 3
    both = attended(seen=lambda row, column: abs(row - column) <= 2)
    site = site_of(both, A, BEFORE, real=REAL)
    assert least_window(site, found_at(site)[0], causal=False) == 2


def parts_of(width: int, heads: int, size: int, **options: bool) -> list[list[list[float]]]:
    """Return the features of queries, keys and values in each split of a fused tensor."""
    source = Source("qkv", np.arange(float(width)).reshape(1, 1, width))
    return [[part.values.ravel().tolist() for part in parts] for parts in splits(source, heads, size, **options)]


def test_a_fused_tensor_is_split() -> None:
    # Two heads of one feature, with one pair of key and value each: one after the other, and by head.
    assert parts_of(6, 2, 1) == [[[0, 1], [2, 3], [4, 5]], [[0, 3], [1, 4], [2, 5]]]


def test_heads_that_share_one_key_stand_in_one_order_alone() -> None:
    assert parts_of(8, 2, 2) == [[[0, 1, 2, 3], [4, 5], [6, 7]]]
    assert parts_of(8, 4, 1)[1] == [[0, 1, 4, 5], [2, 6], [3, 7]]
    parts = next(splits(Source("qkv", np.zeros((1, 1, 8))), 2, 2))
    assert [part.label for part in parts] == ["query", "key", "value"]


def test_a_port_may_split_a_fused_tensor_in_any_order() -> None:
    found = parts_of(8, 4, 1, reordered=True)
    assert len({str(parts) for parts in found}) == 12
    assert found[:2] == parts_of(8, 4, 1)
    assert [[4, 5, 6, 7], [0, 1], [2, 3]] in found  # keys, values, queries
    assert [[2, 3, 6, 7], [0, 4], [1, 5]] in found  # so of each group


@pytest.mark.parametrize(("heads", "size"), [(3, 1), (1, 5), (6, 1)])
def test_a_tensor_of_another_width_is_not_split(heads: int, size: int) -> None:
    assert not list(splits(Source("qkv", np.zeros((1, 1, 6))), heads, size))


def test_queries_and_keys_behind_norms_are_found_beside_the_values_of_a_fused_tensor() -> None:
    """Persimmon normalises each head's queries and keys, which are parts of the fused tensor, as its values are."""
    whole = np.concatenate([OTHER, BEFORE[NAMES[1]] + 1, VALUE], -1)
    found = found_at(site_of(A, A, {"k_norm": BEFORE[NAMES[1]], "q_norm": QUERY, "qkv": whole}, real=REAL))
    assert [
        (one.size, one.tiled)
        for one in found
        if (one.query.name, one.key.name) == ("q_norm", "k_norm") and np.array_equal(one.value.values, VALUE)
    ] == [(8, False)]


def test_queries_keys_and_values_of_a_fused_tensor_are_found() -> None:
    whole = np.concatenate([QUERY, BEFORE[NAMES[1]], VALUE], -1)
    found = found_at(site_of(A, A, {"qkv": whole}, real=REAL))
    assert any(np.array_equal(one.query.values, QUERY) and np.array_equal(one.value.values, VALUE) for one in found)


def rows(*values: float) -> np.ndarray:
    """Return a text of positions with two features each, which are equal."""
    return np.repeat(np.array(values), 2).reshape(1, -1, 2)


def window_of(output: np.ndarray, values: np.ndarray, *, causal: bool, real: list[bool] | None = None) -> int:
    source = Source("v", values)
    site = site_of(output, output, {}, real=None if real is None else np.array([real]))
    return least_window(site, Projections(source, source, source, 2), causal=causal)


WINDOWS = {
    "itself": (rows(1, 2, 3, 4), True, 1),
    "the one before": (rows(1, 2, 3, 3), True, 2),
    "the first": (rows(1, 2, 3, 1), True, 4),
    "the next, of both sides": (rows(2, 2, 3, 4), False, 1),
    "the last, of both sides": (rows(4, 2, 3, 4), False, 3),
    "none": (rows(1, 2, 3, 5), True, 4),
    "hardly outside": (rows(1, 2, 3, 4 + 3.9e-4), True, 1),
    "outside": (rows(1, 2, 3, 4 + 4.1e-4), True, 4),
}


@pytest.mark.parametrize(("output", "causal", "wanted"), WINDOWS.values(), ids=WINDOWS)
def test_the_least_window_has_each_output_between_its_values(output: np.ndarray, causal: bool, wanted: int) -> None:
    assert window_of(output, rows(1, 2, 3, 4), causal=causal) == wanted


def test_padding_needs_no_window() -> None:
    real = [True, True, True, False]
    assert window_of(rows(1, 2, 3, 9), rows(1, 2, 3, 4), causal=True, real=real) == 1


def test_the_first_real_query_shows_whether_later_keys_are_seen() -> None:
    values, real = rows(1, 2, 3, 4), np.array([[False, True, True, True]])
    source = Source("v", values)
    for output, wanted in ((rows(9, 2.001, 3, 4), True), (rows(9, 2.003, 3, 4), False), (rows(1, 9, 3, 4), False)):
        site = site_of(output, output, {}, real=real)
        assert is_causal(site, Projections(source, source, source, 2)) is wanted


def test_the_likeliest_come_first() -> None:
    a = attended(key=WIDE[NAMES[1]], value=WIDE[NAMES[2]], seen=lambda row, column: True)
    found = found_in(a, {name: WIDE[name] for name in reversed(NAMES)})
    query, key, value = NAMES
    assert [size for *names, size in found if tuple(names) == NAMES] == [32, 16, 8, 4, 2]
    assert found.index((query, key, value, 32)) < found.index(
        (key, query, value, 32)
    )  # keys are computed after queries


def test_queries_may_be_of_another_text_than_keys_and_values() -> None:
    memory = {"k": np.tile(BEFORE[NAMES[1]], 2)[:, :5], "v": np.tile(VALUE, 2)[:, :5], "q": QUERY}
    a = attended(QUERY, memory["k"], memory["v"], seen=lambda row, column: True, padding=False)
    found = found_at(site_of(a, 2 * a, memory, real=np.ones_like(REAL)))
    assert {(one.query.name, one.key.name, one.value.name) for one in found} == {("q", "k", "v")}
    assert sorted(one.size for one in found) == [2, 4, 8, 16, 32]
    assert all(one.crosses for one in found)
    assert not found_at(site_of(a, 2 * a, {**memory, "v": memory["v"] / 2}, real=np.ones_like(REAL)))
    assert not found_at(site_of(a, 2 * a, {**memory, "k": memory["k"][..., :16]}, real=np.ones_like(REAL)))


def test_heads_have_two_features_at_least() -> None:
    assert divisors(12) == [2, 3, 4, 6, 12]


def test_a_tensor_as_wide_as_the_output_is_not_fused() -> None:
    found = found_at(site_of(A, A, {"q": QUERY, "k": BEFORE[NAMES[1]]}, real=REAL))
    assert found == []
