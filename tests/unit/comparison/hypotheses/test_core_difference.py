"""The settings in which two cores differ are named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_difference import differences
from embgrad.comparison.hypotheses.core_parts import HeadNorm, Mask, PositionBias, Rotary, Scaling, Soft
from embgrad.comparison.hypotheses.sources import Source
from tests.unit.comparison.hypotheses.attended import BEFORE, HEADS, OTHER, REAL, SIZE

SOURCES = [Source(f"layers.0.{name}", BEFORE[f"layers.0.attention.{name}"]) for name in "qkv"]
ROTARY = Rotary(10000.0, SIZE)
GAIN = np.arange(1.0, 1 + SIZE)
NORM = HeadNorm(GAIN, GAIN[::-1])
CORE = Core(*SOURCES, HEADS, SIZE**-0.5, REAL, mask=Mask(causal=True), rotary=ROTARY, norm=NORM)

CHANGES: dict[str, tuple[dict[str, Any], str, tuple[str, str]]] = {
    "query": ({"query": Source("layers.0.q:input", OTHER)}, "missing-norm", ("applied", "missing")),
    "value": ({"value": Source("layers.0.w", OTHER)}, "swapped-weights", ("v", "w")),
    "turns": ({"rotary": replace(ROTARY, sense=-1)}, "rotary-layout", ("forwards", "backwards")),
    "keys": ({"rotary": replace(ROTARY, keys=False)}, "missing-rotary", ("queries and keys", "queries")),
    "scaling": ({"rotary": replace(ROTARY, scaling=Scaling("linear", 2.0))}, "rotary-scaling",
        ("none", "linear with factor 2")),
    "rotary": ({"rotary": None}, "missing-rotary", ("of base 10000", "missing")),
    "share": ({"rotary": Rotary(10000.0, 2)}, "rotary-partial", ("1", "0.25")),
    "window": ({"mask": Mask(causal=True, window=4)}, "attention-window", ("none", "4")),
    "padding": ({"mask": Mask(causal=True, padding=False)}, "mask-ignored", ("hidden", "attended to")),
    "shift": ({"mask": Mask(causal=True, shift=1)}, "attention-shift", ("0", "1")),
    "soft padding": ({"mask": Mask(causal=True, soft=Soft("padding", 10.0))}, "mask-ignored", ("hidden", "given -10")),
    "inverted padding": ({"mask": Mask(causal=True, soft=Soft("text", 1e4))}, "mask-ignored",
        ("hidden", "seen in place of the text")),
    "soft later": ({"mask": Mask(causal=True, soft=Soft("positions", 4.5678))}, "attention-causal",
        ("hidden", "given -4.57")),
    "soft": ({"mask": Mask(causal=True, soft=Soft("all", 5.0, True))}, "attention-causal", ("hidden", "scored -5")),
    "queries": ({"over": "queries", "mask": Mask()}, "attention-softmax", ("keys", "queries")),
    "places": ({"places": np.arange(9)[None]}, "rotary-offset", ("places in the batch", "position ids")),
    "causal": ({"mask": Mask()}, "attention-causal", ("causal", "missing")),
    "heads": ({"heads": 2, "scale": 16**-0.5, "rotary": Rotary(10000.0, 16)}, "attention-heads", ("4", "2")),
    "bias": ({"bias": PositionBias()}, "attention-bias", ("missing", "that of ALiBi")),
    "norm": ({"norm": None}, "missing-norm", ("applied", "missing")),
    "epsilon": ({"norm": replace(NORM, epsilon=1e-5)}, "layer-norm-epsilon", ("1e-06", "1e-05")),
    "offset": ({"norm": replace(NORM, offset=1.0)}, "norm-offset", ("w", "1 + w")),
    "late": ({"norm": replace(NORM, late=True)}, "norm-order", ("before rotary positions", "after rotary positions")),
    "gains": ({"norm": HeadNorm(GAIN[::-1], GAIN)}, "swapped-weights", ("that of queries", "that of keys")),
    "queries' gain for both": ({"norm": HeadNorm(GAIN, GAIN)}, "swapped-weights", ("that of keys", "that of queries")),
    "keys' gain for both": ({"norm": HeadNorm(GAIN[::-1], GAIN[::-1])}, "swapped-weights",
        ("that of queries", "that of keys")),
    "centred": ({"norm": replace(NORM, centred=True)}, "norm-kind", ("root-mean-square norms", "layer norms")),
    "across": ({"norm": replace(NORM, across=True)}, "norm-kind", ("by head", "over all heads")),
    "queries' norm": ({"norm": HeadNorm(None, GAIN[::-1])}, "missing-norm", ("applied", "missing")),
    "ones": ({"norm": HeadNorm(np.ones(SIZE), np.ones(SIZE))}, "different-weight", ("applied", "missing")),
}  # fmt: skip


@pytest.mark.parametrize(("change", "cause", "values"), CHANGES.values(), ids=CHANGES)
def test_a_setting_is_named(change: dict[str, Any], cause: str, values: tuple[str, str]) -> None:
    found = differences(CORE, replace(CORE, **change))
    assert [(one.cause, one.values) for one in found] == [(cause, values)]


def test_a_window_of_both_sides_and_a_causal_one_of_the_same_keys_are_no_other_windows() -> None:
    """A causal window counts the query itself."""
    both, causal = (replace(CORE, mask=mask) for mask in (Mask(window=4), Mask(causal=True, window=5)))
    assert [found.cause for found in differences(both, causal)] == ["attention-causal"]
    assert [found.cause for found in differences(causal, both)] == ["attention-causal"]
    found = differences(both, replace(CORE, mask=Mask(causal=True, window=4)))
    assert [one.cause for one in found] == ["attention-causal", "attention-window"]


def test_the_norm_that_one_side_lacks_is_named() -> None:
    for norm, roles in ((HeadNorm(None, GAIN), "queries"), (HeadNorm(GAIN, None), "keys")):
        both = HeadNorm(GAIN, GAIN)
        (found,) = differences(replace(CORE, norm=norm), replace(CORE, norm=both))
        assert (found.setting, found.values) == (f"the norm of {roles} is", ("missing", "applied"))
    (found,) = differences(replace(CORE, norm=None), replace(CORE, norm=HeadNorm(None, GAIN)))
    assert (found.setting, found.values) == ("the norm of keys is", ("missing", "applied"))


def test_gains_by_head_that_b_takes_from_the_first_head_are_named() -> None:
    norm = HeadNorm(np.stack([GAIN, GAIN[::-1]]), np.stack([GAIN, GAIN[::-1]]))
    (found,) = differences(replace(CORE, norm=norm), replace(CORE, norm=HeadNorm(GAIN, GAIN)))
    assert (found.cause, found.values) == ("different-weight", ("by head", "those of head 0"))


def test_equal_cores_do_not_differ() -> None:
    again = replace(CORE, norm=HeadNorm(GAIN.copy(), GAIN[::-1].copy()), rotary=replace(ROTARY))
    assert not differences(CORE, again)


def test_a_scale_that_another_cause_moves_slightly_does_not_differ() -> None:
    assert not differences(CORE, replace(CORE, scale=CORE.scale * (1 + 9e-5)))
    (found,) = differences(CORE, replace(CORE, scale=CORE.scale * (1 + 2e-4)))
    assert found.cause == "attention-scale"


def test_what_a_finite_number_is_for_is_named() -> None:
    for mask, keys, setting in (
        (Mask(window=2), "positions", "positions outside of the window are"),
        (Mask(causal=True), "positions", "later positions are"),
        (Mask(), "padding", "padding is"),
        (Mask(causal=True), "all", "masked positions are"),
    ):
        soft = replace(mask, soft=Soft(keys, 1e4))
        (found,) = differences(replace(CORE, mask=soft), replace(CORE, mask=mask))
        assert (found.setting, found.values) == (setting, ("given -10000", "hidden"))


def test_several_settings_are_named() -> None:
    found = differences(CORE, replace(CORE, scale=1.0, rotary=Rotary(500000.0, SIZE)))
    assert [one.cause for one in found] == ["attention-scale", "rotary-base"]


def test_another_bias_is_named() -> None:
    table = np.ones((8, HEADS))
    first, second = (replace(CORE, bias=PositionBias(table, longest=longest)) for longest in (64, 128))
    (found,) = differences(first, second)
    assert found.cause == "attention-bias"
    assert found.values == tuple(f"by 8 buckets of both sides up to distance {longest}" for longest in (64, 128))
    assert not differences(first, replace(first, bias=PositionBias(2 * table, longest=64)))


def test_the_same_share_of_other_heads_does_not_differ() -> None:
    half = replace(CORE, rotary=Rotary(10000.0, 4))
    found = differences(half, replace(half, heads=2, scale=1 / 4, rotary=Rotary(10000.0, 8)))
    assert [one.cause for one in found] == ["attention-heads"]
