"""Objectives that compare an output with numbers: their closed forms, their limits, and what they refuse."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from embgrad import BinaryCrossEntropy, CosineSimilarity, SquaredError, TokenBatch
from embgrad.errors import ObjectiveError
from embgrad.objectives.classes import rebuilt

BATCH = TokenBatch([[5, 7], [8, 2]])
LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, -4.0]])
LABELS = np.array([[1, 0, 1], [0, 1, 0.25]])


def test_the_binary_cross_entropy_is_the_sum_over_the_labels() -> None:
    share = 1 / (1 + np.exp(-LOGITS))
    expected = -(LABELS * np.log(share) + (1 - LABELS) * np.log(1 - share)).sum(1)
    values, cotangent = BinaryCrossEntropy(LABELS).evaluate(LOGITS, BATCH)
    np.testing.assert_allclose(values, expected, rtol=1e-13)
    np.testing.assert_allclose(cotangent, share - LABELS, rtol=1e-13)
    values, cotangent = BinaryCrossEntropy(LABELS, of="probabilities").evaluate(share, BATCH)
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    np.testing.assert_allclose(cotangent * share * (1 - share), share - LABELS, rtol=1e-12)


def test_a_single_logit_has_one_label_for_each_example() -> None:
    for logits in (LOGITS[:, :1], LOGITS[:, 0]):
        values, cotangent = BinaryCrossEntropy([1, 0]).evaluate(logits, BATCH)
        np.testing.assert_allclose(values, [np.log1p(np.exp(-2.0)), np.log(2.0)], rtol=1e-14)
        np.testing.assert_allclose(cotangent.ravel(), [-1 / (1 + np.exp(2.0)), 0.5], rtol=1e-14)


def test_large_logits_and_masked_labels_lose_no_digits() -> None:
    values, cotangent = BinaryCrossEntropy([[1, 0, 0]]).evaluate(np.array([[-800.0, 900.0, -np.inf]]), BATCH[:1])
    assert values.tolist() == [1700.0]
    assert cotangent.tolist() == [[-1.0, 1.0, 0.0]]
    certain = BinaryCrossEntropy([[1, 0]], of="probabilities").evaluate(np.array([[1.0, 0.0]]), BATCH[:1])
    assert [part.tolist() for part in certain] == [[0.0], [[-1.0, 1.0]]]


def test_the_squared_error_is_the_squared_distance() -> None:
    target = np.array([[1.0, 1, 1], [0, 0, 0]])
    values, cotangent = SquaredError(target).evaluate(LOGITS, BATCH)
    np.testing.assert_allclose(values, [1 + 4 + 0.25, 0 + 9 + 16])
    np.testing.assert_allclose(cotangent, 2 * (LOGITS - target))
    assert SquaredError([1.5, 0]).evaluate(LOGITS[:, 0], BATCH)[0].tolist() == [0.25, 0.0]


def test_the_slope_of_a_cosine_is_orthogonal_to_the_output() -> None:
    values, cotangent = CosineSimilarity([1.0, 0, 0]).evaluate(LOGITS, BATCH)
    lengths = np.sqrt([4 + 1 + 0.25, 9 + 16.0])
    np.testing.assert_allclose(values, [2 / lengths[0], 0])
    np.testing.assert_allclose((cotangent * LOGITS).sum(1), 0, atol=1e-15)
    np.testing.assert_allclose(cotangent[1], [1 / lengths[1], 0, 0], atol=1e-15)
    np.testing.assert_allclose(CosineSimilarity(-2 * LOGITS).evaluate(LOGITS, BATCH)[0], [-1, -1], rtol=1e-15)


@pytest.mark.parametrize(
    "objective",
    [BinaryCrossEntropy(LABELS), SquaredError([1.5, 0]), CosineSimilarity([1.0, 2]), CosineSimilarity(LOGITS)],
)
def test_each_is_restored_from_its_description_and_for_some_examples(objective: Any) -> None:
    again: Any = rebuilt(objective.describe())
    assert type(again) is type(objective)
    assert again.describe() == objective.describe()
    taken = objective.take(np.array([1]), 2)
    width = 3 if "Binary" in type(objective).__name__ or np.ndim(getattr(objective, "vector", 0)) == 2 else 1
    width = 2 if np.ndim(getattr(objective, "vector", 0)) == 1 else width
    output = LOGITS[:, :width]
    np.testing.assert_array_equal(taken.evaluate(output[1:], BATCH[1:])[0], objective.evaluate(output, BATCH)[0][1:])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: BinaryCrossEntropy([2, 0]),
            "labels is [2, 0]: expected numbers from 0 to 1, 1 where the label is there",
        ),
        (lambda: BinaryCrossEntropy([0, 1], of="logit"), "of is 'logit': expected 'logits' or 'probabilities'"),
        (lambda: SquaredError("far"), "target is 'far': expected an array of finite real numbers"),
        (lambda: SquaredError([np.nan]), "target is [nan]: expected an array of finite real numbers"),
        (lambda: CosineSimilarity([[1], [2, 3]]), "vector is [[1], [2, 3]]: expected an array of finite real numbers"),
    ],
)
def test_arguments_are_checked_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(ObjectiveError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("objective", "output", "message"),
    [
        (BinaryCrossEntropy([1, 0]), LOGITS,
            "labels has shape (2,): the output has 3 entries in a row, so expected (2, 3)"),
        (SquaredError(LOGITS[:1]), LOGITS, "target has 1 entries: expected 2, one for each example"),
        (
            SquaredError(LOGITS),
            np.zeros((2, 2, 3)),
            "the output is per position, (2, 2, 3), and SquaredError is of one row for each example: expected position=...",
        ),
        (BinaryCrossEntropy(LABELS, of="probabilities"), LOGITS,
            "the output at example 0 is [2.0, -1.0, 0.5], which are not probabilities: expected entries from 0 to 1"),
        (BinaryCrossEntropy([1, 0], of="probabilities"), np.array([[0.5], [1.0]]),
            "the probability of a label at example 1 is 0, in [1.0]: its logarithm is infinite"),
        (CosineSimilarity([1.0, 0, 0]), LOGITS * [[1], [0]],
            "the output at example 1 is zero everywhere, so that it has no cosine with another"),
        (CosineSimilarity(np.zeros(3)), LOGITS, "the vector at example 0 is zero everywhere"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_output_is_refused(objective: Any, output: np.ndarray, message: str) -> None:
    with pytest.raises(ObjectiveError, match=re.escape(message)):
        objective.evaluate(output, BATCH)
