"""Objectives of a batch with a decoder: whose positions an output has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad import (
    CrossEntropy,
    Logit,
    Sum,
    TokenBatch,
)
from embgrad.inputs.decoder import IDS, UNDECIDED
from tests.unit.objectives.test_objectives import (
    BATCH,
    CLASSES,
    EXAMPLES,
    POSITIONS,
    RIGHT,
    drawn,
    expect_cotangent_is_slope,
)
from tests.unit.refusals import refused

DECODER = np.array([[0, 5, 6], [0, 7, 0], [0, 8, 9]])


DECODER_MASK = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]])


def with_further(**further: Any) -> TokenBatch:
    return TokenBatch(BATCH.ids, RIGHT, extras=further)


@pytest.mark.parametrize(
    "further",
    [
        {"decoder_input_ids": DECODER, "decoder_attention_mask": DECODER_MASK},
        {"labels": np.where(DECODER_MASK == 1, DECODER, -100)},
    ],
)
def test_positions_of_the_decoder(further: dict[str, Any]) -> None:
    batch, output = with_further(**further), drawn(0, EXAMPLES, 3, CLASSES)
    values, _ = Logit(2).evaluate(output, batch)
    np.testing.assert_allclose(values, (output[..., 2] * DECODER_MASK).sum(1))
    last, _ = Logit(2, position=-1).evaluate(output, batch)
    np.testing.assert_array_equal(last, output[np.arange(3), [2, 1, 0], 2])
    expect_cotangent_is_slope(CrossEntropy(np.ones_like(DECODER)), output, batch)
    with pytest.raises(
        embgrad.errors.ObjectiveError, match=r"labels have shape \(3, 4\) .*expected labels of shape \(3, 3\)"
    ):
        CrossEntropy(np.ones_like(BATCH.ids)).evaluate(output, batch)


def test_an_output_over_the_encoders_positions_beside_a_decoder() -> None:
    batch, output = with_further(decoder_input_ids=DECODER), drawn(0, EXAMPLES, POSITIONS, CLASSES)
    np.testing.assert_allclose(Logit(2).evaluate(output, batch)[0], (output[..., 2] * RIGHT).sum(1))
    same = with_further(decoder_input_ids=BATCH.ids)
    np.testing.assert_allclose(Logit(2).evaluate(output, same)[0], output[..., 2].sum(1))
    named = Logit(2, output="encoder_last_hidden_state")
    np.testing.assert_allclose(named.evaluate(output, same)[0], (output[..., 2] * RIGHT).sum(1))


def test_labels_of_the_batchs_own_shape_are_no_decoder() -> None:
    """As in a masked language model, whose labels leave most positions out."""
    batch, output = with_further(labels=np.full(BATCH.shape, -100)), drawn(0, EXAMPLES, POSITIONS, CLASSES)
    np.testing.assert_allclose(Logit(2).evaluate(output, batch)[0], (output[..., 2] * RIGHT).sum(1))
    one_an_example = with_further(labels=[0, 1, 2])
    np.testing.assert_allclose(Logit(2).evaluate(output, one_an_example)[0], (output[..., 2] * RIGHT).sum(1))


def test_an_output_of_scores_that_may_be_of_another_texts_positions_is_refused() -> None:
    batch = with_further(**{IDS: np.ones(BATCH.shape, int), UNDECIDED: "y"})
    with refused(embgrad.errors.ObjectiveError, "the model looks up the further input 'y' beside the batch's ids"):
        Sum().with_axes([1]).evaluate(drawn(0, EXAMPLES, POSITIONS), batch)
