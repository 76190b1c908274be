"""Versions of texts in arrays: edits, unions, choices and groups, by hand."""

from __future__ import annotations

from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.token_search.problem import Problem
from embgrad.token_search.texts import Texts, join


def texts(rows: list[list[int]], examples: Any = None, types: bool = True) -> Texts:
    """Return texts padded on the right, in which each token but the first may be replaced, and types are the ids' tens."""
    width = max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows])
    real = np.arange(width) < np.array([len(row) for row in rows])[:, None]
    free = real & (np.arange(width) > 0)
    owners = np.arange(len(rows)) if examples is None else np.asarray(examples)
    return Texts(owners, ids, real, ids // 10 if types else None, free)


def shown(found: Texts) -> list[list[int]]:
    """Return the rows, after a check that every array is filled after a text's end."""
    assert not found.ids[~found.real].any()
    assert not found.free[~found.real].any()
    if found.types is not None:
        np.testing.assert_array_equal(found.types, found.ids // 10)
    return [row[own].tolist() for row, own in zip(found.ids, found.real, strict=True)]


@pytest.mark.parametrize("types", [True, False])
def test_edits_move_what_follows_and_texts_of_any_lengths_are_joined(types: bool) -> None:
    own = texts([[11, 12, 23, 24], [35, 46]], types=types)
    rows, positions = np.array([0, 0, 1]), np.array([0, 2, 1])
    longer, shorter = own.repeat(rows, positions), own.delete(rows, positions)
    assert shown(longer) == [[11, 11, 12, 23, 24], [11, 12, 23, 23, 24], [35, 46, 46]]
    assert shown(shorter) == [[12, 23, 24], [11, 12, 24], [35]]
    assert longer.examples.tolist() == shorter.examples.tolist() == [0, 0, 1]
    together = join([shorter, own, longer])
    assert shown(together) == [*shown(shorter), *shown(own), *shown(longer)]
    assert together.ids.shape == (8, 5)
    assert together.examples.tolist() == [0, 0, 1, 0, 1, 0, 0, 1]
    assert (together.types is None) == (not types)
    assert shown(together.cut(4).take(np.array([3, 2]))) == [[11, 12, 23, 24], [35]]


def test_the_best_of_each_example_are_in_order_and_ties_go_to_the_first() -> None:
    own = texts([[11]] * 7, [2, 0, 2, 0, 2, 5, 0])
    scores = np.array([1.0, 3.0, 4.0, 3.0, 4.0, -1.0, 5.0])
    assert own.best_of_each(scores).tolist() == [6, 2, 5]
    assert own.best_of_each(scores, 2).tolist() == [6, 1, 2, 4, 5]
    assert own.best_of_each(scores, 9).tolist() == [6, 1, 3, 2, 4, 0, 5]
    assert own.rows_of(2).tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("most", "expected"),
    [(1, [[0, 0], [1], [3, 3, 3]]), (3, [[0, 0, 1], [3, 3, 3]]), (5, [[0, 0, 1], [3, 3, 3]]),
        (6, [[0, 0, 1, 3, 3, 3]])],
)  # fmt: skip
def test_groups_keep_the_texts_of_an_example_together(most: int, expected: list[list[int]]) -> None:
    own = texts([[11]] * 6, [0, 0, 1, 3, 3, 3])
    assert [group.examples.tolist() for group in own.groups(most)] == expected


def test_equal_versions_of_one_example_have_one_key() -> None:
    own = texts([[11, 12], [11, 12], [11, 13], [11, 12]], [0, 0, 0, 1])
    keys = [own.key(row) for row in range(4)]
    assert keys[0] == keys[1]
    assert len({*keys}) == 3
    assert join([own, texts([[11, 12, 13]])]).key(0) == keys[0], "padding does not count"
    other = Texts(own.examples, own.ids, own.real, own.ids * 0, own.free)
    assert other.key(0) != keys[0]


def test_texts_are_put_in_the_place_of_others() -> None:
    own = texts([[11, 12], [21], [31]])
    found = own.put(np.array([2, 0]), texts([[41, 42, 43], [51]], [2, 0]))
    assert shown(found) == [[51], [21], [41, 42, 43]]


@pytest.mark.parametrize(
    ("rows", "pad", "ids", "convention"),
    [
        ([[1, 2, 3], [4, 5, 6]], None, [[1, 2, 3], [4, 5, 6]], "ids"),
        ([[1, 2], [4, 5]], 9, [[1, 2], [4, 5]], "ids"),
        ([[1, 2, 3, 4], [5]], None, [[1, 2, 3, 4], [5, 0, 0, 0]], "huggingface"),
        ([[1, 2], [5]], 9, [[1, 2], [5, 9]], "huggingface"),
    ],
)
def test_texts_of_other_lengths_are_padded_on_the_right_and_get_a_mask(
    rows: list[list[int]], pad: int | None, ids: Any, convention: str
) -> None:
    problem = SimpleNamespace(batch=embgrad.TokenBatch([[7, 7, 7], [8, 8, 8]], convention="ids"), apart=frozenset())
    problem.original = Texts(np.arange(2), problem.batch.ids, problem.batch.real, None, problem.batch.real)
    problem.batch_of, problem._is_resized = (
        MethodType(method, problem) for method in (Problem.batch_of, Problem._is_resized)
    )
    wide = join([texts(rows, types=False), texts([[1] * 6] * 2, types=False)]).take(np.arange(2))
    wide.ids[~wide.real] = 3  # what stands behind a text is not the padding
    found = Problem.whole_batch_of(problem, wide, pad)  # type: ignore[arg-type]
    assert (found.ids.tolist(), found.convention) == (ids, convention)
    real = [[position < len(row) for position in range(len(ids[0]))] for row in rows]
    assert (None if found.mask is None else found.mask.tolist()) == (real if convention != "ids" else None)
