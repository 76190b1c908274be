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


def followed(extras: dict[str, Any], apart: tuple[str, ...] = ()) -> Any:
    """Return the further inputs of the versions."""
    batch = TokenBatch(IDS, MASK, TYPES).replace(extras=extras)
    texts = resize(batch, EXAMPLES, np.where(REAL, 2, 0), REAL, np.where(REAL, 1, 0), "do so", apart)
    return texts.extras


def test_numbers_of_positions_count_on_and_a_decoders_inputs_stay() -> None:
    decoder = np.array([[1, 2], [3, 4]])
    found = followed({"position_ids": np.array([[2, 3, 4, 4, 4], [0, 1, 2, 3, 4]]), "decoder_input_ids": decoder})
    np.testing.assert_array_equal(found["position_ids"], [[0, 1, 2, 3, 3, 3], [2, 3, 4, 5, 5, 5], [0, 1, 2, 3, 4, 5]])
    np.testing.assert_array_equal(found["decoder_input_ids"], decoder[EXAMPLES])


STAYING = {
    "scale": np.array([0.5, 3.0]),
    "labels": np.array([1, 0]),
    "is_short": np.array([True, False]),
    "doc_ids": np.array([[3, 4, 5, 9], [3, 4, 0, 0]]),
    "pixel_values": np.zeros((2, 3, 4, 4)),
    "logits_to_keep": 1,
}


def test_what_says_nothing_of_the_text_is_taken_by_example() -> None:
    found = followed(STAYING, apart=("doc_ids",))
    for name, value in STAYING.items():
        expected = value if isinstance(value, int) else value[EXAMPLES]
        np.testing.assert_array_equal(found[name], expected)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("span", np.array([[0, 2], [1, 3]]), "[[0, 2], [1, 3]]"),
        ("spans", [[(0, 2)], [(1, 2), (3, 4)]], "[[0, 2]]"),
        ("lengths", np.array([3.0, 5.0]), "[3, 5]"),
        ("char_lengths", {"of": np.array([17, 29])}, "[17, 29]"),
        ("top", 5, "5"),
    ],
)  # fmt: skip
def test_what_may_count_or_name_positions_is_refused(name: str, value: Any, shown: str) -> None:
    message = (
        f"the further input {name!r} is {shown}, which may count or name positions of the text, and what it is for another text "
        "is not known: do so, or make the input in call=lambda model, inputs: ..."
    )
    batch = TokenBatch(IDS, MASK, extras={name: value})
    with pytest.raises(UnsupportedError, match=re.escape(message)):
        expect_resizable_input(batch, name, "do so")
    assert not has_positions(batch, name)


@pytest.mark.parametrize(
    "value",
    [np.zeros((2, 5, 4)), np.arange(5), [[0.5] * 5] * 2, {"features": np.zeros((2, 5))},
        np.array([[1, 0, 1, 0, 0]] * 2)],
    ids=["boxes", "of all examples", "a list", "in a dict", "no copy of the mask"],
)  # fmt: skip
def test_what_has_as_many_entries_as_positions_is_refused(value: Any) -> None:
    batch = TokenBatch(IDS, MASK, TYPES, extras={"boxes": value})
    with pytest.raises(UnsupportedError, match=r"'boxes' has the shape .*5.*, with as many entries as the text has"):
        expect_resizable_input(batch, "boxes", "do so")
    assert has_positions(batch, "boxes")


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
