"""Norms of heads have the values of their definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embgrad.comparison.hypotheses.core_parts import HeadNorm, gains_of
from embgrad.comparison.weights import Matching
from tests.unit.comparison.hypotheses.planted import site_of

GAIN, OTHER = np.array([1.0, 2.0]), np.array([3.0, 5.0])


def test_queries_and_keys_have_their_own_gains() -> None:
    # The mean of squares of (3, 4) is 12.5; with epsilon 12.5 the root is 5.
    query, key = HeadNorm(GAIN, OTHER, 12.5).apply(np.array([3.0, 4.0]), np.array([4.0, 3.0]))
    np.testing.assert_allclose(query, [0.6, 1.6])
    np.testing.assert_allclose(key, [2.4, 3.0])


def test_queries_or_keys_alone_may_go_through_a_norm() -> None:
    x, y = np.array([3.0, 4.0]), np.array([4.0, 3.0])
    for norm in (HeadNorm(GAIN, None, 12.5), HeadNorm(None, OTHER, 12.5)):
        query, key = norm.apply(x, y)
        np.testing.assert_allclose(query, [0.6, 1.6] if norm.roles == ("queries",) else x)
        np.testing.assert_allclose(key, [2.4, 3.0] if norm.roles == ("keys",) else y)


def test_each_head_has_its_own_gain_and_the_mean_may_be_subtracted() -> None:
    # (3, 5) less its mean is (-1, 1), whose mean of squares is 1; with epsilon 3 the root is 2.
    norm = HeadNorm(np.array([[2.0, 4.0], [6.0, 8.0]]), np.array([[1.0, 1.0], [10.0, 20.0]]), 3.0, centred=True)
    x = np.array([3.0, 5.0])
    query, key = norm.of(np.array([1, 0]), np.array([0, 1])).apply(np.stack([x, x]), np.stack([x, x]))
    np.testing.assert_allclose(query, [[-3.0, 4.0], [-1.0, 2.0]])
    np.testing.assert_allclose(key, [[-0.5, 0.5], [-5.0, 10.0]])
    same, other = HeadNorm(GAIN, None).of(np.array([1]), np.array([0])).apply(x, x)
    np.testing.assert_array_equal(other, x)
    assert same.shape == x.shape


def test_all_heads_may_be_normalised_together() -> None:
    # The mean of squares of (1, 1) and (5, 5) is 13; with epsilon 3 the root is 4. Their mean is 3, and the variance 4.
    gains = np.array([[1.0, 2.0], [3.0, 4.0]])
    norm = HeadNorm(gains, gains[:, ::-1], 3.0, across=True)
    x, whole = np.array([[1.0, 1.0], [5.0, 5.0]]), np.array([1.0, 1.0, 5.0, 5.0])
    query, key = norm.apply(x, x, (whole, 2 * whole))
    np.testing.assert_allclose(query, x / 4 * gains)
    np.testing.assert_allclose(key, x / np.sqrt(55) * gains[:, ::-1])
    query, _ = replace(norm, centred=True, epsilon=5.0).apply(x, x, (whole, whole))
    np.testing.assert_allclose(query, (x - 3) / 3 * gains)
    each = np.array([[1.0, 3.0], [5.0, 7.0]])  # each head has a mean and a variance of its own
    apart, _ = replace(norm, across=False, centred=True).apply(each, each)
    np.testing.assert_allclose(apart, np.array([[-1, 1], [-1, 1]]) / 2 * gains)
    np.testing.assert_allclose(
        replace(norm, across=False).apply(x, x, (whole, whole))[0][1], 5 / np.sqrt(28) * gains[1]
    )


def test_an_offset_is_added_to_gains() -> None:
    query, _ = HeadNorm(GAIN, OTHER, 12.5, offset=1.0).apply(np.array([3.0, 4.0]), np.ones(2))
    np.testing.assert_allclose(query, [1.2, 2.4])


def test_gains_are_the_weights_of_the_heads_size_in_the_layer() -> None:
    x = np.ones((1, 2, 4))
    site = site_of(x, 2 * x, {}, weights={"k.w": GAIN, "norm.w": np.ones(4), "q.w": OTHER})
    np.testing.assert_array_equal(gains_of(site, 2), [GAIN, OTHER])


def test_gains_that_b_alone_has() -> None:
    x = np.ones((1, 2, 4))
    site = site_of(x, 2 * x, {}, weights={"k.w": GAIN, "q.w": OTHER})
    site = replace(site, matching=Matching((), {}, (), ("q.w",)), recordings=site.recordings[::-1])
    np.testing.assert_array_equal(gains_of(site, 2, of_b_alone=True), [OTHER])


def test_four_gains_of_the_sites_own_layer_are_tried() -> None:
    x = np.ones((1, 2, 4))
    site = site_of(x, 2 * x, {}, weights={f"norm{number}.w": np.full(2, float(number)) for number in range(7)})
    assert [gain[0] for gain in gains_of(site, 2)] == [0, 1, 2, 3]
    held = tuple(replace(weight, layer=number % 2) for number, weight in enumerate(site.recordings[0].weights))
    recording = replace(site.recordings[0], weights=held)
    site = replace(site, recordings=(recording, recording), layer=1)
    assert [gain[0] for gain in gains_of(site, 2)] == [1, 3, 5]
    assert gains_of(replace(site, layer=None), 2) == gains_of(site, 3) == []
