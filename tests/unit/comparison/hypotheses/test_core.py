"""The core of an attention has the values of its definition."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.core import Core, Part
from embgrad.comparison.hypotheses.core_parts import HeadNorm, Mask, PositionBias, Rotary, Soft
from embgrad.comparison.hypotheses.sources import Source
from tests.unit.comparison.hypotheses.attended import BEFORE, HEADS, QUERY, REAL, SIZE, attended

QUERY_SOURCE, KEY_SOURCE, VALUE_SOURCE = (Source(name, BEFORE[f"layers.0.attention.{name}"]) for name in "qkv")
CORE = Core(QUERY_SOURCE, KEY_SOURCE, VALUE_SOURCE, HEADS, SIZE**-0.5, REAL, mask=Mask(causal=True))


def two(query: list[float], key: list[float], value: list[float], **settings: object) -> Core:
    """Return a core of one head of one feature at two positions."""
    sources = [
        Source(name, np.array(values).reshape(1, 2, 1)) for name, values in zip("qkv", (query, key, value), strict=True)
    ]
    return Core(*sources, 1, 1.0, np.ones((1, 2), bool), **settings)  # type: ignore[arg-type]


def test_two_values_are_weighted_by_the_logistic_function_of_their_scores() -> None:
    # Scores 0 and log 3 for the first query; twice these for the second.
    core = two([1.0, 2.0], [0.0, np.log(3)], [0.0, 1.0])
    np.testing.assert_allclose(core.predicted.ravel(), [3 / 4, 9 / 10])


def test_scores_are_scaled_and_capped() -> None:
    core = two([1.0, 2.0], [0.0, np.log(3)], [0.0, 1.0])
    np.testing.assert_allclose(replace(core, scale=0.5).predicted[0, 1, 0], 3 / 4)
    score = 0.5 * np.tanh(np.log(9) / 0.5)
    np.testing.assert_allclose(replace(core, cap=0.5).predicted[0, 1, 0], 1 / (1 + np.exp(-score)))


@pytest.mark.parametrize(("blank", "first"), [(False, 3 / 2), (True, 0)])
def test_a_query_that_sees_no_key_takes_the_mean_of_all_values_or_nothing(blank: bool, first: float) -> None:
    core = two([1.0, 2.0], [0.0, np.log(3)], [1.0, 2.0], mask=Mask(causal=True, shift=-1, blank=blank))
    np.testing.assert_allclose(core.predicted.ravel(), [first, 1])
    with_sink = replace(core, sink=np.array([np.log(2)]))
    np.testing.assert_allclose(with_sink.predicted.ravel(), [first / 2, 1 / 3])


@pytest.mark.parametrize(
    ("keys", "instead", "wanted"),
    [
        ("positions", False, [0, 0]),  # the second key is padding, and hidden
        ("padding", False, [0, 9 / 11]),  # the first query does not see it as it is a later one
        ("all", False, [3 / 5, 9 / 11]),
        ("all", True, [1 / 3, 1 / 3]),
    ],
)
def test_masked_keys_have_a_finite_score(keys: str, instead: bool, wanted: list[float]) -> None:
    soft = Soft(keys, np.log(2), instead)
    core = two([1.0, 2.0], [0.0, np.log(3)], [0.0, 1.0], mask=Mask(causal=True, soft=soft))
    np.testing.assert_allclose(replace(core, real=np.array([[True, False]])).predicted.ravel(), wanted)


def test_large_numbers_of_masks_are_added_in_single_precision() -> None:
    for number, wanted in ((1000.0, np.log(3)), (1e9, 0.0)):
        scores = Soft("padding", number).apply(np.array([[[[0.0, np.log(3)]]]]), np.zeros((1, 1, 2), bool))
        np.testing.assert_allclose(scores[..., 1] - scores[..., 0], wanted, atol=1e-4)
        assert scores[..., 1] != np.log(3) - number


@pytest.mark.parametrize(
    ("over", "mask", "wanted"),
    [
        ("queries", Mask(padding=False), [1 / 2 + 2 / 4, 1 / 2 + 2 * 3 / 4]),
        ("queries", Mask(causal=True, padding=False), [1 / 2, 1 / 2 + 2]),
        ("queries", Mask(), [1 / 2 + 2 / 2, 1 / 2 + 2 / 2]),  # no query sees the second key, which all share
        ("real queries", Mask(padding=False), [3, 0]),
    ],
)
def test_the_softmax_may_be_over_queries(over: str, mask: Mask, wanted: list[float]) -> None:
    """The exponentials are 1 and 3 for the first query, 1 and 9 for the second."""
    core = two([1.0, 2.0], [0.0, np.log(3)], [1.0, 2.0], mask=mask, over=over)
    core = replace(core, real=np.array([[True, False]]))
    np.testing.assert_allclose(core.predicted.ravel(), wanted)
    part = core.whole._replace(rows=np.array([1]), real=np.ones((1, 1), bool))
    np.testing.assert_allclose(core.part(part).ravel(), wanted[1:])


def test_rotary_positions_are_those_of_places() -> None:
    rotary = Rotary(10000.0, SIZE)
    shifted = np.arange(9) + np.array([[0], [3]])
    late = replace(CORE, rotary=rotary, norm=HeadNorm(np.arange(1.0, 1 + SIZE), np.ones(SIZE), late=True))
    np.testing.assert_allclose(
        replace(CORE, rotary=rotary, places=shifted).predicted, replace(CORE, rotary=rotary).predicted
    )
    off = np.abs(replace(late, places=shifted).predicted - late.predicted).max((1, 2))
    assert off[0] == 0 < 0.01 < off[1]
    part = Part(np.array([1]), np.array([2, 5]), np.array([0, 3]), np.ones((1, 2), bool))
    late = replace(late, places=shifted**2)
    np.testing.assert_allclose(late.part(part), part.of(late.predicted, SIZE))


def test_a_bias_is_added_to_scores() -> None:
    table = np.array([0.0, 0.0, np.log(2), np.log(5)])[:, None]  # itself, earlier, later
    core = two([0.0, 0.0], [0.0, 0.0], [0.0, 1.0], bias=PositionBias(table))
    np.testing.assert_allclose(core.predicted.ravel(), [5 / 6, 1 / 2])


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_all_heads_are_those_of_the_definition(tiled: bool, turned: bool) -> None:
    core = replace(CORE, tiled=tiled, rotary=Rotary(10000.0, SIZE) if turned else None)
    wanted = attended(tiled=tiled, rotary={"base": 10000.0} if turned else None)
    np.testing.assert_allclose(core.predicted, wanted)


def test_norms_come_before_rotary_positions_or_after_them() -> None:
    norm = HeadNorm(np.arange(1.0, 1 + SIZE), np.ones(SIZE))
    core = replace(CORE, norm=norm, rotary=Rotary(10000.0, SIZE))
    late = replace(core, norm=replace(norm, late=True))
    heads = QUERY.reshape(*QUERY.shape[:2], HEADS, SIZE)
    normed = (norm.apply(heads, heads)[0]).reshape(QUERY.shape)
    key = KEY_SOURCE.values.reshape(*QUERY.shape[:2], -1, SIZE)
    wanted = attended(normed, norm.apply(key, key)[1].reshape(KEY_SOURCE.values.shape), rotary={"base": 10000.0})
    np.testing.assert_allclose(core.predicted, wanted)
    assert np.abs(late.predicted - wanted).max() > 0.01


@pytest.mark.parametrize("late", [False, True])
def test_norms_over_all_heads_come_before_rotary_positions_or_after_them(late: bool) -> None:
    gains = np.arange(1.0, 1 + HEADS * SIZE) / 16, np.arange(1.0, 1 + KEY_SOURCE.values.shape[-1]) / 16
    norm = HeadNorm(*(gain.reshape(-1, SIZE) for gain in gains), late=late, across=True)
    core = replace(CORE, norm=norm, rotary=Rotary(10000.0, SIZE))
    lengths = [np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) for x in (QUERY, KEY_SOURCE.values)]
    query, key = (x / length for x, length in zip((QUERY, KEY_SOURCE.values), lengths, strict=True))
    if late:  # the scores of turned queries and keys, of which each feature is multiplied by its gain
        part = core.whole
        turned = [
            core.rotary.turn_queries(x.reshape(*x.shape[:2], -1, SIZE), np.arange(x.shape[1])) for x in (query, key)
        ]
        wanted = replace(
            core,
            query=replace(core.query, values=(turned[0].reshape(query.shape) * gains[0])),
            key=replace(core.key, values=(turned[1].reshape(key.shape) * gains[1])),
            norm=None,
            rotary=None,
        ).part(part)
        np.testing.assert_allclose(core.part(part), wanted)
    else:
        wanted = attended(query * gains[0], key * gains[1], rotary={"base": 10000.0})
        np.testing.assert_allclose(core.predicted, wanted)
    part = Part(np.array([1]), np.array([2, 5]), np.array([0, 3]), np.ones((1, 2), bool))
    np.testing.assert_allclose(core.part(part), part.of(core.predicted, SIZE))


def test_a_part_is_that_of_the_whole() -> None:
    part = Part(np.array([1]), np.array([2, 5]), np.array([0, 3]), np.ones((1, 2), bool))
    core = replace(CORE, rotary=Rotary(10000.0, SIZE), bias=PositionBias())
    np.testing.assert_allclose(core.part(part), part.of(core.predicted, SIZE))
    assert core.part(part).shape == (1, 2, 2, SIZE)
    counted = part._replace(real=np.array([[True, False]]))
    for values in (core.part(counted), counted.of(core.predicted, SIZE)):
        np.testing.assert_allclose(values[:, 0], core.part(part)[:, 0])
        assert not values[:, 1].any()


@pytest.mark.parametrize(("joined", "axes"), [("by feature", (0, 1, 3, 2)), ("unturned", (0, 2, 1, 3))])
def test_heads_are_joined_in_other_orders(joined: str, axes: tuple[int, ...]) -> None:
    heads = CORE.predicted.reshape(*QUERY.shape[:2], HEADS, SIZE)
    wanted = heads.transpose(axes).reshape(QUERY.shape)
    np.testing.assert_array_equal(replace(CORE, joined=joined).predicted, wanted)


def test_heads_are_split_without_exchanging_their_axis_with_that_of_positions() -> None:
    """The features of all positions of a text, in order, are those of its heads, position by position."""
    flat = [source.values.reshape(len(QUERY), -1) for source in (QUERY_SOURCE, KEY_SOURCE, VALUE_SOURCE)]
    turned = [values.reshape(len(QUERY), -1, QUERY.shape[1], SIZE).swapaxes(1, 2) for values in flat]
    sources = [Source(name, values.reshape(*values.shape[:2], -1)) for name, values in zip("qkv", turned, strict=True)]
    usual = replace(CORE, query=sources[0], key=sources[1], value=sources[2])
    np.testing.assert_array_equal(replace(CORE, split="unturned").predicted, usual.predicted)
    assert np.abs(usual.predicted - CORE.predicted).max() > 0.01


def test_it_is_computed_from_other_values_at_the_same_points() -> None:
    whole = Source("qkv", np.concatenate([BEFORE[f"layers.0.attention.{name}"] for name in "qkv"], -1))
    ends = np.cumsum([0, *(source.values.shape[-1] for source in (QUERY_SOURCE, KEY_SOURCE, VALUE_SOURCE))])
    parts = [whole.part(np.arange(start, end)) for start, end in itertools.pairwise(ends)]
    core = replace(CORE, query=parts[0], key=parts[1], value=parts[2])
    assert core.inputs == ("qkv",)
    doubled = core.compute(lambda name: 2 * whole.values)
    np.testing.assert_allclose(doubled, 2 * replace(CORE, scale=4 * CORE.scale).predicted)
