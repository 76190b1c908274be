"""Outputs with an axis that is the batch's positions beside the examples: real positions alone count, by every objective."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embgrad import CrossEntropy, Logit, LogProbability, Margin, Objective, Probability, Projection, Sum, TokenBatch
from embgrad.objectives.selection import Rows
from tests.unit.refusals import refused

MASK = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]])
BATCH = TokenBatch(np.arange(16).reshape(4, 4), MASK)
SCORES = np.random.default_rng(0).normal(size=(4, 4))
FIRST = np.array([0, 1, 2, 2])  # a real position of each


class Largest(Objective):
    """The largest entry of each row, as a user writes an objective."""

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        chosen = rows.values.argmax(1)
        return rows.values.max(1), np.eye(rows.values.shape[1])[chosen]


VECTOR = np.array([1.0, -2, 3, 0.5])
OBJECTIVES: tuple[Objective, ...] = (
    Sum(),
    Projection(VECTOR),
    Projection(np.stack([VECTOR, -VECTOR, VECTOR * 2, VECTOR + 1])),
    Logit(FIRST),
    Margin(FIRST),
    CrossEntropy(FIRST),
    Probability(FIRST),
    LogProbability(FIRST),
    Largest(),
)


def alone(objective: Objective, example: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the value and the cotangent of one example without its padding, with indices that count its real positions."""
    kept = MASK[example] == 1
    taken = objective.take(slice(example, example + 1), 4)
    for name in ("index", "labels", "label"):
        if hasattr(taken, name):
            setattr(taken, name, getattr(taken, name) - np.flatnonzero(~kept[: FIRST[example]]).size)
    if hasattr(taken, "vector"):
        taken.vector = taken.vector[..., kept]
    return taken.evaluate(SCORES[example : example + 1, kept], TokenBatch(BATCH.ids[example : example + 1, kept]))


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_each_example_is_as_alone_without_its_padding(objective: Objective) -> None:
    padded = np.where(MASK == 1, SCORES, 1e6)  # what stands at padding is not read
    values, cotangent = objective.with_axes([1]).evaluate(padded, BATCH)
    for example in range(4):
        value, slopes = alone(objective, example)
        np.testing.assert_allclose(values[example], value[0], rtol=1e-13)
        np.testing.assert_allclose(cotangent[example, MASK[example] == 1], slopes[0], rtol=1e-13)
    assert not cotangent[MASK == 0].any()


def test_by_hand() -> None:
    scores = np.array([[1.0, 2, 5, 7]] * 2)
    batch = TokenBatch(np.ones((2, 4), int), [[1, 1, 0, 0], [1, 1, 1, 1]])
    values = Probability([1, 1], output="start_logits").evaluate(scores, batch)[0]
    powers = np.exp(scores[0])
    np.testing.assert_allclose(values, [powers[1] / powers[:2].sum(), powers[1] / powers.sum()], rtol=1e-13)
    np.testing.assert_array_equal(Sum(output="end_logits").evaluate(scores, batch)[0], [3, 15])
    np.testing.assert_array_equal(Margin(1, output="end_logits").evaluate(scores, batch)[0], [1, -5])


def test_probabilities_of_real_positions_sum_to_one() -> None:
    rows = np.array([[0.25, 0.75, 0, 0], [0.1, 0.2, 0.3, 0.4]])
    batch = TokenBatch(np.ones((2, 4), int), [[1, 1, 0, 0], [1, 1, 1, 1]])
    objective = CrossEntropy([1, 3], of="probabilities").with_axes([1])
    np.testing.assert_allclose(objective.evaluate(rows, batch)[0], -np.log([0.75, 0.4]))
    with refused(Exception, "example 0 is [0.25, 0.25], which are not probabilities"):
        objective.evaluate(np.full((2, 4), 0.25), batch)


@pytest.mark.parametrize(
    "objective", [Logit(3), Margin(3), CrossEntropy([3] * 4), Probability(3), LogProbability(3)], ids=repr
)
def test_an_index_at_padding_is_an_error(objective: Objective) -> None:
    with refused(
        Exception,
        "3 at example 1 is padding: the output has an entry for each position, of which the real ones count, [0, 1]",
    ):
        objective.with_axes([1]).evaluate(SCORES, BATCH)


def test_one_real_position_has_the_probability_one() -> None:
    batch = TokenBatch(np.ones((2, 3), int), [[1, 0, 0], [1, 1, 1]])
    values, cotangent = CrossEntropy([0, 0], output="start_logits").evaluate(SCORES[:2, :3], batch)
    assert values[0] == 0
    assert not cotangent[0].any()


def test_classes_all_count() -> None:
    np.testing.assert_array_equal(Sum().with_axes([]).evaluate(SCORES, BATCH)[0], SCORES.sum(1))
    np.testing.assert_array_equal(Sum(output="pooler_output").evaluate(SCORES, BATCH)[0], SCORES.sum(1))
    unpadded = TokenBatch(BATCH.ids, np.ones((4, 4), int))
    np.testing.assert_array_equal(Sum().evaluate(SCORES, unpadded)[0], SCORES.sum(1))
    np.testing.assert_array_equal(Sum().evaluate(SCORES[:, :3], BATCH)[0], SCORES[:, :3].sum(1))


def test_what_is_not_known_is_asked() -> None:
    with refused(
        Exception,
        "the output has the shape (4, 4), and its axis 1 may be the 4 positions of the padded batch, of which the real ones "
        "count, or classes, of which all count: pass objective.with_axes([1]) for positions, or objective.with_axes([]) for "
        "classes",
    ):
        Sum().evaluate(SCORES, BATCH)


def test_scores_of_pairs_of_positions() -> None:
    heads = np.random.default_rng(1).normal(size=(4, 4, 4))
    labels = np.where(MASK == 1, FIRST[:, None], -100)
    values, cotangent = CrossEntropy(labels).with_axes([2]).evaluate(heads, BATCH)
    expected = np.zeros(4)
    for example, position in np.argwhere(MASK):
        real = np.flatnonzero(MASK[example])
        powers = np.exp(heads[example, position, real])
        expected[example] -= np.log(powers[real == FIRST[example]] / powers.sum())[0]
    np.testing.assert_allclose(values, expected)
    assert not cotangent[:, :, 2:][1].any()


def test_the_rows_that_cross_alone_are_the_same() -> None:
    heads = np.random.default_rng(1).normal(size=(4, 4, 4))
    objective = Logit(FIRST, position=FIRST).with_axes([2])
    places = objective.places(heads.shape, BATCH)
    assert places is not None
    values, slopes = objective.evaluate_rows(heads[places], places, BATCH)
    np.testing.assert_array_equal(values, heads[np.arange(4), FIRST, FIRST])
    np.testing.assert_array_equal(slopes, np.eye(4)[FIRST])


def test_attention_counts_between_real_positions() -> None:
    attention: Any = np.random.default_rng(2).random((4, 2, 4, 4))
    pairs = MASK[:, None, :, None] * MASK[:, None, None, :]
    values, cotangent = Sum(output="attentions.0").with_axes([2, 3]).evaluate(attention, BATCH)
    np.testing.assert_allclose(values, (attention * pairs).sum((1, 2, 3)))
    np.testing.assert_array_equal(cotangent, np.broadcast_to(pairs, attention.shape))


def test_positions_of_the_decoder() -> None:
    extras = {"decoder_input_ids": np.ones((2, 3), int), "decoder_attention_mask": np.array([[1, 1, 0], [1, 1, 1]])}
    batch = TokenBatch(np.ones((2, 5), int), [[1] * 5, [1, 0, 0, 0, 0]], extras=extras)
    values = Sum(output="start_logits").evaluate(SCORES[:2, :3], batch)[0]
    np.testing.assert_array_equal(values, [SCORES[0, :2].sum(), SCORES[1, :3].sum()])


def test_an_index_out_of_range_names_the_output() -> None:
    for objective in (LogProbability(9, output="last_hidden_state"), Logit(9, output="last_hidden_state")):
        with refused(
            Exception,
            "9 at example 0 is out of range: the output 'last_hidden_state' has 3 classes, expected 0 to 2, or another output "
            "with output=... where these are no classes",
        ):
            objective.evaluate(SCORES[:, :3], BATCH)
