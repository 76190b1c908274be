"""A mask shows the keys of its definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.core_parts import Mask, Soft

REAL = np.array([[True, True, True, False]])


@pytest.mark.parametrize(
    ("mask", "wanted"),
    [
        (Mask(), ["1110", "1110", "1110", "1110"]),
        (Mask(padding=False), ["1111", "1111", "1111", "1111"]),
        (Mask(causal=True), ["1000", "1100", "1110", "1110"]),
        (Mask(causal=True, padding=False), ["1000", "1100", "1110", "1111"]),
        (Mask(causal=True, shift=-1), ["0000", "1000", "1100", "1110"]),
        (Mask(causal=True, shift=1), ["1100", "1110", "1110", "1110"]),
        (Mask(causal=True, window=2), ["1000", "1100", "0110", "0010"]),
        (Mask(causal=True, shift=-1, itself=True), ["1000", "1000", "1100", "1110"]),
        (Mask(window=1), ["1100", "1110", "0110", "0010"]),
    ],
)
def test_keys_are_seen(mask: Mask, wanted: list[str]) -> None:
    seen = mask.seen(REAL, np.arange(4))[0]
    assert ["".join(map(str, row.astype(int))) for row in seen] == wanted


@pytest.mark.parametrize(
    ("keys", "hard"),
    [("padding", Mask(causal=True, window=2, padding=False)), ("positions", Mask()), ("all", Mask(padding=False)),
        ("text", Mask(causal=True, window=2, padding=False))],
)  # fmt: skip
def test_keys_with_a_finite_number_are_not_hidden(keys: str, hard: Mask) -> None:
    mask = Mask(causal=True, window=2)
    soft = replace(mask, soft=Soft(keys, 3.0))
    np.testing.assert_array_equal(soft.hard.seen(REAL, np.arange(4)), hard.seen(REAL, np.arange(4)))
    np.testing.assert_array_equal(soft.seen(REAL, np.arange(4)), mask.seen(REAL, np.arange(4)))


def test_of_an_inverted_mask_the_keys_at_padding_are_kept() -> None:
    mask = Mask(causal=True, soft=Soft("text", 1e4))
    assert mask.kept(REAL, np.arange(2)).tolist() == [[[False, False, False, True]] * 2]
    other = replace(mask, soft=Soft("padding", 1e4))
    np.testing.assert_array_equal(other.kept(REAL, np.arange(4)), other.seen(REAL, np.arange(4)))


def test_some_rows_are_those_of_all() -> None:
    rows = np.array([3, 1])
    mask = Mask(causal=True, window=2)
    np.testing.assert_array_equal(mask.seen(REAL, rows), mask.seen(REAL, np.arange(4))[:, rows])
