"""Numbers of a core are fitted to its outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_fit import _improved, fitted_numbers, number_of, settled, with_number
from embgrad.comparison.hypotheses.core_parts import HeadNorm, Mask, Rotary, Scaling
from embgrad.comparison.hypotheses.sources import Source, relative
from tests.unit.comparison.hypotheses.attended import BEFORE, HEADS, REAL, SIZE

SOURCES = [Source(name, BEFORE[f"layers.0.attention.{name}"]) for name in "qkv"]
CORE = Core(*SOURCES, HEADS, SIZE**-0.5, REAL, mask=Mask(causal=True), rotary=Rotary(10000.0, SIZE))


@pytest.mark.parametrize(
    "planted", [{"scale": 0.07}, {"base": 333.0}, {"cap": 1.5}, {"factor": 3.0}, {"scale": 0.9, "base": 70000.0}]
)
def test_numbers_are_found(planted: dict[str, float]) -> None:
    wanted = CORE
    for name, number in planted.items():
        wanted = with_number(wanted, name, number)
    found = fitted_numbers(CORE, CORE.whole, wanted.part(CORE.whole), tuple(planted))
    assert {name: number_of(found, name) for name in planted} == pytest.approx(planted, rel=1e-6)


def test_the_epsilon_of_the_norms_of_heads_is_found() -> None:
    core = replace(CORE, norm=HeadNorm(np.ones(SIZE), np.ones(SIZE), 1e-6))
    found = fitted_numbers(core, core.whole, with_number(core, "epsilon", 0.03).part(core.whole), ("epsilon",))
    assert number_of(found, "epsilon") == pytest.approx(0.03)
    assert number_of(with_number(core, "epsilon", 0.0), "epsilon") is None


def test_a_core_without_a_number_has_none() -> None:
    assert number_of(CORE, "cap") is None
    assert number_of(CORE, "factor") is None
    assert number_of(CORE, "epsilon") is None
    assert number_of(replace(CORE, rotary=None), "base") is None
    assert number_of(with_number(CORE, "factor", 3.0), "factor") == 3.0


def test_a_core_that_fits_is_left() -> None:
    assert _improved(CORE, CORE.whole, CORE.part(CORE.whole), ("scale", "base")) is CORE


def settled_to(wanted: Core, near: Core, most: float) -> Core:
    return settled(near, lambda core: relative(core.predicted, wanted.predicted), most)


def test_numbers_become_short() -> None:
    wanted = replace(CORE, scale=0.3, rotary=Rotary(12000.0, SIZE))
    near = replace(CORE, scale=0.3000000001, rotary=Rotary(12000.00001, SIZE, scaling=Scaling("linear", 1.0)), cap=1e9)
    found = settled_to(wanted, near, 1e-7)
    assert (found.scale, found.cap, found.rotary) == (0.3, None, Rotary(12000.0, SIZE))


def test_a_number_that_is_needed_stays() -> None:
    wanted = replace(CORE, scale=0.123456789, cap=2.0)
    found = settled_to(wanted, wanted, 1e-9)
    assert (found.scale, found.cap) == (0.123456789, 2.0)


@pytest.mark.parametrize(
    ("off", "most", "scale"),
    [(1.9, 10, 2.0), (2.1, 10, 2.001), (1.9, 1.8, 2.001), (1.1, 0.5, 2.0), (1.3, 0.5, 2.001)],
)
def test_a_short_number_may_be_twice_as_far_off_within_the_limit(off: float, most: float, scale: float) -> None:
    core = replace(CORE, scale=2.001, rotary=None)
    assert settled(core, lambda it: 1.0 if it.scale == core.scale else off, most).scale == scale


def test_roots_of_whole_numbers_are_preferred() -> None:
    found = settled_to(replace(CORE, scale=24**-0.5), replace(CORE, scale=0.2041241453), 1e-5)
    assert found.scale == pytest.approx(24**-0.5, rel=1e-14)


def test_a_scale_that_is_only_near_the_root_of_a_whole_number_is_not_that() -> None:
    assert settled(replace(CORE, scale=0.2652), lambda _: 0.006, 0.1).scale == 0.3


def test_rotary_positions_with_frequencies_of_nearly_zero_are_missing() -> None:
    assert settled_to(replace(CORE, rotary=None), with_number(CORE, "factor", 1e9), 1e-7).rotary is None


@pytest.mark.parametrize("number", [0.3, 0.31, 0.314, 0.3141, 0.31415, 0.314159])
def test_numbers_are_as_short_as_they_fit(number: float) -> None:
    wanted = replace(CORE, scale=number, rotary=Rotary(1e5 * number, SIZE))
    near = replace(CORE, scale=number * (1 + 1e-9), rotary=Rotary(1e5 * number * (1 + 1e-9), SIZE))
    found = settled_to(wanted, near, 1e-8)
    assert (found.scale, found.rotary and found.rotary.base) == (number, pytest.approx(1e5 * number, rel=1e-15))
