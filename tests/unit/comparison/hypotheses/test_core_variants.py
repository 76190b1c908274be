"""Cores that differ in one setting are those that ports have by mistake."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_difference import differences
from embgrad.comparison.hypotheses.core_parts import HeadNorm, Mask, PositionBias, Rotary, Scaling
from embgrad.comparison.hypotheses.core_variants import variants, with_settings_of
from embgrad.comparison.hypotheses.sources import Source
from tests.unit.comparison.hypotheses.attended import BEFORE, HEADS, QUERY, REAL, SIZE
from tests.unit.comparison.hypotheses.planted import site_of

SOURCES = [Source(name, BEFORE[name]) for name in (f"layers.0.attention.{role}" for role in "qkv")]
CORE = Core(*SOURCES, HEADS, SIZE**-0.5, REAL, mask=Mask(causal=True), rotary=Rotary(10000.0, SIZE))
SITE = site_of(QUERY, QUERY, BEFORE, real=REAL, settings=({}, {"window": 5, "rotary_base": 77.0, "attention_cap": 3}))


def causes_of(core: Core, *, rare: bool = True) -> set[str]:
    return {found.cause for variant in variants(SITE, core, rare=rare) for found in differences(core, variant)}


def test_every_kind_of_setting_is_changed() -> None:
    assert causes_of(CORE) == {
        "attention-scale",
        "attention-cap",
        "attention-causal",
        "attention-window",
        "attention-shift",
        "mask-ignored",
        "attention-heads",
        "attention-groups",
        "attention-bias",
        "swapped-weights",
        "missing-norm",  # the values' projection has its input among the tensors
        "rotary-base",
        "rotary-scaling",
        "rotary-layout",
        "rotary-partial",
        "rotary-offset",
        "missing-rotary",
    } - {"missing-norm"}


def test_declared_numbers_are_among_them() -> None:
    found = list(variants(SITE, CORE))
    assert any(core.rotary and core.rotary.base == 77.0 for core in found)
    assert any(core.cap == 3.0 for core in found)
    assert any(core.mask.window == 5 for core in found)


def test_every_variant_can_be_computed() -> None:
    norm = HeadNorm(np.arange(1.0, 9), np.arange(2.0, 10))
    table = PositionBias(np.ones((8, HEADS)))
    scaled = replace(CORE, rotary=Rotary(10000.0, 4, scaling=Scaling("llama3", 8.0)))
    for core in (CORE, replace(CORE, norm=norm), replace(CORE, bias=table), replace(CORE, rotary=None), scaled):
        for variant in variants(SITE, core):
            assert np.isfinite(variant.predicted[REAL]).all()


def test_norms_are_changed() -> None:
    core = replace(CORE, norm=HeadNorm(np.arange(1.0, 9), np.arange(2.0, 10)))
    assert {"missing-norm", "layer-norm-epsilon", "norm-offset", "norm-order", "different-weight"} <= causes_of(core)


def test_rare_changes_are_left_out_where_several_settings_change() -> None:
    usual, every = (list(variants(SITE, CORE, rare=rare)) for rare in (False, True))
    assert len(usual) < len(every)
    assert {core.mask.window for core in usual} == {None, 1, 2, 4, 5, 8}


def test_settings_are_taken_back_one_by_one() -> None:
    changed = replace(CORE, scale=1.0, cap=3.0, mask=Mask(window=4), rotary=Rotary(77.0, SIZE))
    found = [function(changed) for function in with_settings_of(changed, CORE)]
    assert [one.cap for one in found].count(None) == 1
    assert [one.scale for one in found].count(CORE.scale) == 1
    assert [one.mask for one in found if one.mask != changed.mask] == [Mask(causal=True, window=4), Mask()]
    assert [one.rotary for one in found if one.rotary != changed.rotary] == [CORE.rotary]
    whole = changed
    for function in with_settings_of(changed, CORE):
        whole = function(whole)
    assert not differences(CORE, whole)


def test_a_missing_setting_is_taken_back() -> None:
    without = replace(CORE, rotary=None)
    (function,) = with_settings_of(without, CORE)
    assert function(without).rotary == CORE.rotary


def test_an_even_number_of_features_is_turned() -> None:
    sizes = {core.rotary.size for core in variants(SITE, CORE) if core.rotary and core.heads == HEADS}
    assert sizes == {2, 4, 6, 8}


def test_the_scaling_that_the_port_declares_is_among_them() -> None:
    settings = ({}, {"rotary_scaling": "linear", "rotary_factor": 3.7})
    site = replace(SITE, settings=settings)
    assert any(core.rotary and core.rotary.scaling == Scaling("linear", 3.7) for core in variants(site, CORE))


def test_the_number_of_turned_features_stays_where_heads_have_another_size() -> None:
    wide = replace(CORE, heads=2, rotary=Rotary(500.0, 16))
    found = [function(wide).rotary for function in with_settings_of(wide, CORE)]
    assert found == [Rotary(10000.0, 16)]
