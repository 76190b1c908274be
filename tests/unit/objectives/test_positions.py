"""The positions that an objective counts: real ones, those that it names, and those with a label."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embgrad import CrossEntropy, Sum
from tests.unit.objectives.test_objectives import BATCH, CLASSES, EXAMPLES, LEFT, POSITIONS, RIGHT, drawn, softmax


@pytest.mark.parametrize("mask", [RIGHT, LEFT])
def test_masked_positions_do_not_count(mask: np.ndarray) -> None:
    output, batch = drawn(0, EXAMPLES, POSITIONS, CLASSES), BATCH.replace(mask=mask)
    output[mask == 0] = np.nan
    values, cotangent = Sum().evaluate(output, batch)
    np.testing.assert_allclose(values, np.nansum(output, (1, 2)))
    np.testing.assert_array_equal(cotangent, np.broadcast_to(mask[..., None], output.shape))


@pytest.mark.parametrize(
    ("mask", "position", "columns"),
    [
        (RIGHT, 1, [1, 1, 1]),
        (RIGHT, -1, [3, 2, 1]),
        (RIGHT, -2, [2, 1, 0]),
        (RIGHT, [3, 0, -1], [3, 0, 1]),
        (RIGHT, np.float32([3, 2, 1]), [3, 2, 1]),
        (LEFT, 3, [3, 3, 3]),
        (LEFT, -1, [3, 3, 3]),
        (LEFT, -2, [2, 2, 2]),
        (LEFT, [0, 1, 2], [0, 1, 2]),
        (None, -1, [3, 3, 3]),
        (None, -4, [0, 0, 0]),
        (np.array([[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 1]]), -1, [2, 1, 3]),
    ],
)
def test_positions(mask: Any, position: Any, columns: list[int]) -> None:
    output, batch = drawn(1, EXAMPLES, POSITIONS, CLASSES), BATCH.replace(mask=mask)
    values, cotangent = Sum(position=position).evaluate(output, batch)
    np.testing.assert_allclose(values, output[np.arange(3), columns].sum(1))
    expected = np.zeros_like(output)
    expected[np.arange(3), columns] = 1
    np.testing.assert_array_equal(cotangent, expected)


def test_a_cross_entropy_leaves_out_minus_100_and_masked_positions() -> None:
    logits = drawn(2, EXAMPLES, POSITIONS, CLASSES)
    labels = np.array(
        [[0, -100, 2, 1], [1, 1, -100, 99], [-100, -100, -7, 77]]
    )  # nonsense only where it does not count
    values, cotangent = CrossEntropy(labels).evaluate(logits, BATCH)
    terms = -np.log(softmax(logits))
    assert values == pytest.approx(
        [terms[0, 0, 0] + terms[0, 2, 2] + terms[0, 3, 1], terms[1, 0, 1] + terms[1, 1, 1], 0.0]
    )
    counts = np.array([[1, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_array_equal(cotangent.any(-1), counts.astype(bool))


def test_one_label_an_example_at_a_position() -> None:
    logits = drawn(2, EXAMPLES, POSITIONS, CLASSES)
    values, _ = CrossEntropy([1, 2, 3], position=-1).evaluate(logits, BATCH)
    np.testing.assert_allclose(values, -np.log(softmax(logits)[[0, 1, 2], [3, 2, 1], [1, 2, 3]]))
