"""Layouts: how a lookup's indices are the ids; and the parts of a name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import embgrad
from embgrad.model_points.gather import only_window
from embgrad.model_points.points import Layout, Lookup, layout_is_open, layout_of, may_hold, split_name

IDS = np.array([[1, 2, 3], [4, 5, 6]])
POSITIONS = np.arange(3)[None]


def arrangements(ids: np.ndarray) -> list[tuple[np.ndarray, bool]]:
    """Return the arrangements in which models look ids up, each with whether the position comes first."""
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
def test_a_layout_is_right_or_known_to_be_ambiguous(ids: np.ndarray, way: int) -> None:
    """A wrong layout would silently give the gradient to the wrong example."""
    indices, transposed = arrangements(ids)[way]
    layout = layout_of(indices, ids)
    if layout_is_open(indices, ids) or 1 in ids.shape:
        return
    assert layout.transposed is transposed


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
def test_ambiguous_layouts(ids: Any, indices: Any, expected: bool) -> None:
    assert layout_is_open(np.array(indices), np.array(ids)) is expected


@pytest.mark.parametrize(("shape", "transposed"), [((2, 3), False), ((3, 2), True), ((6,), False)])
def test_of_equal_ids_the_shape_says_whether_they_are_transposed(shape: tuple[int, ...], transposed: bool) -> None:
    assert layout_of(np.full(shape, 5), np.full((2, 3), 5)) == Layout((2, 3), transposed)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("word", ("word", None, None)),
        ("table#1", ("table", None, 1)),
        ("a#b#12", ("a#b", None, 12)),
        ("table#", ("table#", None, None)),
        ("table#x", ("table#x", None, None)),
        ("table#-1", ("table#-1", None, None)),
        ("table#²", ("table#²", None, None)),
        ("#0", ("", None, 0)),
        ("", ("", None, None)),
        ("layer:input", ("layer", "input", None)),
        ("layer:output#2", ("layer", "output", 2)),
        ("layer#2:output", ("layer#2", "output", None)),
        ("kernel:0", ("kernel:0", None, None)),
        ("scope:input/kernel", ("scope:input/kernel", None, None)),
        ("a:input:output#0", ("a:input", "output", 0)),
        (":input", ("", "input", None)),
        ("layer:Input", ("layer:Input", None, None)),
    ],
)
def test_a_name_is_split_into_its_parts(name: str, expected: tuple[str, str | None, int | None]) -> None:
    assert split_name(name) == expected


def test_where_ids_stand_side_by_side() -> None:
    ids = np.array([[3, 4], [5, 6]])
    batch = embgrad.TokenBatch(ids)

    def recorded(indices: Any) -> Lookup:
        return Lookup("table", 0, np.array(indices), 12, 3, Layout((2, 2), transposed=False, determined=False))

    for indices in ([[1, 3, 4], [1, 5, 6]], [[1, 1], [3, 5], [4, 6]], [1, 3, 4, 1, 5, 6]):
        layout = only_window(recorded(indices), batch)
        assert layout is not None
        assert layout.indices(np.array(indices)).tolist() == ids.tolist()
        assert layout.is_in_order
    for indices in ([[3, 4, 3, 4], [5, 6, 5, 6]], [[5, 6, 1], [3, 4, 1]], [3, 4, 5, 6, 1]):
        assert only_window(recorded(indices), batch) is None


def test_an_undetermined_layout_is_in_no_known_order() -> None:
    assert Layout((2, 2), transposed=True).is_in_order
    assert not Layout((2, 2), transposed=False, determined=False).is_in_order
    assert not Layout((2, 2), transposed=False, gather=np.array([[1, 0], [2, 3]])).is_in_order
    for order in ([[0, -1], [1, 2]], [[0, 1], [2, -1]], [[0, 2], [1, -1]]):
        assert Layout((2, 2), transposed=False, gather=np.array(order)).is_in_order
    assert replace(Layout((2, 2), transposed=False), gather=np.array([[0, 2], [1, 3]])).is_in_order


def test_which_indices_may_hold_the_ids() -> None:
    ids, real = np.array([[3, 3, 0]]), np.array([[True, True, False]])
    for indices, expected in (
        ([3, 3], True),
        ([1, 3, 5, 3], True),
        ([3, 5, 5], False),
        ([3], False),
        ([[0, 1, 2]], False),
    ):
        assert may_hold(np.array(indices), ids, real) is expected
