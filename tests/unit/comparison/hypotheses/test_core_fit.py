"""The core that reproduces the reference's output is found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_fit import (
    _crossing,
    _masks,
    _norms,
    _plain,
    _simplest,
    _usual,
    _whole,
    _with_biases,
    _with_caps,
    _with_norms,
    _with_rotaries,
    fitted_core,
    part_of,
)
from embgrad.comparison.hypotheses.core_likely import biases, likely_rotaries, likely_sizes, scales, turned_size
from embgrad.comparison.hypotheses.core_parts import HALVES, INTERLEAVED, ROUNDED, Mask, Rotary, Scaling
from embgrad.comparison.hypotheses.projections import Projections
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Source
from tests.unit.comparison.hypotheses.attended import BEFORE, HEADS, KEY, OTHER, QUERY, REAL, SIZE, VALUE, attended
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


def test_the_output_itself_is_not_taken_for_values() -> None:
    """A site before a product begins with tensors that equal its output, such as that of the attention's module."""
    output = attended()
    found = fitted_core(site_of(output, B, {"layers.0.attention": output, **BEFORE}, real=REAL))
    assert found is not None
    assert found.value.name == "layers.0.attention.v"


def test_frequencies_that_are_scaled_come_last_unless_they_are_near() -> None:
    core = Core(Source("q", QUERY), Source("k", KEY), Source("v", VALUE), HEADS, 1.0, REAL, rotary=Rotary(1e4, SIZE))
    scaled = replace(core, rotary=Rotary(1e4, SIZE, scaling=Scaling("linear", 2.0)))
    tried = [(0.009, scaled), (0.004, scaled), (0.3, core), (0.2, replace(core, rotary=None))]
    assert [off for off, _ in sorted(tried, key=_simplest)] == [0.004, 0.2, 0.3, 0.009]


def test_nothing_reproduces_another_function() -> None:
    assert fitted_core(site_of(np.sin(attended()), B, BEFORE, real=REAL)) is None


def test_a_part_has_the_longest_and_the_shortest_text_and_few_heads() -> None:
    site = site_of(B, B, BEFORE, real=REAL)
    part = part_of(site, 12)
    assert [part.examples.tolist(), part.rows.tolist(), part.heads.tolist()] == [[0, 1], list(range(9)), [0, 1, 11]]
    np.testing.assert_array_equal(part.real, REAL)
    assert part_of(site, 1, alone=True, rows=3).rows.tolist() == [0, 4, 8]


def test_scales_begin_with_those_that_are_declared() -> None:
    assert scales({"attention_scale": 0.3}, 4, 16) == [0.3, 0.25, 1.0, 1 / 16, 1 / 8, 1 / math.sqrt(32)]
    assert scales({"attention_scale": "auto"}, 1, 4)[:2] == [0.5, 1.0]


@pytest.mark.parametrize(("size", "share", "wanted"), [(64, 0.25, 16), (80, 0.4, 32), (8, 0.1, 2), (10, 0.5, 4)])
def test_an_even_number_of_features_is_turned(size: int, share: float, wanted: int) -> None:
    assert turned_size(size, share) == wanted


CANDIDATE = Projections(Source("q", QUERY), Source("k", KEY), Source("v", VALUE), SIZE)
CAUSAL = Mask(causal=True)


def site_seen(seen: Callable[[int, int], bool], real: np.ndarray = REAL, **further: Any) -> Site:
    return site_of(attended(seen=seen, real=real), B, BEFORE, real=real, **further)


def within(window: int) -> Callable[[int, int], bool]:
    return lambda row, column: row - window < column <= row


@pytest.mark.parametrize(("window", "first"), [(4, [4, None]), (5, [None, 5])])
def test_a_narrow_window_is_likelier_than_none(window: int, first: list[int | None]) -> None:
    masks = _masks(site_seen(within(window)), CANDIDATE)
    assert masks == [Mask(causal=True, window=size) for size in (*first, window + 1, window + 2)]


@pytest.mark.parametrize(("position", "windows"), [(1, []), (2, [7, 8, 9])])
def test_windows_as_long_as_the_text_are_no_windows(position: int, windows: list[int]) -> None:
    values = np.broadcast_to(np.arange(9.0)[:, None], (1, 9, 2))
    output = np.array(values)
    output[:, 8] = position  # the last query takes an early value, and each other one its own
    source = Source("v", values)
    masks = _masks(site_of(output, output, {}), Projections(source, source, source, 2))
    assert masks == [CAUSAL, *(Mask(causal=True, window=size) for size in windows)]


#: The masks that a first row shows as well as one without an order.
FURTHER = [Mask(causal=True, shift=1), Mask(causal=True, shift=-1), Mask(causal=True, padding=False)]


def test_masks_of_both_sides_come_with_those_that_look_like_them() -> None:
    near = [Mask(window=2), Mask(), Mask(padding=False), Mask(window=3), Mask(window=4)]
    assert _masks(site_seen(lambda row, column: abs(row - column) <= 2), CANDIDATE) == [*near, *FURTHER]
    whole = site_seen(lambda row, column: True, real=np.ones_like(REAL))
    assert _masks(whole, CANDIDATE) == [Mask(), *FURTHER]  # without padding, hiding it changes nothing


#: The bases, the shares of 8 features, and the scalings that models have.
BASES = (10000.0, 1000000.0, 500000.0, 100000.0, 150000.0, 160000.0, 5000000.0, 1000.0)
TURNED = (8, 2, 4, 6)
SCALED = (
    *(Scaling("linear", factor) for factor in (2.0, 4.0, 8.0, 16.0, 0.5, 0.25)),
    *(Scaling("llama3", factor) for factor in (8.0, 32.0, 16.0)),
    Scaling("yarn", 4.0, 1.0, 32.0, 32768.0),
    Scaling("yarn", 4.0, 1.0, 32.0, 2048.0),
    Scaling("yarn", 40.0, 1.0, 32.0, 4096.0),
)
PLAIN = [Rotary(base, size, kind) for base in BASES for kind in (HALVES, INTERLEAVED) for size in TURNED]
PLAIN += [Rotary(base, SIZE, pairs=pairs) for base in BASES[:2] for pairs in (1, 2, 3)]
WITH_SCALING = [Rotary(base, SIZE, HALVES, scaling) for base in BASES[:4] for scaling in SCALED]


def rare(rotary: Rotary) -> list[Rotary]:
    """Return the rotary positions that are tried last: of values as well, of opposite angles, or with a part in half."""
    return [replace(rotary, values=True), replace(rotary, sense=-1), *_in_half(rotary)]


def _in_half(rotary: Rotary) -> list[Rotary]:
    return [replace(rotary, rounded=(part, dtype)) for part in ROUNDED for dtype in ("float16", "bfloat16")]


def test_rotary_positions_that_models_have() -> None:
    assert list(likely_rotaries({}, CANDIDATE)) == [PLAIN[0], None, *PLAIN[1:], *WITH_SCALING, *rare(PLAIN[0])]


def test_rotary_positions_that_are_declared_come_first() -> None:
    scaling = Scaling("linear", 3.0)
    declared = {"rotary_base": 7.0, "rotary_share": 0.5, "rotary_scaling": scaling, "rotary_layout": INTERLEAVED}
    kinds = [
        Rotary(base, size, kind) for base in (7.0, *BASES) for kind in (INTERLEAVED, HALVES) for size in (4, 8, 2, 6)
    ]
    by_pairs = [Rotary(base, SIZE, pairs=pairs) for base in (7.0, BASES[0]) for pairs in (2, 1, 3)]
    scaled = [Rotary(each.base, each.size, each.layout, scaling) for each in kinds]
    rest = [Rotary(base, SIZE, HALVES, other) for base in (7.0, *BASES[:3]) for other in SCALED]
    assert list(likely_rotaries(declared, CANDIDATE)) == [
        scaled[0], None, *scaled[1:], *by_pairs, *kinds, *rest, *rare(scaled[0]),
    ]  # fmt: skip


def settings_of(core: Core) -> tuple[Mask, Rotary | None, float, float | None]:
    return core.mask, core.rotary, core.scale, core.cap


SITE = site_seen(within(3), settings=({"attention_cap": 7.0, "window": 3.2}, {}))
WINDOWS = [Mask(causal=True, window=3), CAUSAL, Mask(causal=True, window=4), Mask(causal=True, window=5)]
LIKELY = ([WINDOWS[0], CAUSAL], [PLAIN[0], None], [1 / math.sqrt(SIZE), 1.0], [None])


def test_cores_are_tried_with_more_and_more_settings() -> None:
    masks, rotaries, numbers, none = LIKELY
    every = scales({}, HEADS, SIZE)
    usual = [PLAIN[0], None, *PLAIN[1:10]]
    tried = {
        _plain: (masks, rotaries, numbers[:1], none),
        _usual: (masks, usual, numbers, [7.0]),
        _with_rotaries: (masks, list(likely_rotaries({}, CANDIDATE)), numbers, none),
        _with_caps: (WINDOWS, rotaries, every, [None, 50.0, 30.0, 20.0, 10.0]),
        _crossing: ([Mask(), Mask(padding=False)], [None], every, none),
    }
    for options, wanted in tried.items():
        assert [settings_of(core) for core in options(SITE, CANDIDATE)] == list(itertools.product(*wanted))


def test_a_core_takes_the_tensors_and_the_padding_of_its_candidate() -> None:
    core = next(_plain(SITE, Projections(CANDIDATE.query, CANDIDATE.key, CANDIDATE.value, SIZE, tiled=True)))
    assert (core.query, core.key, core.value) == (CANDIDATE.query, CANDIDATE.key, CANDIDATE.value)
    assert (core.heads, core.tiled) == (HEADS, True)
    np.testing.assert_array_equal(core.real, REAL)


def test_biases_and_scores_for_no_value_are_tried() -> None:
    table = np.arange(32.0).reshape(8, HEADS)
    weights = {"layers.0.bias.W": table, "layers.0.sinks": np.arange(4.0)}
    site = site_seen(within(3), weights=weights, settings=({"window": 3.2}, {}))
    found = list(_with_biases(site, CANDIDATE))
    added = [(core.mask, core.rotary, core.bias and (core.bias.table is None, core.bias.causal)) for core in found[:12]]
    assert added == [
        (mask, None, bias)
        for mask, _ in itertools.product(WINDOWS[:2], LIKELY[2])
        for bias in ((True, False), (False, False), (False, True))
    ]
    sinks = [(core.mask, core.rotary, core.scale, core.sink is not None and core.sink.tolist()) for core in found[12:]]
    masks = [CAUSAL, Mask(), Mask(causal=True, window=3)]
    assert sinks == list(itertools.product(masks, LIKELY[1], LIKELY[2], ([0, 1, 2, 3], [0, 0, 0, 0])))


@pytest.mark.parametrize(("rows", "fits"), [(4, False), (8, True), (10, False), (512, True), (516, False)])
def test_tables_of_buckets_have_a_number_for_each_head(rows: int, fits: bool) -> None:
    weights = {"a.W": np.ones((rows, HEADS)), "b.W": np.ones((HEADS, rows)), "c.W": np.ones(rows)}
    found = biases(site_of(B, B, BEFORE, weights=weights), HEADS)
    assert [bias.causal for bias in found if bias.table is not None] == [False, True] * fits
    assert found[0].table is None


def test_norms_are_those_of_two_gains_in_either_order() -> None:
    weights = {f"layers.0.{name}": np.full(SIZE, float(number)) for number, name in enumerate("qk")}
    site = site_seen(within(3), weights=weights)
    found = [(norm.query[0], norm.key[0], norm.centred, norm.offset, norm.epsilon) for norm in _norms(site, CANDIDATE)]
    rests = [*itertools.product((False, True), (0, 1), (1e-6, 1e-5))]
    assert found[:-4] == [(*pair, *rest) for pair in ((0, 1), (1, 0)) for rest in rests]
    assert [norm.late for norm in _norms(site, CANDIDATE)][-4:] == [True, False] * 2
    assert found[-4:] == [(1, 1, False, 0.0, epsilon) for epsilon in (1e-6, 1e-6, 1e-5, 1e-5)]  # without gains
    declared = site_seen(within(3), weights=weights, settings=({"epsilon": 1e-3, "rotary_base": 7.0}, {}))
    assert [norm.epsilon for norm in _norms(declared, CANDIDATE)] == [1e-3] * 8 + [1e-3, 1e-3, 1e-6, 1e-6]
    cores = [(core.norm and core.norm.query[0], *settings_of(core)) for core in _with_norms(declared, CANDIDATE)]
    own = Rotary(7.0, SIZE)
    # The third is that of local layers, beside those with the declared base.
    rotaries = [own, None, PLAIN[0], replace(own, layout=INTERLEAVED), replace(own, sense=-1)]
    rests = [*itertools.product(LIKELY[0], rotaries, *LIKELY[2:])] * 4
    assert cores == [(query, *rest) for query in (0, 1, 1) for rest in rests]


@pytest.mark.parametrize("stacked", [False, True])
def test_each_head_may_have_gains_of_its_own(stacked: bool) -> None:
    """Cohere holds them in one weight, and StableLM in a norm for each head."""
    pairs = KEY.shape[-1] // SIZE
    queries, keys = np.arange(HEADS * SIZE).reshape(HEADS, SIZE), -np.arange(pairs * SIZE).reshape(pairs, SIZE)
    weights = {"layers.0.q_norm": queries, "layers.0.k_norm": keys}
    if not stacked:
        weights = {f"{name}.{head}": gain for name, gains in weights.items() for head, gain in enumerate(gains)}
    found = [norm for norm in _norms(site_seen(within(3), weights=weights), CANDIDATE) if np.ndim(norm.query) == 2]
    assert len(found) == 8
    for norm in found:
        np.testing.assert_array_equal(norm.query, queries)
        np.testing.assert_array_equal(norm.key, keys)


def test_sizes_of_heads_that_are_declared() -> None:
    assert likely_sizes({"head_dim": 16, "heads": 4}, 32) == [16, 8]
    assert likely_sizes({"heads": 4}, 32) == [8]
    assert likely_sizes({}, 32) == []


def test_many_rows_are_thinned_out() -> None:
    values = np.zeros((3, 40, 4))
    real = np.arange(40) < np.array([[30], [40], [20]])
    site = site_of(values, values, {}, real=real)
    part, alone = part_of(site, 1), part_of(site, 2, alone=True)
    assert part.examples.tolist() == [1, 2]
    assert part.rows.tolist() == [0, 2, 5, 8, 10, 11, 13, 16, 19, 22, 27, 33, 39]
    np.testing.assert_array_equal(part.real, real[1:, part.rows])
    assert [len(alone.rows), part.heads.tolist(), alone.heads.tolist()] == [16, [0], [0, 1]]
    assert [alone.examples.tolist(), alone.rows.tolist()[-1]] == [[1], 39]


def test_queries_read_the_keys_of_another_text() -> None:
    memory = {"k": KEY[:, :5], "v": np.tile(VALUE[:, :5], 2), "q": OTHER}
    memory["k"] = np.tile(memory["k"], 2)
    a = attended(OTHER, memory["k"], memory["v"], seen=lambda row, column: True, padding=False)
    found = fitted_core(site_of(a, 2 * a, memory, real=np.ones_like(REAL)))
    assert found is not None
    assert (found.heads, found.scale, found.mask.causal, found.crosses) == (HEADS, 1 / math.sqrt(SIZE), False, True)


def everywhere(row: int, column: int) -> bool:
    return True


WHOLE = {
    "as it is": ({"seen": everywhere}, Mask(), Mask()),
    "padding is seen": ({"seen": everywhere, "padding": False}, Mask(), Mask(padding=False)),
    "padding is hidden": ({"seen": everywhere}, Mask(padding=False), Mask()),
    "a window": ({"seen": within(4)}, CAUSAL, Mask(causal=True, window=4)),
    "the widest window": ({"seen": within(8)}, CAUSAL, Mask(causal=True, window=8)),
    "the narrowest window": ({"seen": within(1)}, CAUSAL, Mask(causal=True, window=1)),
    "another scale": ({"scale": 1.0}, CAUSAL, None),
}


@pytest.mark.parametrize(("settings", "mask", "wanted"), WHOLE.values(), ids=WHOLE)
def test_a_core_gets_the_window_and_the_padding_that_the_whole_output_needs(
    settings: dict[str, Any], mask: Mask, wanted: Mask | None
) -> None:
    site = site_of(attended(**settings), B, BEFORE, real=REAL)
    core = Core(CANDIDATE.query, CANDIDATE.key, CANDIDATE.value, HEADS, 1 / math.sqrt(SIZE), REAL, mask=mask)
    found = _whole(site, core, 1e-6)
    assert (found and found.mask) == wanted
