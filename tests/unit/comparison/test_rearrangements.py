"""The rearrangements of a gradient by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from embgrad.comparison.align import aligned
from embgrad.comparison.diagnosis.case import Case
from embgrad.comparison.diagnosis.rearrangements import STRUCTURES, Prediction, order_padded_on, rearrangements
from tests.unit.comparison.test_factors import result

IDS = np.array([[7, 5, 7, 0]])
MASK = np.array([[1, 1, 1, 0]])
VALUES = np.array([[[1.0, -2.0], [3.0, 4.0], [0.0, 0.0], [5.0, 6.0]]])


def case(wanted: np.ndarray = VALUES, values: np.ndarray = VALUES) -> Case:
    base = result(ids=IDS, mask=MASK, dim=2)
    source, target = (replace(base, values=array, activations=2 * array) for array in (values, wanted))
    return Case(source, target, aligned(source, target), 1e-6)


def made(cause: str, at: Case | None = None) -> list[tuple[str, list[Any]]]:
    at = case() if at is None else at
    return [(text, values[0].tolist()) for text, values in STRUCTURES[cause](at, at.values)]


def test_zeros_at_padding() -> None:
    assert made("pads-zeroed") == [("that b was set to zero at padding", [[1, -2], [3, 4], [0, 0], [0, 0]])]


def test_shifts_of_up_to_three_positions() -> None:
    found = made("position-shift")
    texts = [
        f"a shift by {n} position{'s' if n > 1 else ''} to the {side} in b"
        for n in (1, 2, 3)
        for side in ("right", "left")
    ]
    assert [text for text, _ in found] == texts
    np.testing.assert_array_equal(found[0][1], [[np.nan, np.nan], [1, -2], [3, 4], [0, 0]])
    np.testing.assert_array_equal(found[3][1], [[0, 0], [5, 6], [np.nan, np.nan], [np.nan, np.nan]])
    short = case(VALUES[:, :1], VALUES[:, :1])
    assert list(STRUCTURES["position-shift"](short, VALUES[:, :1])) == []
    wide = np.zeros((1, 9, 2))
    assert len(list(STRUCTURES["position-shift"](short, wide))) == 6


def test_padding_on_either_side() -> None:
    (found,) = made("padding-side")
    assert found == ("that b is laid out with the padding on the left", [[5, 6], [1, -2], [3, 4], [0, 0]])
    assert order_padded_on(np.array([[True, False, True]]), "right").tolist() == [[0, 2, 1]]
    assert order_padded_on(np.array([[True, False, True]]), "left").tolist() == [[1, 0, 2]]


def test_magnitudes_without_a_sign() -> None:
    assert made("absolute-value") == []  # b has negative numbers
    (found,) = made("absolute-value", case(wanted=np.abs(VALUES)))
    assert found == ("that b holds magnitudes without a sign", np.abs(VALUES)[0].tolist())


def test_scaled_to_length_one() -> None:
    (each, example, whole) = made("normalised")
    assert [text for text, _ in (each, example, whole)] == [
        f"that {what} of b was scaled to length 1" for what in ("each position", "each example", "the whole")
    ]
    root = 5**0.5
    np.testing.assert_allclose(each[1], [[1 / root, -2 / root], [0.6, 0.8], [0, 0], [5 / 61**0.5, 6 / 61**0.5]])
    np.testing.assert_allclose(example[1], VALUES[0] / 91**0.5)
    np.testing.assert_allclose(whole[1], VALUES[0] / 91**0.5)
    huge = list(STRUCTURES["normalised"](case(), VALUES * 1e200))
    np.testing.assert_allclose(huge[2][1], VALUES / 91**0.5)


def test_times_the_embedding() -> None:
    (found,) = made("gradient-times-input")
    assert found == ("that b is the gradient times the embedding", (2 * VALUES**2)[0].tolist())


def test_summed_over_repeats() -> None:
    with_padding, without = made("summed-repeats")
    assert with_padding[1] == [[1, -2], [3, 4], [1, -2], [5, 6]]
    assert without[1] == [[1, -2], [3, 4], [1, -2], [0, 0]]
    broken = VALUES.copy()
    broken[0, 2, 0] = np.nan
    assert next(STRUCTURES["summed-repeats"](case(), broken))[1][0, 0].tolist() == [1, -2]


def test_a_second_cause_is_another_one() -> None:
    first = Prediction(("padding-side",), "moved", VALUES)
    found = list(rearrangements(case(), first))
    assert found[0].causes == ("padding-side", "pads-zeroed")
    assert found[0].text == "moved, and that b was set to zero at padding"
    assert all("padding-side" not in each.causes[1:] for each in found)
    alone = next(iter(rearrangements(case(), Prediction((), "", VALUES))))
    assert (alone.causes, alone.text) == (("pads-zeroed",), "that b was set to zero at padding")
