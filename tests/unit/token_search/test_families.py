"""Which texts begin alike, and how far, in arrays without a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from embgrad.inputs.batch import TokenBatch
from embgrad.token_search.families import Family, families

LENGTH = 8
TEXT = np.arange(1, LENGTH + 1)


def flipped(*positions: int) -> np.ndarray:
    """Return texts that differ from `TEXT` at these positions, one each."""
    ids = np.tile(TEXT, (len(positions), 1))
    ids[np.arange(len(positions)), positions] = 50 + np.arange(len(positions))
    return ids


def found(ids: np.ndarray, *read: int, examples: Any = None, **options: Any) -> list[Family]:
    batch = TokenBatch(ids, **options)
    owners = np.zeros(len(ids), int) if examples is None else np.asarray(examples)
    texts, positions = np.meshgrid(np.arange(len(ids)), read, indexing="ij")
    return list(families(batch, owners, (texts.ravel(), positions.ravel())))


def test_a_text_shares_what_stands_before_its_first_difference() -> None:
    (family,) = found(flipped(3, 4, 5, 5, 1), 7)
    np.testing.assert_array_equal(family.ids, TEXT)
    np.testing.assert_array_equal(family.shared, [3, 4, 5, 5, 1])
    assert (family.first, family.end) == (7, 8)


def test_no_row_that_is_read_is_shared_and_no_token_after_the_last_is_run() -> None:
    (family,) = found(np.concatenate([flipped(1, 6, 7, 4), TEXT[None]]), 5, 3)
    np.testing.assert_array_equal(family.shared, [1, 3, 3, 3, 3])
    assert (family.first, family.end) == (3, 6)


def test_each_example_has_its_own_shared_text() -> None:
    ids = np.concatenate([flipped(4, 5, 6, 4), flipped(4, 5, 6, 4) + 10])
    first, second = found(ids, 7, examples=[0, 0, 0, 0, 2, 2, 2, 2])
    np.testing.assert_array_equal(first.texts, [0, 1, 2, 3])
    np.testing.assert_array_equal(second.texts, [4, 5, 6, 7])
    np.testing.assert_array_equal(second.ids, TEXT + 10)


def test_texts_for_which_it_is_not_worth_it_are_in_no_family() -> None:
    assert not found(flipped(5, 5, 5), 7)  # too few
    assert not found(flipped(1, 1, 1, 1, 1), 7)  # too little is shared
    assert not found(flipped(5, 5, 5, 5, 5), 0)  # the first row is read


def test_padding_may_stand_at_the_end_alone() -> None:
    right, left = np.ones((2, 5, LENGTH), int)
    right[:, -2:], left[:, :2] = 0, 0
    (family,) = found(flipped(4, 4, 4, 4, 4), 5, mask=right)
    assert family.end == 6
    assert not found(flipped(4, 4, 4, 4, 4), 5, mask=left)


def test_texts_of_one_family_have_the_same_types() -> None:
    types = np.zeros((5, LENGTH), int)
    assert found(flipped(4, 4, 4, 4, 4), 7, types=types)
    types[2, 3] = 1
    assert not found(flipped(4, 4, 4, 4, 4), 7, types=types)


def test_what_is_shared_must_be_more_than_twice_what_is_run() -> None:
    assert not found(flipped(1, 3, 5, 7), 7)  # 16 shared positions, and 8 that are run
    assert found(flipped(2, 3, 5, 7), 7)
    assert not found(
        flipped(1, 3, 5, 7), 5, 6
    )  # of the last two texts 5 positions are shared, which are 14, and 7 are run
    (family,) = found(flipped(2, 3, 5, 7), 5, 6)
    assert (family.first, family.end, family.shared.tolist()) == (5, 7, [2, 3, 5, 5])


def test_of_equally_frequent_ids_the_smallest_is_shared() -> None:
    ids = np.tile(TEXT, (4, 1))
    ids[:2, 6] = 90
    ids[2:, 6] = 80
    (family,) = found(ids, 7)
    assert family.ids.tolist() == [1, 2, 3, 4, 5, 6, 80, 8]
    assert family.shared.tolist() == [6, 6, 7, 7]


def test_texts_of_which_nothing_is_read_are_in_no_family() -> None:
    batch = TokenBatch(flipped(5, 5, 6, 6, 5))
    texts = np.array([0, 1, 2, 3])
    (family,) = families(batch, np.zeros(5, int), (texts, np.full(4, 7)))
    assert family.texts.tolist() == [0, 1, 2, 3]
