"""The positions at which tokens may be replaced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.token_search.positions import searched_positions
from tests.unit.refusals import refused

IDS = np.array([[2, 7, 5, 0, 0], [2, 4, 9, 3, 5]])
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
BATCH = embgrad.TokenBatch(IDS, MASK)
LEFT = embgrad.TokenBatch(IDS[:, ::-1].copy(), MASK[:, ::-1].copy())


class Tokenizer:
    all_special_ids, unk_token_id = (0, 2, 5), 7


def positions(result: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in result]


def test_all_real_positions_but_special_tokens() -> None:
    assert positions(searched_positions(None, BATCH)) == [[0, 1, 2], [0, 1, 2, 3, 4]]
    assert positions(searched_positions(None, BATCH, Tokenizer())) == [[1], [1, 2, 3]]
    tokens = [["[CLS]", "a", "[SEP]", "[PAD]", "[PAD]"], ["[CLS]", "b", "c", "[MASK]", "[SEP]"]]
    assert positions(searched_positions(None, BATCH.replace(tokens=tokens))) == [[1], [1, 2, 3]]


def test_offsets_show_which_tokens_are_special() -> None:
    offsets = np.full((1, 3, 2), -1)
    offsets[0, 1] = (0, 1)
    batch = embgrad.TokenBatch([[2, 7, 5]], texts=["a"], offsets=offsets)
    assert positions(searched_positions(None, batch)) == [[1]]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1, [[1], [1]]),
        (0, [[0], [0]]),
        (-1, [[2], [4]]),
        ([1, -2], [[1], [1, 3]]),
        (np.array([2, 2]), [[2], [2]]),
        (slice(1, -1), [[1], [1, 2, 3]]),
        (slice(None), [[0, 1, 2], [0, 1, 2, 3, 4]]),
        (slice(None, None, 2), [[0, 2], [0, 2, 4]]),
        (slice(3, None), [[], [3, 4]]),
        (IDS == 9, [[], [2]]),
        ((IDS == 9).tolist(), [[], [2]]),
    ],
)
def test_the_positions_that_are_named(given: Any, expected: list[list[int]]) -> None:
    assert positions(searched_positions(given, BATCH)) == expected


def test_negative_numbers_count_back_from_the_last_real_position_where_padding_is_on_the_left() -> None:
    assert positions(searched_positions(-3, LEFT)) == [[2], [2]]
    assert positions(searched_positions(slice(1, -1), LEFT)) == [[2, 3], [1, 2, 3]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "the position 3 of example 0 is padding: expected one of [0, 1, 2], or a negative number"),
        ([1, 5], "the position 5 of example 0 is outside its 5 positions"),
        (-4, "the position -4 of example 0 is outside its 5 positions"),
        ("all", "positions is 'all': expected whole numbers, a slice, or a bool array of shape (2, 5)"),
        ([], "positions is []: expected whole numbers"),
        ([[1], [2]], "positions is [[1], [2]]: expected whole numbers"),
        (1.5, "positions is 1.5: expected whole numbers"),
        ([[1], [2, 3]], "positions is [[1], [2, 3]]: expected whole numbers"),
        (slice("a"), "positions is slice(None, 'a', None): expected a slice of whole numbers, with a step that is not 0"),
        (slice(None, None, 0), "expected a slice of whole numbers, with a step that is not 0"),
        (slice(5, None), "positions is slice(5, None, None), and that leaves none of the batch's 5 in any example"),
        (np.ones(5, bool), "positions is a bool array of shape (5,): expected (2, 5), (example, position)"),
        (np.ones((2, 5), bool), "positions is true at example 0, position 3, which is padding: expected real positions"),
        (np.zeros((2, 5), bool), "and that leaves none of the batch's 5 in any example: expected one real position at least"),
    ],
)  # fmt: skip
def test_other_values_are_refused(given: Any, message: str) -> None:
    with refused(embgrad.errors.BatchError, message):
        searched_positions(given, BATCH)


def test_a_batch_of_special_tokens_alone_is_refused() -> None:
    with refused(embgrad.errors.BatchError, "positions is all but those of special tokens, and that leaves none"):
        searched_positions(None, embgrad.TokenBatch([[2, 5]]), Tokenizer())
