"""Biases by distance have the numbers of their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from embgrad.comparison.hypotheses.core_parts import PositionBias, slopes_of


@pytest.mark.parametrize(
    ("heads", "wanted"),
    [
        (4, [1 / 4, 1 / 16, 1 / 64, 1 / 256]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        (6, [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]),
    ],
)
def test_slopes_are_those_of_alibi(heads: int, wanted: list[float]) -> None:
    np.testing.assert_allclose(slopes_of(heads), wanted)


def test_alibi_falls_with_the_distance() -> None:
    np.testing.assert_allclose(PositionBias().of(4, 3)[1], -np.array([[0, 1, 2], [1, 0, 1], [2, 1, 0]]) / 16)


# Eight buckets up to distance 32: four on each side, two of them exact, then from 2, and from 2 · 16^(1/2) = 8.
TABLE = np.arange(8.0)[:, None]
BOTH_SIDES = {0: 0, -1: 1, -2: 2, -7: 2, -8: 3, -40: 3, 1: 5, 2: 6, 7: 6, 8: 7, 40: 7}
# Eight for earlier keys: four exact, then from 4 · 8^(i/4): 4, 6.7, 11.3, 19.03.
EARLIER = {5: 0, 0: 0, -3: 3, -4: 4, -6: 4, -7: 5, -11: 5, -12: 6, -19: 6, -20: 7, -50: 7}


@pytest.mark.parametrize(("causal", "wanted"), [(False, BOTH_SIDES), (True, EARLIER)])
def test_distances_are_in_their_buckets(causal: bool, wanted: dict[int, int]) -> None:
    bias = PositionBias(TABLE, causal, 32).of(1, 60)[0]
    row = 50
    assert {
        ahead: int(bias[row if ahead < 9 else 10, (row if ahead < 9 else 10) + ahead]) for ahead in wanted
    } == wanted


def test_distances_may_be_taken_backwards() -> None:
    plain, turned = (PositionBias(TABLE, longest=32, sense=sense).of(1, 5)[0] for sense in (1, -1))
    np.testing.assert_array_equal(turned, plain.T)


def test_a_factor_multiplies_the_numbers() -> None:
    plain, scaled = (PositionBias(TABLE, factor=factor) for factor in (1.0, 0.125))
    np.testing.assert_array_equal(scaled.of(1, 4), plain.of(1, 4) / 8)
    assert scaled.text == f"{plain.text}, times 0.125"


def test_texts_say_the_kind() -> None:
    assert PositionBias().text == "that of ALiBi"
    assert PositionBias(slopes=np.array([0.5, -0.25])).text == "by the slopes 0.5, -0.25"
    assert PositionBias(slopes=2.0 ** np.arange(5)).text == "by the slopes 1, 2, 4, 8, …"
    assert PositionBias(TABLE, True, 32).text == "by 8 buckets of earlier keys up to distance 32"
    assert PositionBias(TABLE, sense=-1).text == (
        "by 8 buckets of both sides up to distance 128, of the opposite distances"
    )
