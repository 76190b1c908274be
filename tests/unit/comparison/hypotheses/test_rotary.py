"""Rotary positions turn pairs of features by the angles of their definition."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.core_parts import INTERLEAVED, Rotary, Scaling

POSITIONS = np.array([0, 2])
# At base 16 and size 4 the frequencies are 1 and 1/4: at position 2 the angles are 2 and 1/2.
COS, SIN, COS_HALF, SIN_HALF = math.cos(2), math.sin(2), math.cos(0.5), math.sin(0.5)
VALUES = np.broadcast_to(np.array([1.0, 10.0, 100.0, 1000.0, 7.0]), (1, 2, 1, 5))


def turned(rotary: Rotary) -> list[float]:
    return list(rotary.turn_queries(VALUES, POSITIONS)[0, 1, 0])


def test_halves_are_turned() -> None:
    wanted = [COS - 100 * SIN, 10 * COS_HALF - 1000 * SIN_HALF, 100 * COS + SIN, 1000 * COS_HALF + 10 * SIN_HALF, 7]
    np.testing.assert_allclose(turned(Rotary(16.0, 4)), wanted)


def test_neighbours_are_turned() -> None:
    wanted = [COS - 10 * SIN, 10 * COS + SIN, 100 * COS_HALF - 1000 * SIN_HALF, 1000 * COS_HALF + 100 * SIN_HALF, 7]
    np.testing.assert_allclose(turned(Rotary(16.0, 4, INTERLEAVED)), wanted)


def test_the_first_position_is_not_turned() -> None:
    np.testing.assert_array_equal(Rotary(16.0, 4).turn_keys(VALUES, POSITIONS)[0, 0, 0], VALUES[0, 0, 0])


def test_only_the_first_features_are_turned() -> None:
    np.testing.assert_allclose(turned(Rotary(16.0, 2)), [COS - 10 * SIN, 10 * COS + SIN, 100, 1000, 7])


def test_angles_may_have_the_opposite_sign() -> None:
    np.testing.assert_allclose(turned(Rotary(16.0, 2, sense=-1)), [COS + 10 * SIN, 10 * COS - SIN, 100, 1000, 7])


def test_queries_and_keys_may_be_left() -> None:
    rotary = Rotary(16.0, 2, keys=False)
    np.testing.assert_array_equal(rotary.turn_keys(VALUES, POSITIONS), VALUES)
    np.testing.assert_array_equal(replace(rotary, queries=False).turn_queries(VALUES, POSITIONS), VALUES)
    assert turned(rotary)[0] == pytest.approx(COS - 10 * SIN)


def test_queries_may_be_ahead() -> None:
    ahead = Rotary(16.0, 2, ahead=1)
    np.testing.assert_allclose(turned(ahead)[:2], [math.cos(3) - 10 * math.sin(3), 10 * math.cos(3) + math.sin(3)])
    np.testing.assert_allclose(ahead.turn_keys(VALUES, POSITIONS)[0, 1, 0, 0], COS - 10 * SIN)


def test_linear_scaling_divides_all_frequencies() -> None:
    np.testing.assert_allclose(Scaling("linear", 4.0).apply(np.array([1.0, 0.25]), 16.0, 4), [0.25, 0.0625])


def test_llama3_divides_low_frequencies() -> None:
    # A length of 8 turns: more than 4 turns are kept, less than 1 are divided by 2, and 2.5 are halfway: 1/2 + 1/4.
    unit = 2 * math.pi / 8
    scaled = Scaling("llama3", 2.0, 1.0, 4.0, 8.0).apply(unit * np.array([5.0, 2.5, 0.5]), 16.0, 6)
    np.testing.assert_allclose(scaled, unit * np.array([5.0, 2.5 * 0.75, 0.25]))


def yarn(first: float, last: float, *, rounded: bool = True) -> list[float]:
    """Return the frequencies that yarn makes of ones in a head of eight features, where it changes between two indices.

    With base e² and size 8, the pair with the period length / turns has the index 2 log(length / (2π turns)).
    """
    turns = [math.exp(-index / 2) for index in (last, first)]
    scaling = Scaling("yarn", 4.0, *turns, 2 * math.pi * math.exp(0.5), rounded=rounded)
    return scaling.apply(np.ones(4), math.exp(2), 8).tolist()


def test_yarn_changes_between_the_first_pair_and_the_last_feature() -> None:
    # The first pair is kept, the second is halfway, and the others are divided by 4.
    for first in (-4, -1):
        np.testing.assert_allclose(yarn(first, 1), [1, 0.5 + 0.125, 0.25, 0.25])
    np.testing.assert_allclose(yarn(0.1, 1.1), [1, 1, 0.5 + 0.125, 0.25])  # between the indices 1 and 3, once rounded
    np.testing.assert_allclose(yarn(0.1, 1.1, rounded=False), [1, 1, 0.1 + 0.9 / 4, 0.25])
    np.testing.assert_allclose(yarn(-1, 19), [1 - 0.75 * pair / 7 for pair in range(4)])
    np.testing.assert_allclose(yarn(1, 1), [1, 1, 1, 0.25])
    np.testing.assert_allclose(yarn(1.5, 1.5, rounded=False), [1, 1, 1, 0.25])


def test_yarn_lengthens_where_it_divides() -> None:
    assert Scaling("linear", 4.0).length == 1.0
    assert Scaling("yarn", 1.5).length == pytest.approx(0.1 * math.log(1.5) + 1)
    assert Scaling("yarn", 1.0).length == Scaling("yarn", 0.5).length == 1.0
    scaled = Rotary(16.0, 2, scaling=Scaling("yarn", 2.0, 1.0, 2.0, 1e9))
    np.testing.assert_allclose(turned(scaled)[:2], (0.1 * math.log(2) + 1) * np.array([COS - 10 * SIN, 10 * COS + SIN]))


def test_sizes_follow_the_heads() -> None:
    assert Rotary(16.0, 8).of_head(16, 8).size == 4
    assert Rotary(16.0, 4).of_head(16, 4).size == 2
    assert Rotary(16.0, 4).of_head(8, 16).size == 8
    assert Rotary(16.0, 6).of_head(8, 4).size == 4  # 3 features are no pairs


def test_texts_name_the_numbers() -> None:
    assert Scaling("linear", 4.0).text == "linear with factor 4"
    assert Scaling("llama3", 8.0).text == "llama3 with factor 8, 1, 4 and length 8192"
    assert Scaling("yarn", 4.0, 1.0, 32.0, 64.0, rounded=False).text == (
        "yarn with factor 4, 1, 32 and length 64, without rounding"
    )
