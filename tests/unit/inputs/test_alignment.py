"""Padding that is moved from the left of the examples to the right, and back."""

from __future__ import annotations

import numpy as np
import pytest

from embgrad import TokenBatch
from embgrad.errors import BatchError
from embgrad.inputs.alignment import align

IDS = np.array([[0, 0, 3, 4, 5], [1, 2, 3, 4, 5], [0, 7, 8, 9, 0]])
MASK = np.array([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 0]])
MOVED = [[3, 4, 5, 0, 0], [1, 2, 3, 4, 5], [7, 8, 9, 0, 0]]


def test_each_example_begins_with_its_first_real_token() -> None:
    positions = np.arange(15).reshape(3, 5)
    other = np.arange(3)
    batch = TokenBatch(IDS, MASK, IDS % 2, extras={"position_ids": positions, "labels": other})
    moved, move, decoder = align(batch)
    assert decoder is None
    np.testing.assert_array_equal(move.shifts, [2, 0, 1])
    np.testing.assert_array_equal(moved.ids, MOVED)
    np.testing.assert_array_equal(moved.mask, [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    np.testing.assert_array_equal(moved.types, np.array(MOVED) % 2)
    np.testing.assert_array_equal(
        moved.extras["position_ids"], [[2, 3, 4, 0, 1], [5, 6, 7, 8, 9], [11, 12, 13, 14, 10]]
    )
    np.testing.assert_array_equal(moved.extras["labels"], other)


def test_a_batch_that_is_not_padded_on_the_left_stays() -> None:
    for batch in (TokenBatch(IDS), TokenBatch(MOVED, np.array(MOVED) > 0), TokenBatch(IDS, np.zeros((3, 5)))):
        moved, move, _ = align(batch)
        assert moved is batch
        assert not move.shifts.any()


def test_inputs_that_all_examples_share_are_refused_where_they_may_belong_to_positions() -> None:
    for rows in (1, 3):
        message = rf"'bias' has the shape \({rows}, 5\), and the batch is padded on the left: which axis"
        with pytest.raises(BatchError, match=message):
            align(TokenBatch(IDS, MASK, extras={"bias": np.zeros((rows, 5))}, shared=["bias"]))
    moved, _, _ = align(TokenBatch(IDS, MASK, extras={"bias": np.arange(4) / 8}, shared=["bias"]))
    np.testing.assert_array_equal(moved.extras["bias"], np.arange(4) / 8)


def test_further_axes_of_an_input_move_with_its_positions_and_masks_of_pairs_are_refused() -> None:
    features = np.arange(30).reshape(3, 5, 2)
    moved, move, _ = align(TokenBatch(IDS, MASK, extras={"features": features}))
    np.testing.assert_array_equal(moved.extras["features"][..., 1], move.move(features[..., 1]))
    with pytest.raises(BatchError, match=r"'pairs' has the shape \(3, 1, 5, 5\)"):
        align(TokenBatch(IDS, MASK, extras={"pairs": np.zeros((3, 1, 5, 5))}))


def test_tokens_texts_and_offsets_move_with_the_ids() -> None:
    tokens = [[f"{example}.{position}" for position in range(5)] for example in range(3)]
    offsets = np.stack([np.zeros((3, 5), int), np.ones((3, 5), int)], -1)
    batch = TokenBatch(IDS, MASK, tokens=tokens, texts=["ab"] * 3, offsets=offsets)
    moved, move, _ = align(batch)
    assert moved.tokens is not None
    assert moved.tokens[0] == tuple(tokens[0][column] for column in move.columns[0])
    assert moved.texts == batch.texts
    assert moved.offsets is not None


def test_the_decoders_ids_are_moved_by_their_own_mask() -> None:
    extras = {"decoder_input_ids": IDS[:, ::-1], "decoder_attention_mask": MASK[:, ::-1]}
    moved, move, decoder = align(TokenBatch(IDS, MASK, extras=extras))
    assert decoder is not None
    np.testing.assert_array_equal(decoder.shifts, [0, 0, 1])
    np.testing.assert_array_equal(move.shifts, [2, 0, 1])
    np.testing.assert_array_equal(moved.ids, MOVED)
    np.testing.assert_array_equal(
        moved.extras["decoder_input_ids"], [[5, 4, 3, 0, 0], [5, 4, 3, 2, 1], [9, 8, 7, 0, 0]]
    )
    np.testing.assert_array_equal(
        moved.extras["decoder_attention_mask"], [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    )
    unmasked, _, decoder = align(TokenBatch(IDS, extras={"decoder_input_ids": IDS}))
    assert decoder is not None
    assert not decoder.shifts.any()
    assert "decoder_attention_mask" not in unmasked.extras


def test_moving_back_undoes_a_move() -> None:
    _, move, _ = align(TokenBatch(IDS, MASK))
    array = np.random.default_rng(0).normal(size=(3, 4, 5))
    moved = np.stack([move.move(array[:, middle]) for middle in range(4)], 1)
    np.testing.assert_array_equal(move.move_back(moved), array)
    np.testing.assert_array_equal(move.move_back(move.move(IDS)), IDS)


def test_whole_numbers_that_may_name_positions_are_refused() -> None:
    with pytest.raises(
        BatchError, match=r"'entity' is \[2, 3, 4\], and the batch is padded on the left: it may count or"
    ):
        align(TokenBatch(IDS, MASK, extras={"entity": np.array([2, 3, 4])}))


def test_inputs_of_the_decoder_move_with_its_ids_and_the_others_with_the_batch() -> None:
    sides = {"decoder_input_ids": np.array(MOVED)[:, :4], "decoder_attention_mask": np.array([[0, 0, 1, 1]] * 3)}
    extras = {"decoder_position_ids": np.arange(12).reshape(3, 4), "labels": np.arange(12).reshape(3, 4), "boxes": IDS}
    moved, _, _ = align(TokenBatch(IDS, MASK, extras={**sides, **extras}))
    np.testing.assert_array_equal(moved.extras["decoder_position_ids"], np.arange(12).reshape(3, 4)[:, [2, 3, 0, 1]])
    np.testing.assert_array_equal(moved.extras["labels"], np.arange(12).reshape(3, 4)[:, [2, 3, 0, 1]])
    np.testing.assert_array_equal(moved.extras["boxes"], MOVED)
    right, _, _ = align(TokenBatch(MOVED, np.array(MOVED) > 0, extras={**sides, **extras}))
    np.testing.assert_array_equal(right.extras["boxes"], IDS)
    np.testing.assert_array_equal(right.extras["labels"], np.arange(12).reshape(3, 4)[:, [2, 3, 0, 1]])


def test_an_entry_for_each_of_as_many_examples_as_positions_is_no_axis_of_positions() -> None:
    for weights in (np.array([0.5, 0.25]), np.array([[0.5, 1, 2], [0.25, 3, 4]])):
        moved, _, _ = align(TokenBatch([[0, 3], [4, 5]], [[0, 1], [1, 1]], extras={"weights": weights}))
        np.testing.assert_array_equal(moved.extras["weights"], weights)
        np.testing.assert_array_equal(moved.ids, [[3, 0], [4, 5]])
