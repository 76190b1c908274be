"""Further inputs that describe a text, in versions of the text with more or fewer tokens."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from embgrad.errors import UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.resized import expect_resizable_input, has_positions, is_copy_of_ids, resize, with_numbers

IDS = np.array([[3, 4, 5, 0, 0], [6, 7, 8, 9, 3]])
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
TYPES = np.array([[0, 0, 1, 0, 0], [0, 0, 0, 1, 1]])

#: Versions of the second example, of the first, and of the second again, of 4, 4 and 6 tokens.
EXAMPLES = np.array([1, 0, 1])
LENGTHS = np.array([4, 4, 6])
REAL = np.arange(6) < LENGTHS[:, None]


def followed(extras: dict[str, Any], batch: TokenBatch | None = None, apart: tuple[str, ...] = ()) -> Any:
    """Return the further inputs of the versions."""
    batch = TokenBatch(IDS, MASK, TYPES).replace(extras=extras) if batch is None else batch.replace(extras=extras)
    texts = resize(batch, EXAMPLES % len(batch), np.where(REAL, 2, 0), REAL, np.where(REAL, 1, 0), "do so", apart)
    return texts.extras


@pytest.mark.parametrize("name", ["lengths", "seq_len", "textLengths", "valid_length", "src_lengths", "n"])
@pytest.mark.parametrize("form", [np.array, list, tuple, lambda numbers: np.array(numbers, np.float32)[:, None]])
def test_counts_of_the_real_positions_are_counted_anew(name: str, form: Any) -> None:
    (found,) = followed({name: form([3, 5])}).values()
    assert type(found) is type(form([3, 5]))
    np.testing.assert_array_equal(np.ravel(found), [4, 4, 6])
    if isinstance(found, np.ndarray):
        assert (found.dtype, found.ndim) == (form([3, 5]).dtype, form([3, 5]).ndim)


def test_the_last_positions_are_found_anew() -> None:
    assert followed({"last": np.array([2, 4])})["last"].tolist() == [3, 3, 5]
    left = TokenBatch(IDS, MASK[:, ::-1])
    assert followed({"last": np.array([4, 4])}, left)["last"].tolist() == [3, 3, 5]


def test_numbers_of_other_inputs_beside_counts_say_nothing_of_them() -> None:
    found = followed({"length": np.array([3, 5]), "length_scores": np.full((2, 7), 0.5)})
    assert found["length"].tolist() == [4, 4, 6]


def test_the_bounds_of_texts_in_a_row_are_summed_anew() -> None:
    assert followed({"cu_seqlens": np.array([0, 3, 8])})["cu_seqlens"].tolist() == [0, 4, 8, 14]
    assert followed({"cu_seqlens": np.array([0, 4])}, TokenBatch([[3, 4, 5, 6]]))["cu_seqlens"].tolist() == [
        0,
        4,
        8,
        14,
    ]


@pytest.mark.parametrize(("number", "new"), [(5, 6), (512, 512)])
def test_the_length_of_the_batch_is_that_of_the_texts(number: int, new: int) -> None:
    assert followed({"max_length": number})["max_length"] == new


def test_the_length_of_the_longest_text_is_that_of_the_longest_version() -> None:
    padded = TokenBatch(np.pad(IDS, [(0, 0), (0, 2)]), np.pad(MASK, [(0, 0), (0, 2)]))
    extras = {"max_length": 5, "longest": 7}
    with pytest.raises(UnsupportedError, match=re.escape("'longest' is 7, which may count or name positions")):
        followed(extras, padded)
    assert followed({"max_length": 5, "length": 7}, padded) == {"max_length": 6, "length": 6}


def test_copies_of_the_mask_and_of_the_types_and_numbers_of_positions_follow() -> None:
    extras = {
        "is_real": MASK.astype(np.float32),
        "key_padding_mask": MASK == 0,
        "segments": TYPES,
        "position_ids": np.array([[2, 3, 4, 4, 4], [0, 1, 2, 3, 4]]),
        "positions": np.maximum(MASK.cumsum(1) - 1, 0),
    }
    found = followed(extras)
    np.testing.assert_array_equal(found["is_real"], REAL.astype(np.float32))
    np.testing.assert_array_equal(found["key_padding_mask"], ~REAL)
    np.testing.assert_array_equal(found["segments"], REAL)
    assert [found[name].dtype for name in ("is_real", "key_padding_mask")] == [np.float32, bool]
    np.testing.assert_array_equal(found["position_ids"], [[0, 1, 2, 3, 3, 3], [2, 3, 4, 5, 5, 5], [0, 1, 2, 3, 4, 5]])
    np.testing.assert_array_equal(found["positions"], [[0, 1, 2, 3, 3, 3], [0, 1, 2, 3, 3, 3], [0, 1, 2, 3, 4, 5]])


def test_counts_inside_a_dict_follow_and_what_stands_beside_them_is_taken_by_example() -> None:
    batch = TokenBatch(IDS)  # of equal length, so that the name alone says what the numbers are
    packed = {"lengths": np.array([5, 5]), "scale": np.array([0.5, 0.25])}
    found = followed({"packed": packed, "notes": ["a", "b"]}, batch)
    assert found["packed"]["lengths"].tolist() == [4, 4, 6]
    np.testing.assert_array_equal(found["packed"]["scale"], [0.25, 0.5, 0.25])
    assert found["notes"] == ["b", "a", "b"]


STAYING = {
    "scale": np.array([0.5, 3.0]),
    "lang_ids": np.array([1, 2]),
    "label": np.array([1, 0]),
    "is_short": np.array([True, False]),
    "doc_ids": np.array([[3, 4, 5, 9], [3, 4, 0, 0]]),
    "doc_lengths": np.array([3, 4]),
    "pixel_values": np.zeros((2, 3, 4, 4)),
    "boxes": np.array([[[0, 2, 5, 4], [1, 1, 3, 3]]] * 2),
    "grids": np.ones((2, 1, 4, 2), int),
    "age": np.array([36, 41]),
    "decoder_last": np.array([1, 2]),
    "logits_to_keep": 1,
}


def test_what_says_nothing_of_the_text_is_taken_by_example() -> None:
    found = followed(STAYING, apart=("decoder_last",))
    for name, value in STAYING.items():
        expected = value if isinstance(value, int) else value[EXAMPLES]
        np.testing.assert_array_equal(found[name], expected)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("span", np.array([[0, 2], [1, 3]]), "[[0, 2], [1, 3]]"),
        ("start_positions", np.array([1, 2]), "[1, 2]"),
        ("entity", [1, 4], "[1, 4]"),
        ("spans", [[(0, 2)], [(1, 2), (3, 4)]], "[[0, 2]]"),
        ("lengths", np.array([2, 5]), "[2, 5]"),
        ("char_lengths", np.array([17, 29]), "[17, 29]"),
        ("offsets", np.array([0, 9]), "[0, 9]"),
        ("word_starts", np.array([[0, 2, -1], [0, 1, 4]]), "[[0, 2, -1], [0, 1, 4]]"),
        ("answers", np.array([[[0, 2]], [[1, 3]]]), "[[[0, 2]], [[1, 3]]]"),
        ("top", 5, "5"),
        ("end", np.array([2, 4]), "[2, 4]"),
    ],
)  # fmt: skip
def test_what_may_count_or_name_positions_is_refused(name: str, value: Any, shown: str) -> None:
    message = (
        f"the further input {name!r} is {shown}, which may count or name positions of the text, and what it is for another text "
        "is not known: do so, or leave it out where the objective does not depend on it"
    )
    batch = TokenBatch(IDS, MASK, extras={name: value})
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        expect_resizable_input(batch, name, "do so")
    assert not has_positions(batch, name)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((2, 5, 4)),
        np.arange(5),
        [[0.5] * 5] * 2,
        {"features": np.zeros((2, 5))},
        np.array([[1, 0, 1, 0, 0]] * 2),
    ],
    ids=["boxes", "of all examples", "a list", "in a dict", "no copy of the mask"],
)
def test_what_has_as_many_entries_as_positions_is_refused(value: Any) -> None:
    batch = TokenBatch(IDS, MASK, TYPES, extras={"boxes": value})
    with pytest.raises(UnsupportedError, match=r"'boxes' has the shape .*5.*, with as many entries as the text has"):
        expect_resizable_input(batch, "boxes", "do so")
    assert has_positions(batch, "boxes")
    shared = TokenBatch(IDS, MASK, extras={"is_real": MASK}, shared=["is_real"])
    with pytest.raises(UnsupportedError, match="'is_real' has the shape"):  # which is no copy of each example's mask
        expect_resizable_input(shared, "is_real", "do so")


def test_ones_without_padding_are_a_mask_by_their_name_alone() -> None:
    batch = TokenBatch([[3, 4, 5, 6]])
    ones = np.ones((1, 4), np.int32)
    found = resize(batch.replace(extras={"text_mask": ones}), EXAMPLES * 0, np.where(REAL, 2, 0), REAL, None, "do so")
    np.testing.assert_array_equal(found.extras["text_mask"], REAL)
    with pytest.raises(UnsupportedError, match="'weights' has the shape"):
        expect_resizable_input(batch.replace(extras={"weights": ones}), "weights", "do so")


def test_versions_with_the_same_real_positions_keep_all_inputs() -> None:
    extras = {"span": np.array([[0, 2], [1, 3]]), "boxes": np.arange(40).reshape(2, 5, 4), "lengths": [1, 2]}
    batch = TokenBatch(IDS, MASK, extras=extras)
    found = resize(batch, np.array([1, 1]), IDS[[0, 0]], batch.real[[1, 1]], None, "do so")
    np.testing.assert_array_equal(found.extras["span"], [[1, 3], [1, 3]])
    np.testing.assert_array_equal(found.extras["boxes"], extras["boxes"][[1, 1]])
    assert found.extras["lengths"] == [2, 2]


def test_a_copy_of_the_ids_is_recognised_at_real_positions_and_numbers_are_changed() -> None:
    labels = np.where(MASK == 1, IDS, -100)
    batch = TokenBatch(IDS, MASK, extras={"labels": labels, "other": IDS + 1, "few": [1, 2], "note": "x"})
    assert [name for name in batch.extras if is_copy_of_ids(batch, name)] == ["labels"]
    assert with_numbers(batch, "few", lambda numbers: numbers + 5).extras["few"] == [6, 7]
    assert with_numbers(batch, "note", lambda numbers: numbers + 5).extras["note"] == "x"
    shared = TokenBatch(IDS, MASK, extras={"few": [1, 2]}, shared=["few"])
    assert with_numbers(shared, "few", lambda numbers: numbers + 5).shared == {"few"}


def test_one_array_of_a_nest_with_an_entry_for_each_position_is_enough() -> None:
    batch = TokenBatch(IDS, MASK, extras={"packed": {"scale": np.zeros(2), "features": np.zeros((2, 5))}})
    assert has_positions(batch, "packed")


def test_lengths_are_those_of_the_text_beside_another_input_of_other_positions() -> None:
    extras = {"image_patches": np.arange(14).reshape(2, 7), "lengths": np.array([3, 5])}
    assert followed(extras)["lengths"].tolist() == [4, 4, 6]
    other = {"image_patches": np.arange(14).reshape(2, 7), "image_lengths": np.array([3, 5])}
    np.testing.assert_array_equal(followed(other)["image_lengths"], [5, 3, 5])  # those of the patches, by example


def test_two_numbers_of_one_text_are_its_bounds_by_their_name_alone() -> None:
    batch = TokenBatch([[3, 4, 5, 6]], extras={"span": np.array([0, 4])})
    with pytest.raises(UnsupportedError, match=re.escape("'span' is [0, 4], which may count or name positions")):
        expect_resizable_input(batch, "span", "do so")
