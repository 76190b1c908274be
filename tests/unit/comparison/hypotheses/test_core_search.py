"""The core that reproduces the port's output is found from the reference's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_parts import INTERLEAVED, HeadNorm, Mask, Rotary
from embgrad.comparison.hypotheses.core_search import Places, ported_core
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Source
from tests.unit.comparison.hypotheses.attended import BEFORE, HEADS, OTHER, REAL, SIZE
from tests.unit.comparison.hypotheses.planted import site_of

SOURCES = [Source(name, BEFORE[name]) for name in (f"layers.0.attention.{role}" for role in "qkv")]
ROTARY = Rotary(10000.0, SIZE)
CORE = Core(*SOURCES, HEADS, SIZE**-0.5, REAL, mask=Mask(causal=True), rotary=ROTARY)


def site_with(b: np.ndarray, declared: dict[str, object] | None = None) -> Site:
    return site_of(CORE.predicted, b, BEFORE, real=REAL, settings=({}, declared or {}))


@pytest.mark.parametrize(
    "b",
    [
        replace(CORE, cap=20.0, rotary=replace(ROTARY, layout=INTERLEAVED)),
        replace(CORE, mask=Mask(), scale=1.0),
        replace(CORE, cap=30.0, scale=1.0, rotary=replace(ROTARY, base=1e6)),
        replace(CORE, scale=0.0707, rotary=replace(ROTARY, base=345.0)),
    ],
    ids=["cap and layout", "mask and scale", "three", "two numbers"],
)
def test_several_settings_are_found(b: Core) -> None:
    found = ported_core(site_with(b.predicted), CORE)
    assert found is not None
    assert (found.scale, found.cap, found.mask, found.rotary) == (b.scale, b.cap, b.mask, b.rotary)


def test_several_settings_are_not_searched_where_that_was_in_vain() -> None:
    b = replace(CORE, mask=Mask(), rotary=replace(ROTARY, layout=INTERLEAVED))
    assert ported_core(site_with(b.predicted), CORE, deep=False) is None


def test_likely_cores_come_first() -> None:
    b = replace(CORE, scale=0.0123456789)
    assert ported_core(site_with(b.predicted), CORE, [CORE, b]) is b


def test_the_norms_of_another_layer_have_its_gains_where_these_are_weights() -> None:
    first, second, third, fourth, other = np.random.default_rng(0).normal(size=(5, SIZE))
    for norm, wanted in (((first, second), (third, fourth)), ((second, other), (fourth, other))):
        at = [
            site_of(CORE.predicted, CORE.predicted, BEFORE, weights={"layers.0.q": query, "layers.0.k": key})
            for query, key in ((first, second), (third, fourth))
        ]
        found = Places.of(at[0], replace(CORE, norm=HeadNorm(*norm)))
        again = None if found is None else found.at(at[1])
        assert again is not None
        assert again.norm is not None
        np.testing.assert_array_equal([again.norm.query, again.norm.key], wanted)


def test_declared_settings_of_the_port_are_tried() -> None:
    b = replace(CORE, rotary=replace(ROTARY, base=654.321))
    found = ported_core(site_with(b.predicted, {"rotary_base": 654.321}), CORE)
    assert found is not None
    assert found.rotary == b.rotary


def test_one_setting_may_leave_a_small_share() -> None:
    b = replace(CORE, scale=1.0).predicted
    found = ported_core(site_with(b + 1e-3 * OTHER), CORE)
    assert found is not None
    assert found.scale == 1.0
    assert ported_core(site_with(b + 0.1 * OTHER), CORE) is None


def test_what_rounding_leaves_of_the_reference_bounds_what_may_be_left_of_the_port() -> None:
    a = CORE.predicted * (1 + 1e-6 * np.sign(OTHER))
    site = site_of(a, replace(CORE, scale=1.0).predicted + 0.05 * OTHER, BEFORE, real=REAL)
    assert ported_core(site, CORE) is None


def test_a_core_leaves_less_than_a_quarter_of_the_difference_whatever_rounding_causes() -> None:
    site = site_with(replace(CORE, scale=1.0).predicted)
    found = ported_core(replace(site, floor=site.difference / 8), CORE, [CORE])
    assert found is not None
    assert found.scale == 1.0


def test_settings_that_change_nothing_are_those_of_the_reference() -> None:
    b = replace(CORE, scale=0.425, mask=Mask(causal=True, padding=False, window=9), rotary=replace(ROTARY, ahead=0))
    found = ported_core(site_with(b.predicted), CORE, [b])
    assert found is b  # padding is on the right, and no text is longer than the window
    found = ported_core(site_with(b.predicted), CORE)
    assert found is not None
    assert (found.scale, found.mask) == (0.425, CORE.mask)


@pytest.mark.parametrize(("factor", "found"), [(1 + 5e-5, False), (1 + 5e-4, True)])
def test_a_number_that_differs_as_another_cause_leaves_it_is_not_found(factor: float, found: bool) -> None:
    b = replace(CORE, scale=factor * CORE.scale)
    assert (ported_core(site_with(b.predicted), CORE, deep=False) is not None) is found
