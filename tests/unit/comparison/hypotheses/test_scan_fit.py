"""Scans are told apart in a few places."""

from __future__ import annotations

import numpy as np

from embgrad.comparison.hypotheses.scan_fit import Sample
from tests.unit.comparison.hypotheses.planted import site_of


def test_a_sample_has_the_longest_examples_and_leaves_out_features() -> None:
    values = np.random.default_rng(1).normal(size=(3, 30, 40))
    real = np.arange(30) < np.array([[3], [30], [20]])
    few = Sample(site_of(values, values, {"x": values}, real=real))
    np.testing.assert_array_equal(few.at("x"), values[[1, 2]])
    np.testing.assert_array_equal(few.of(values, 4), values[[1, 2], :4])
    assert few.features.tolist() == list(range(0, 40, 3))
    assert few.counting(25).tolist() == [[True] * 25, [True] * 20 + [False] * 5]
    behind = Sample(site_of(values, values, {"x": values}, real=real[:, ::-1] & (np.arange(30) > 8)))
    assert behind.counting(8).all()
