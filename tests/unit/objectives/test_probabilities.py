"""Which outputs count as probabilities."""

from __future__ import annotations

import numpy as np

import embgrad


def test_probabilities_computed_in_bfloat16_may_sum_to_a_little_more_than_one() -> None:
    """Such as these of a softmax in TensorFlow."""
    output = np.array([[0.0869140625, 0.890625, 0.0283203125]])
    values, cotangent = embgrad.CrossEntropy([1], of="probabilities").evaluate(output, embgrad.TokenBatch([[1]]))
    np.testing.assert_allclose(values, -np.log([0.890625]))
    np.testing.assert_allclose(cotangent, [[0, -1 / 0.890625, 0]])
