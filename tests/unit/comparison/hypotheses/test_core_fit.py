"""The core that reproduces the reference's output is found."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.core_fit import fitted_core, part_of, scales, turned_size
from embgrad.comparison.hypotheses.core_parts import INTERLEAVED, Mask, Rotary
from tests.unit.comparison.hypotheses.attended import BEFORE, HEADS, REAL, SIZE, attended
from tests.unit.comparison.hypotheses.planted import site_of

B = attended(scale=2.0)


@pytest.mark.parametrize(
    ("settings", "mask", "rotary"),
    [
        ({}, Mask(causal=True), None),
        ({"seen": lambda row, column: abs(row - column) <= 2}, Mask(window=2), None),
        ({"seen": lambda row, column: column <= row + 1}, Mask(causal=True, shift=1), None),
        ({"seen": lambda row, column: True, "padding": False}, Mask(padding=False), None),
        ({"rotary": {"base": 160000.0}}, Mask(causal=True), Rotary(160000.0, SIZE)),
        ({"rotary": {"base": 1e6, "turned": 4}}, Mask(causal=True), Rotary(1e6, 4)),
        ({"rotary": {"base": 1e4, "turned": 4, "interleaved": True}}, Mask(causal=True), Rotary(1e4, 4, INTERLEAVED)),
    ],
)
def test_settings_are_found(settings: dict[str, Any], mask: Mask, rotary: Rotary | None) -> None:
    found = fitted_core(site_of(attended(**settings), B, BEFORE, real=REAL))
    assert found is not None
    assert (found.heads, found.scale, found.mask, found.rotary) == (HEADS, 1 / math.sqrt(SIZE), mask, rotary)


def test_numbers_are_fitted() -> None:
    found = fitted_core(site_of(attended(scale=0.55, rotary={"base": 2222.0}), B, BEFORE, real=REAL))
    assert found is not None
    assert found.rotary is not None
    assert (found.scale, found.rotary.base) == (0.55, 2222.0)


def test_nothing_reproduces_another_function() -> None:
    assert fitted_core(site_of(np.sin(attended()), B, BEFORE, real=REAL)) is None


def test_a_part_has_the_longest_and_the_shortest_text_and_few_heads() -> None:
    site = site_of(B, B, BEFORE, real=REAL)
    part = part_of(site, 12)
    assert [part.examples.tolist(), part.rows.tolist(), part.heads.tolist()] == [[0, 1], list(range(6)), [0, 1, 11]]
    assert part_of(site, 1, examples=1, rows=3).rows.tolist() == [0, 4, 8]


def test_scales_begin_with_those_that_are_declared() -> None:
    assert scales({"attention_scale": 0.3}, 4, 16) == [0.3, 0.25, 1.0, 1 / 16, 1 / 8, 1 / math.sqrt(32)]
    assert scales({"attention_scale": "auto"}, 1, 4)[:2] == [0.5, 1.0]


@pytest.mark.parametrize(("size", "share", "wanted"), [(64, 0.25, 16), (80, 0.4, 32), (8, 0.1, 2), (10, 0.5, 4)])
def test_an_even_number_of_features_is_turned(size: int, share: float, wanted: int) -> None:
    assert turned_size(size, share) == wanted
