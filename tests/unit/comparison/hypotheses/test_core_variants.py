"""Cores that differ in one setting are those that ports have by mistake."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses import core_variants
from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_difference import differences
from embgrad.comparison.hypotheses.core_parts import INTERLEAVED, ROUNDED, HeadNorm, Mask, PositionBias, Rotary, Scaling
from embgrad.comparison.hypotheses.core_variants import variants, with_settings_of
from embgrad.comparison.hypotheses.other_weights import OtherWeights
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Source
from embgrad.comparison.weights import Matching
from tests.unit.comparison.hypotheses.attended import BEFORE, HEADS, KEY, OTHER, QUERY, REAL, SIZE, VALUE
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
        "rotary-base",
        "rotary-scaling",
        "rotary-layout",
        "rotary-partial",
        "rotary-offset",
        "missing-rotary",
        "rotary-in-half",
        "missing-norm",
    }


def test_declared_numbers_are_among_them() -> None:
    found = list(variants(SITE, CORE))
    assert any(core.rotary and core.rotary.base == 77.0 for core in found)
    assert any(core.cap == 3.0 for core in found)
    assert any(core.mask.window == 5 for core in found)


def test_numbers_that_the_reference_alone_declares_are_among_them() -> None:
    for settings in (({"window": 6, "rotary_base": 9.0}, {}), ({"window": 3, "rotary_base": 9.0}, {"window": 6})):
        found = list(variants(replace(SITE, settings=settings), replace(CORE, mask=Mask()), rare=False))
        assert any(core.rotary and core.rotary.base == 9.0 for core in found)
        assert {core.mask.window for core in found} == {None, 1, 2, 3, 4, 6, 8}  # the port's, and its half


def test_every_variant_can_be_computed() -> None:
    norm = HeadNorm(np.arange(1.0, 9), np.arange(2.0, 10))
    table = PositionBias(np.ones((8, HEADS)))
    scaled = replace(CORE, rotary=Rotary(10000.0, 4, scaling=Scaling("llama3", 8.0)))
    for core in (CORE, replace(CORE, norm=norm), replace(CORE, bias=table), replace(CORE, rotary=None), scaled):
        for variant in variants(SITE, core):
            assert np.isfinite(variant.predicted[REAL]).all()


@pytest.mark.parametrize(("held", "tried"), [(np.ones(HEADS * SIZE), True), (np.ones((2, 2)), False), (None, True)])
def test_what_a_norm_is_given_may_be_attended_with_and_what_a_projection_is_given_not(
    held: np.ndarray | None, tried: bool
) -> None:
    before = {f"{SOURCES[0].name}:input": OTHER, **BEFORE}
    site = site_of(QUERY, QUERY, before, real=REAL, weights={} if held is None else {f"{SOURCES[0].name}.w": held})
    assert any(core.query.name == f"{SOURCES[0].name}:input" for core in variants(site, CORE)) is tried


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


def masks_of(mask: Mask, *, rare: bool = True, positions: int = 9) -> list[Mask]:
    site = SITE if positions == 9 else site_of(np.zeros((1, positions, 4)), np.zeros((1, positions, 4)), {})
    core = replace(CORE, mask=mask)
    found = [each for each in variants(site, core, rare=rare) if each.joined == core.joined]
    return [each.mask for each in found if each.mask != mask]


def test_masks_that_differ_in_one_setting() -> None:
    causal = Mask(causal=True)
    windows = [Mask(causal=True, window=size) for size in (5, 2, 1, 3, 4, 6, 7, 8)]  # 5 is declared
    others = [Mask(), Mask(causal=True, padding=False), Mask(causal=True, shift=-1), Mask(causal=True, shift=1)]
    others += [Mask(causal=True, shift=-1, blank=True), Mask(causal=True, shift=-1, itself=True)]
    assert masks_of(causal) == [*others, *windows]
    shifted = [Mask(), Mask(causal=True, shift=1, padding=False), Mask(causal=True, shift=-1), causal]
    assert masks_of(Mask(causal=True, shift=1))[:4] == shifted


def test_masks_that_differ_from_one_with_a_window() -> None:
    widths = (None, 5, 2, 1, 4, 8, 6, 8)  # the declared one and its half, powers of two, and its neighbours
    wanted = [Mask(causal=True, window=7), Mask(window=7, padding=False), *(Mask(window=size) for size in widths)]
    assert masks_of(Mask(window=7), rare=False) == wanted
    assert masks_of(Mask(window=1), rare=False)[2:] == [Mask(window=size) for size in (None, 5, 2, 4, 8, 2)]
    wide = [mask.window for mask in masks_of(Mask(), positions=70)]
    assert wide == [None, None, *range(1, 64)]  # causal, padding, and no more than 63 positions
    assert [mask.window for mask in masks_of(Mask(), positions=4)] == [None, None, 1, 2, 3]


def rotaries_of(rotary: Rotary | None, *, rare: bool = True) -> list[Rotary | None]:
    core = replace(CORE, rotary=rotary)
    found = [each.rotary for each in variants(SITE, core, rare=rare) if each.heads == HEADS]
    return [each for each in found if each != rotary]


#: The bases and the scalings that models have; 77 is declared.
BASES = (77.0, 10000.0, 1000000.0, 500000.0, 100000.0, 150000.0, 160000.0, 5000000.0, 1000.0)
SCALINGS = (
    *(Scaling("linear", factor) for factor in (2.0, 4.0, 8.0, 16.0, 0.5, 0.25)),
    *(Scaling("llama3", factor) for factor in (8.0, 32.0, 16.0)),
    Scaling("yarn", 4.0, 1.0, 32.0, 32768.0),
    Scaling("yarn", 4.0, 1.0, 32.0, 2048.0),
    Scaling("yarn", 40.0, 1.0, 32.0, 4096.0),
)


@pytest.mark.parametrize(("rare", "sizes", "pairs"), [(True, (2, 4, 6), (1, 2, 3)), (False, (2, 4), ())])
def test_rotary_positions_that_differ_in_one_setting(
    rare: bool, sizes: tuple[int, ...], pairs: tuple[int, ...]
) -> None:
    own = Rotary(1000.0, SIZE)
    assert rotaries_of(own, rare=rare) == [
        None,
        *(Rotary(base, SIZE) for base in BASES[:-1]),
        Rotary(1000.0, SIZE, INTERLEAVED),
        *(Rotary(1000.0, size) for size in sizes),
        *(Rotary(1000.0, SIZE, pairs=number) for number in pairs),
        *(Rotary(1000.0, SIZE, scaling=scaling) for scaling in SCALINGS),
        Rotary(1000.0, SIZE, keys=False),
        Rotary(1000.0, SIZE, queries=False),
        Rotary(1000.0, SIZE, values=True),
        Rotary(1000.0, SIZE, ahead=-1),
        Rotary(1000.0, SIZE, ahead=1),
        Rotary(1000.0, SIZE, sense=-1),
        *(Rotary(1000.0, SIZE, rounded=(part, dtype)) for part in ROUNDED for dtype in ("float16", "bfloat16")),
    ]


def test_a_share_of_a_head_has_the_frequencies_of_its_own_or_of_the_whole_head() -> None:
    own, whole = Rotary(1000.0, 4), Rotary(1000.0, SIZE, pairs=2)
    assert whole in rotaries_of(own)
    assert own in rotaries_of(whole)
    assert not any(each.pairs for each in rotaries_of(Rotary(1000.0, 4, INTERLEAVED)) if each is not None)


def test_rotary_positions_in_place_of_none() -> None:
    pairs = [(base, size) for base in BASES for size in (8, 2, 4)]
    wanted = [Rotary(base, size, layout) for base, size in pairs for layout in ("halves", INTERLEAVED)]
    assert rotaries_of(None) == wanted


def test_numbers_of_a_scaling_are_changed() -> None:
    own = Scaling("llama3", 8.0)
    found = [each.scaling for each in rotaries_of(Rotary(10000.0, SIZE, scaling=own)) if each]
    scalings = [each for each in found if each != own and each not in SCALINGS]
    factors = (0.125, 0.25, 0.5, 2.0, 4.0, 8.0)
    assert (
        scalings
        == [
            None,
            replace(own, rounded=False),
            *(replace(own, factor=8 * factor) for factor in factors if 8 * factor not in (16, 32)),
            *(replace(own, low=factor) for factor in factors[:4]),  # low stays below high, which is 4
            *(replace(own, high=4 * factor) for factor in factors[2:]),
            *(replace(own, original=8192 * factor) for factor in factors),
            *(Scaling("yarn", 8.0, 1.0, 32.0, original) for original in (32768.0, 2048.0, 4096.0)),
        ]
    )


def test_heads_of_other_sizes() -> None:
    core = replace(CORE, rotary=Rotary(10000.0, 4))
    found = [each for each in variants(SITE, core) if each.heads != HEADS]
    wanted = [
        (2, 2, 2),
        (4, 2, 4),
        (16, 8, 4),
    ]  # the size, and what is turned of it: as large a share, or as many features
    assert [(each.heads, each.scale, each.rotary and each.rotary.size) for each in found] == [
        (32 // size, scale, turned)
        for size, share, number in wanted
        for scale, turned in ((1 / math.sqrt(size), share), (CORE.scale, share), (CORE.scale, number))
    ]
    odd = replace(CORE, query=Source("q", np.zeros((2, 9, 12))), rotary=None, heads=2, scale=1.0)
    odd = replace(odd, key=Source("k", np.zeros((2, 9, 12))), value=Source("v", np.zeros((2, 9, 12))))
    sizes = [12 // each.heads for each in variants(SITE, odd) if each.heads != 2]
    assert sizes == [2, 2, 3, 3, 4, 4, 12, 12]
    turned = replace(odd, rotary=Rotary(10000.0, 6))
    assert [12 // each.heads for each in variants(SITE, turned) if each.heads != 2] == [2] * 3 + [4] * 3 + [12] * 3
    for bound in (
        {"sink": np.ones(2)},
        {"norm": HeadNorm(np.ones(6), np.ones(6))},
        {"bias": PositionBias(np.ones((8, 2)))},
    ):
        assert all(each.heads == 2 for each in variants(SITE, replace(odd, **bound)))
    assert any(each.heads != 2 for each in variants(SITE, replace(odd, bias=PositionBias())))


def test_ways_in_which_heads_share_and_join() -> None:
    changed = [
        (each.tiled, each.joined) for each in variants(SITE, CORE) if (each.tiled, each.joined) != (False, "by head")
    ]
    by_feature, unturned = (False, "by feature"), (False, "unturned")
    assert changed == [(True, "by head"), by_feature, unturned, by_feature, unturned, unturned]
    splits = [(each.split, each.joined) for each in variants(SITE, CORE) if each.split != "by head"]
    assert splits == [("by feature", "by head"), ("unturned", "by head"), ("by feature",) * 2, ("unturned",) * 2]
    alone = replace(CORE, key=CORE.query, value=CORE.query)
    assert not any(each.tiled for each in variants(SITE, alone))


def test_biases_that_differ_in_one_setting() -> None:
    tables = {"layers.0.near.W": np.ones((8, HEADS)), "layers.0.odd.W": np.ones((9, HEADS)), "few": np.ones((4, HEADS))}
    site = site_of(QUERY, QUERY, BEFORE, real=REAL, weights=tables)
    found = [each.bias for each in variants(site, CORE) if each.bias is not None]
    assert [(bias.table is None, bias.causal) for bias in found] == [(True, False), (False, False), (False, True)]
    own = PositionBias(np.ones((24, HEADS)))
    found = [each.bias for each in variants(site, replace(CORE, bias=own)) if each.bias is not own]
    assert found[0] is None
    assert [bias.factor for bias in found if bias and bias.factor != 1] == [CORE.scale, 1 / CORE.scale]
    found = [bias for bias in found if bias and bias.factor == 1]
    rest = [(bias.causal, bias.longest, bias.sense) for bias in found if bias and not bias.ahead]
    longest = [(False, number, 1) for number in (16, 20, 32, 64, 256, 512)]
    assert rest == [(True, 128, 1), *longest, (False, 128, -1)]
    assert [bias.ahead for bias in found if bias and bias.ahead] == [-1, 1]
    alibi = replace(CORE, bias=PositionBias())
    sloped = replace(alibi, bias=PositionBias(slopes=np.arange(1.0, 1 + HEADS)))
    at = replace(SITE, b=sloped.predicted)
    missing, fitted = (each.bias for each in variants(at, alibi) if each.bias is not alibi.bias)
    assert missing is None
    assert fitted is not None
    assert len(fitted.slopes) == alibi.heads
    unturned = replace(alibi, joined="unturned")
    assert [each.bias for each in variants(SITE, unturned) if each.bias is not alibi.bias] == [None]


def test_a_score_for_no_value_is_added_or_left_out() -> None:
    added = [each.sink for each in variants(SITE, CORE) if each.sink is not None]
    np.testing.assert_array_equal(added, np.zeros((1, HEADS)))
    core = replace(CORE, sink=np.ones(HEADS), scale=0.25)
    others = [each.sink for each in variants(SITE, core) if each.sink is not core.sink]
    assert [None if sink is None else sink.tolist() for sink in others] == [[0] * HEADS, None, [0.25] * HEADS]


def test_norms_of_heads_that_differ_in_one_setting() -> None:
    norm = HeadNorm(np.arange(1.0, 9), np.arange(2.0, 10), epsilon=1e-6)
    found = [each.norm for each in variants(SITE, replace(CORE, norm=norm)) if each.norm is not norm]
    assert found[0] is None
    alone = [each for each in found if each and len(each.roles) == 1]
    found = [each for each in found if each not in alone]
    settings = [(each.epsilon, each.offset, each.late, each.query[0], each.key[0]) for each in found if each]
    assert settings == [
        *((epsilon, 0, False, 1, 2) for epsilon in (1e-12, 1e-8, 1e-7, 1e-5, 1e-3, 0.0)),
        (1e-6, 1, False, 1, 2),
        (1e-6, 0, True, 1, 2),
        *((1e-6, 0, False, 1, 2),) * 2,
        (1e-6, 0, False, 2, 1),
        (1e-6, 0, False, 2, 2),
        (1e-6, 0, False, 1, 1),
        (1e-6, 0, False, 1, 1),
    ]
    assert [each.centred for each in found if each].count(True) == 1
    assert [each.across for each in found if each].count(True) == 1
    assert [each.roles for each in alone] == [("keys",), ("queries",)]
    (without,) = [each for each in found if each and each.key[-1] == 1]
    np.testing.assert_array_equal([without.query, without.key], np.ones((2, SIZE)))
    level = replace(norm, query=np.full(SIZE, 2.0), key=np.full(SIZE, 3.0), offset=1.0)
    found = [each.norm for each in variants(SITE, replace(CORE, norm=level)) if each.norm is not level]
    # Equal gains are no gains to leave out.
    assert [each.offset for each in found if each and len(each.roles) == 2][-7:] == [0.0, *[1.0] * 6]


def test_all_heads_may_have_the_gains_of_the_first() -> None:
    norm = HeadNorm(1 + np.arange(1.0 * HEADS * SIZE).reshape(HEADS, SIZE), np.ones((2, SIZE)))
    found = [
        each.norm for each in variants(SITE, replace(CORE, norm=norm)) if each.norm and np.ndim(each.norm.query) == 1
    ]
    assert any(np.array_equal(each.query, norm.query[0]) and np.array_equal(each.key, norm.key[0]) for each in found)


def test_norms_whose_gains_b_alone_has_are_those_of_queries_of_keys_or_of_both() -> None:
    gains = {"norm_1.gain": np.arange(1.0, 9), "norm_2.gain": np.arange(2.0, 10), "in_both.gain": np.ones(SIZE)}
    site = site_of(QUERY, QUERY, BEFORE, real=REAL, weights=gains, settings=({"epsilon": 0.5}, {"epsilon": 0.25}))
    site = replace(
        site, matching=Matching((), {}, (), ("norm_1.gain", "norm_2.gain")), recordings=site.recordings[::-1]
    )
    found = [each.norm for each in variants(site, CORE, rare=False) if each.norm is not None]
    firsts = [tuple(None if gain is None else gain[0] for gain in (norm.query, norm.key)) for norm in found]
    assert firsts[:24:4] == [(1, 2), (2, 1), (1, None), (2, None), (None, 1), (None, 2)]
    assert firsts[24::2] == [(1, 1), (1, None), (None, 1)]
    assert [(norm.offset, norm.late) for norm in found[:4]] == [(0, False), (0, True), (1, False), (1, True)]
    assert [(norm.offset, norm.late) for norm in found[24:26]] == [(0, False), (0, True)]
    assert {norm.epsilon for norm in found} == {0.25}


def sources_of(core: Core, *, rare: bool = True) -> list[tuple[str, str, str]]:
    own = (core.query, core.key, core.value)
    found = [(each.query, each.key, each.value) for each in variants(SITE, core, rare=rare)]
    return [(query.name, key.name, value.name) for query, key, value in found if (query, key, value) != own]


def test_tensors_change_places_and_others_take_their_place() -> None:
    query, key, value = CORE.inputs
    other = "layers.0.attention.v:input"
    assert sources_of(CORE) == [(query, value, key), (other, key, value)]
    assert sources_of(CORE, rare=False) == [(query, value, key)]
    same = replace(CORE, key=Source("k", OTHER), value=Source("w", OTHER + 1))
    assert sources_of(same, rare=False) == [
        (query, "w", "k"),
        ("k", query, "w"),
        ("k", "w", query),
        ("w", query, "k"),
        ("w", "k", query),
    ]


def test_weights_of_b_are_tried_for_one_tensor_and_for_several(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_b(_: Site, source: Source) -> Iterator[OtherWeights]:
        yield from [] if source is SOURCES[2] else [OtherWeights(source.name, source.values, cause=source.name[-1])]

    monkeypatch.setattr(core_variants, "with_weights_of_b", of_b)
    found = [
        [found.cause for found in differences(CORE, core) if len(found.cause) == 1] for core in variants(SITE, CORE)
    ]
    assert sorted(filter(None, found)) == [["k"], ["q"], ["q", "k"]]


def test_a_square_matrix_is_transposed() -> None:
    matrix, bias = np.arange(1024.0).reshape(32, 32), np.arange(32.0)
    key = Source("layers.0.attention.v:input", OTHER @ matrix + bias, label="w", matrix=matrix, bias=bias)
    core = replace(CORE, key=key, value=Source("v", OTHER))
    (found,) = (each.key for each in variants(SITE, core, rare=False) if each.key.label == "w" and each.key is not key)
    np.testing.assert_array_equal(found.matrix, matrix.T)
    np.testing.assert_allclose(found.values, OTHER @ matrix.T + bias)
    plain = replace(key, values=OTHER @ matrix, bias=None)
    changed = [each.key for each in variants(SITE, replace(core, key=plain), rare=False) if each.key.label == "w"]
    np.testing.assert_allclose(next(each for each in changed if each is not plain).values, OTHER @ matrix.T)


def test_a_fused_tensor_is_split_in_each_way() -> None:
    whole = Source("layers.0.qkv", np.concatenate([QUERY, KEY, VALUE], -1))
    ends = [0, 32, 48, 64]
    parts = [whole.part(np.arange(*ends[at : at + 2])) for at in range(3)]
    site = site_of(QUERY, QUERY, {"layers.0.qkv": whole.values}, real=REAL)
    found = list(variants(site, replace(CORE, query=parts[0], key=parts[1], value=parts[2]), rare=False))
    split = [
        each.key.features[:2].tolist() for each in found if each.key.label == "key" and each.key.features is not None
    ]
    assert split[:2] == [
        [32, 33],
        [16, 17],
    ]  # all keys behind all queries, and each behind the two queries of its group
    assert len(split) == 12  # and so in the other orders of queries, keys and values


def test_the_norms_of_queries_of_keys_and_of_both_are_skipped() -> None:
    """Without one of them a port that lacks both would hardly be nearer, so that a search from the nearest misses both."""
    roles = dict(zip(("query", "key"), SOURCES[:2], strict=True))
    before = {**BEFORE, **{f"{source.name}:input": 2 * source.values for source in roles.values()}}
    weights = {f"{source.name}.gain": np.ones(SIZE) for source in roles.values()}
    skipped = [
        each
        for each in variants(site_of(QUERY, QUERY, before, real=REAL, weights=weights), CORE, rare=False)
        if any(name.endswith(":input") for name in each.inputs)
    ]
    query, key = (source.name for source in roles.values())
    wanted = [(f"{query}:input", key), (query, f"{key}:input"), (f"{query}:input", f"{key}:input")]
    assert [each.inputs[:2] for each in skipped] == wanted
    assert {found.cause for each in skipped for found in differences(CORE, each)} == {"missing-norm"}
    without = variants(site_of(QUERY, QUERY, before, real=REAL), CORE, rare=False)
    assert not any(each.query.name.endswith(":input") for each in without), "no norms"


def test_of_another_text_only_scores_padding_and_heads_change() -> None:
    memory = np.zeros((2, 5, 32))
    core = replace(CORE, key=Source("k", memory), value=Source("v", memory), rotary=None, mask=Mask())
    causes = {"attention-scale", "attention-cap", "attention-heads", "mask-ignored", "swapped-weights", "missing-norm"}
    assert causes_of(core) == causes
    assert [each.mask for each in variants(SITE, core) if each.mask != Mask() and each.joined == "by head"] == [
        Mask(padding=False)
    ]
