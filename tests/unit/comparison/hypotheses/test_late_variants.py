"""Rare changes of an attention's softmax and mask are named, and what only resembles them is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.attention import AttentionCore
from embgrad.comparison.hypotheses.site import Site
from embgrad.inputs.batch import TokenBatch
from tests.unit.comparison.hypotheses.attended import (
    BEFORE,
    HEADS,
    KEY,
    PAIRS,
    QUERY,
    REAL,
    SIZE,
    VALUE,
    attended,
    causal,
    everywhere,
)
from tests.unit.comparison.hypotheses.planted import site_of

TEXTS = {
    "padding": "padding is {} in a and {} in b",
    "later": "later positions are {} in a and {} in b",
}
HIDDEN = {"padding": attended(seen=everywhere), "later": attended()}


def given(which: str, number: float) -> np.ndarray:
    """Return what heads take where masked keys are given a number."""
    if which == "padding":
        return attended(seen=everywhere, padding=False, given=number)
    return attended(seen=everywhere, bias=lambda head, distance: number * (distance > 0))


def texts(a: np.ndarray, b: np.ndarray, real: np.ndarray = REAL) -> list[str]:
    return [
        it.text for found in AttentionCore().explain(site_of(a, b, BEFORE, real=real)) for it in (found, *found.also)
    ]


@pytest.mark.parametrize("which", ["padding", "later"])
@pytest.mark.parametrize("number", [-1.0, -3.0, -5.0, -10.0, -4.32])
def test_a_finite_mask_is_named_with_its_number(which: str, number: float) -> None:
    assert texts(HIDDEN[which], given(which, number)) == [TEXTS[which].format("hidden", f"given {number:g}")]


@pytest.mark.parametrize("which", ["padding", "later"])
def test_a_finite_mask_of_the_reference_is_named(which: str) -> None:
    assert texts(given(which, -4.0), HIDDEN[which]) == [TEXTS[which].format("given -4", "hidden")]


def inverted(number: float) -> np.ndarray:
    """Return what heads take where a number is subtracted from the scores of keys that are not padding, in single precision."""
    result = np.zeros(QUERY.shape)
    for example in range(len(QUERY)):
        query = QUERY[example].reshape(-1, HEADS, SIZE)
        key, value = (np.repeat(it[example].reshape(-1, PAIRS, SIZE), HEADS // PAIRS, axis=1) for it in (KEY, VALUE))
        scores = np.einsum("qhd,khd->hqk", query, key) * SIZE**-0.5
        scores = np.where(REAL[example], (scores - number).astype(np.float32), scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        result[example] = np.einsum("hqk,khd->qhd", weights, value).reshape(-1, HEADS * SIZE)
    return result


@pytest.mark.parametrize("number", [1e4, 1e9, 3e38])
def test_an_inverted_mask_is_named(number: float) -> None:
    text = TEXTS["padding"].format("hidden", "seen in place of the text")
    assert texts(HIDDEN["padding"], inverted(number)) == [text]


def test_a_mask_with_two_numbers_is_not_named() -> None:
    b = attended(seen=everywhere, bias=lambda head, distance: -3.0 * (distance > 0) - 1.0 * (distance > 2))
    assert not texts(HIDDEN["later"], b)


def shared_out(axis: int, *, shown: bool = True, masked: float = 0.0) -> np.ndarray:
    """Return what heads take with a softmax of causal scores over an axis of (head, query, key), with masked exponentials."""
    result = np.zeros(QUERY.shape)
    for example in range(len(QUERY)):
        query = QUERY[example].reshape(-1, HEADS, SIZE)
        key, value = (np.repeat(it[example].reshape(-1, PAIRS, SIZE), HEADS // PAIRS, axis=1) for it in (KEY, VALUE))
        weights = np.exp(np.einsum("qhd,khd->hqk", query, key) * SIZE**-0.5)
        seen = np.tri(weights.shape[1]) * (1 if shown else REAL[example])
        weights = np.where(seen, weights, masked)
        total = weights.sum(axis, keepdims=True)
        weights = np.where(total > 0, weights / np.where(total > 0, total, 1), 1 / weights.shape[axis])
        result[example] = np.einsum("hqk,khd->qhd", weights, value).reshape(-1, HEADS * SIZE)
    return result


@pytest.mark.parametrize("shown", [False, True])
def test_a_softmax_over_queries_is_named(shown: bool) -> None:
    a, b = attended(seen=causal), shared_out(1, shown=shown)
    assert texts(a, b) == ["the softmax is over keys in a and queries in b"]
    assert texts(b, a) == ["the softmax is over queries in a and keys in b"]
    np.testing.assert_allclose(shared_out(2, shown=False)[REAL], a[REAL])


@pytest.mark.parametrize("score", [-2, 0])
def test_a_score_in_place_of_masked_ones_is_named(score: int) -> None:
    a, b = attended(seen=causal), shared_out(2, masked=np.exp(score))
    assert texts(a, b) == [f"masked positions are hidden in a and scored {score} in b"]


def test_padding_and_later_positions_that_are_given_a_number_are_named() -> None:
    b = attended(seen=everywhere, padding=False, bias=lambda head, distance: -8.0 * (distance > 0))
    assert texts(attended(), b) == ["masked positions are hidden in a and given -8 in b"]


def test_a_softmax_over_heads_is_not_one_over_queries() -> None:
    assert not texts(attended(seen=causal), shared_out(0))


def test_a_query_that_sees_earlier_keys_alone_may_see_itself_where_there_are_none() -> None:
    a, b = attended(), attended(seen=lambda row, column: column < row or row == column == 0)
    assert texts(a, b) == ["later keys that the causal mask shows 0 in a and -1 in b"]
    assert texts(b, a) == ["later keys that the causal mask shows -1 in a and 0 in b"]
    assert not texts(a, attended(seen=lambda row, column: column < row or row == column <= 1))


def test_heads_are_split_and_joined_by_feature() -> None:
    query, key, value = (
        values.reshape(*values.shape[:2], SIZE, -1).swapaxes(2, 3).reshape(values.shape)
        for values in (QUERY, KEY, VALUE)
    )
    heads = attended(query, key, value).reshape(*QUERY.shape[:2], HEADS, SIZE)
    assert texts(attended(), heads.swapaxes(2, 3).reshape(QUERY.shape)) == [
        "queries, keys and values are split into heads by head in a and by feature in b",
        "the heads' outputs are joined by head in a and by feature in b",
    ]


LEFT = REAL[:, ::-1]
PLACES = np.maximum(LEFT.cumsum(1) - 1, 0)
ROTARY = {"base": 10000.0}


def placed(b: np.ndarray, places: np.ndarray = PLACES) -> Site:
    """Return a site of texts that are padded on the left, with position ids."""
    a = attended(rotary=ROTARY, places=PLACES, real=LEFT)
    site = site_of(a, b, BEFORE, real=LEFT)
    batches = [TokenBatch(site.ids, LEFT.astype(int), extras={"position_ids": numbers}) for numbers in (PLACES, places)]
    first, second = (replace(recording, batch=batch) for recording, batch in zip(site.recordings, batches, strict=True))
    return replace(site, recordings=(first, second))


def test_rotary_positions_are_the_batchs_position_ids() -> None:
    shown = attended(rotary=ROTARY, places=PLACES, real=LEFT, padding=False)
    (found,) = AttentionCore().explain(placed(shown))
    assert [found.text, *(it.text for it in found.also)] == ["padding is hidden in a and attended to in b"]
    assert not AttentionCore().explain(placed(shown, PLACES + 1))  # without common ids the positions are unknown


def test_rotary_positions_of_a_port_that_takes_no_position_ids_are_named() -> None:
    (found,) = AttentionCore().explain(placed(attended(rotary=ROTARY, real=LEFT, padding=False)))
    assert {found.text, *(it.text for it in found.also)} == {
        "padding is hidden in a and attended to in b",
        "rotary positions are those of the tokens' position ids in a and places in the batch in b",
    }
