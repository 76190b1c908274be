"""Which lookup a name means, and what is said where it means none or several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import embgrad
from embgrad.points import Layout, LookupWatch, layout_is_open, layout_of, split_occurrence

IDS = np.array([[1, 2, 3], [4, 5, 6]])
BATCH = embgrad.TokenBatch(IDS)
POSITIONS = np.arange(3)[None]


def watched(*names: str, batch: embgrad.TokenBatch = BATCH) -> LookupWatch:
    """A watch that has seen positions, then the ids in `table`, then in `other`."""
    watch = LookupWatch(batch, names)
    watch.see("positions", POSITIONS, 10, 4)
    watch.see("table", batch.ids, 10, 4)
    return watch


# Layouts


def arrangements(ids: np.ndarray) -> list[tuple[np.ndarray, bool]]:
    """The ways in which models look up ids, each with whether the position comes first."""
    return [
        (ids, False),
        (ids.reshape(-1), False),
        (ids[..., None], False),
        (ids[None], False),
        (ids.astype(np.float32), False),
        (ids.T, True),
        (ids.T.reshape(-1), True),
    ]


@given(st.integers(2, 5), st.integers(2, 5))
def test_distinct_ids_are_found_in_every_arrangement(examples: int, positions: int) -> None:
    ids = np.arange(examples * positions).reshape(examples, positions) + 1
    table = np.random.default_rng(0).normal(size=(examples * positions + 1, 3))
    for indices, transposed in arrangements(ids):
        layout = layout_of(indices, ids)
        assert layout == Layout((examples, positions), transposed)
        np.testing.assert_array_equal(layout.indices(indices), ids)
        np.testing.assert_array_equal(layout.vectors(table[indices.astype(int)]), table[ids])
        assert not layout_is_open(indices, ids)


@pytest.mark.parametrize(
    "indices", [IDS + 1, IDS[:1], IDS[:, :2], IDS[::-1], np.append(IDS, 7), POSITIONS, np.zeros((2, 3)), np.array(1)]
)
def test_other_indices_have_no_layout(indices: np.ndarray) -> None:
    assert layout_of(indices, IDS) is None


@given(
    npst.arrays(np.int64, st.tuples(st.integers(1, 3), st.integers(1, 3)), elements=st.integers(0, 2)),
    st.integers(0, 6),
)
def test_a_layout_is_right_or_known_to_be_open(ids: np.ndarray, way: int) -> None:
    """Whatever the ids, equal ones included: a wrong layout would give a gradient to the wrong example in silence."""
    indices, transposed = arrangements(ids)[way]
    layout = layout_of(indices, ids)
    assert layout is not None
    if layout_is_open(indices, ids) or 1 in ids.shape:
        return
    assert layout.transposed is transposed


def test_a_single_example_is_the_same_either_way() -> None:
    ids = np.array([[3, 3, 4]])
    vectors = np.arange(6.0).reshape(3, 1, 2)
    layout = layout_of(ids.T, ids)
    assert layout is not None
    np.testing.assert_array_equal(layout.vectors(vectors), vectors.reshape(1, 3, 2))
    assert not layout_is_open(ids.T, ids)


@pytest.mark.parametrize(
    ("ids", "indices", "expected"),
    [
        ([[5, 5], [5, 5]], [[5, 5], [5, 5]], True),
        ([[1, 2], [2, 1]], [[1, 2], [2, 1]], True),
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]], False),
        ([[5, 5, 5], [5, 5, 5]], [[5, 5, 5], [5, 5, 5]], False),  # the shape decides
        ([[5, 5, 5], [5, 5, 5]], [5] * 6, True),
        ([[5, 5, 5]], [5] * 3, False),
        ([[5, 5], [5, 5]], [5, 5], False),
    ],
)
def test_where_the_layout_is_open(ids: Any, indices: Any, expected: bool) -> None:
    assert layout_is_open(np.array(indices), np.array(ids)) is expected


# Names


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("word", ("word", None)),
        ("table#1", ("table", 1)),
        ("a#b#12", ("a#b", 12)),
        ("table#", ("table#", None)),
        ("table#x", ("table#x", None)),
        ("table#-1", ("table#-1", None)),
        ("table#²", ("table#²", None)),
        ("#0", ("", 0)),
        ("", ("", None)),
    ],
)
def test_occurrences(name: str, expected: tuple[str, int | None]) -> None:
    assert split_occurrence(name) == expected


# The watch


def test_word_is_the_lookup_of_the_ids() -> None:
    watch = watched("word")
    assert watch.resolve() == {"word": 1}
    assert [lookup.name for lookup in watch.lookups] == ["positions#0", "table#0"]
    assert str(watch.lookups[1]) == "table#0 (10 rows × 4, indices of shape (2, 3))"


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (("word",), [False, True]),
        (("positions",), [True, False]),
        (("table#0",), [False, True]),
        (("nothing",), [False, False]),
        ((), [False, False]),
    ],
)
def test_only_what_may_be_asked_for_is_kept_hold_of(names: tuple[str, ...], kept: list[bool]) -> None:
    watch = LookupWatch(BATCH, names)
    assert [watch.see("positions", POSITIONS, 10, 4), watch.see("table", IDS, 10, 4)] == kept


def test_paths_and_occurrences_are_resolved() -> None:
    watch = watched("table", "positions#0", "table#0", "word")
    assert watch.resolve() == {"table": 1, "positions#0": 0, "table#0": 1, "word": 1}


def test_several_lookups_of_the_ids_are_ambiguous() -> None:
    watch = watched("word")
    watch.see("table", IDS.T, 10, 4)
    with pytest.raises(embgrad.AmbiguousPointError) as caught:
        watch.resolve()
    for fragment in ("'word' fits 2 lookups", "word#0 = table#0 (10 rows", "word#1 = table#1", "a list of names"):
        assert fragment in str(caught.value)
    assert [lookup.name for lookup in caught.value.lookups] == ["table#0", "table#1"]


def test_a_tables_name_prefers_the_lookup_of_the_ids() -> None:
    watch = watched("table")
    watch.see("table", POSITIONS, 10, 4)
    assert watch.resolve() == {"table": 1}
    watch.see("table", IDS, 10, 4)
    with pytest.raises(embgrad.AmbiguousPointError, match=r"'table' fits 2 lookups: table#0 .* table#2"):
        watch.resolve()
    numbered = watched("table#1")
    numbered.see("table", POSITIONS, 10, 4)
    assert numbered.resolve() == {"table#1": 2}


def test_a_table_that_is_called_word() -> None:
    watch = LookupWatch(BATCH, ["word"])
    assert watch.see("word", IDS + 1, 10, 4)
    assert watch.resolve() == {"word": 0}
    watch = LookupWatch(BATCH, ["word"])
    watch.see("word", POSITIONS, 10, 4)
    watch.see("table", IDS, 10, 4)
    assert watch.resolve() == {"word": 1}  # the role comes first


def test_nothing_looked_up() -> None:
    with pytest.raises(embgrad.PointNotReachedError) as caught:
        LookupWatch(BATCH, ["word"]).resolve("The hint.")
    for fragment in ("no lookup whose indices are the batch's ids, of shape (2, 3)", "seen: none", "at=...The hint."):
        assert fragment.replace("...The", "... The") in str(caught.value)


def test_other_indices_looked_up() -> None:
    watch = LookupWatch(BATCH, ["word"])
    watch.see("table", IDS + 1, 10, 4)
    with pytest.raises(embgrad.PointNotReachedError, match=r"seen: table#0 \(10 rows.*changed ones, or name the table"):
        watch.resolve()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tabel", r"no point 'tabel': expected 'word' or a table .* 'positions', 'table'.* Did you mean 'table'\?"),
        ("table#1", r"no point 'table#1': 'table' was reached 1 time\(s\).*a number from 0 to 0"),
        ("", "no point ''"),
        ("#0", "no point '#0'"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(embgrad.UnknownPointError, match=message):
        watched(name).resolve()


# Indices outside the table


@pytest.mark.parametrize("arrange", range(7))
@pytest.mark.parametrize("wrong", [10, -1, 2**40])
def test_an_id_outside_the_table_is_named(arrange: int, wrong: int) -> None:
    ids = IDS.copy()
    ids[1, 2] = wrong
    batch = embgrad.TokenBatch(np.abs(ids)) if wrong > 0 else BATCH
    indices = arrangements(ids)[arrange][0]
    if wrong < 0:
        with pytest.raises(embgrad.BatchError, match=r"index -1.* is outside the table: .* 10 rows: expected 0 to 9"):
            LookupWatch(batch, ["word"]).see("table", indices, 10, 4)
        return
    expected = float(np.float32(wrong)) if indices.dtype.kind == "f" else wrong
    message = (
        rf"id {expected} at example 1, position 2 is outside the table: table 'table' has 10 rows: expected 0 to 9"
    )
    with pytest.raises(embgrad.BatchError, match=message):
        LookupWatch(batch, ["word"]).see("table", indices, 10, 4)


def test_several_ids_outside_the_table_are_counted() -> None:
    with pytest.raises(
        embgrad.BatchError, match=r"id 4 at example 1, position 0 .*\(3 such in all\).* belongs to this"
    ):
        watched("word", batch=BATCH).see("small", IDS, 4, 2)


def test_an_index_of_the_models_own_outside_the_table() -> None:
    message = (
        r"index 2 \(at \(0, 2\) of indices of shape \(1, 3\)\).*table 'positions' has 2 rows.*longer than the model"
    )
    with pytest.raises(embgrad.BatchError, match=message):
        LookupWatch(BATCH, ["word"]).see("positions", POSITIONS, 2, 4)
    with pytest.raises(embgrad.BatchError, match="index nan"):
        LookupWatch(BATCH, ["word"]).see("table", np.array([0.0, np.nan]), 2, 4)


def test_no_indices_at_all_are_no_error() -> None:
    watch = watched("word")
    watch.see("empty", np.zeros((0, 3), int), 5, 4)
    assert watch.resolve() == {"word": 1}
