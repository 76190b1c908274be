"""Contributions that are passed on through intermediate tokens: closed forms of linear models, and sums over paths."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad import EmbgradError, attribute_tokens
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.language_models import (
    PAIR,
    Generating,
    causal,
    encoder_decoder,
    log_softmax,
    means,
    weights,
)
from tests.unit.attribution.test_attribute_tokens import BATCH, alone
from tests.unit.objectives.test_log_probability import words

WEIGHTS = weights()
E, W = WEIGHTS["E"], WEIGHTS["W"]


def by_paths(direct: np.ndarray, shares: dict[int, np.ndarray], hops: int) -> np.ndarray:
    """Return the contributions after some hops, as sums over all paths of at most so many steps."""
    total = np.zeros_like(direct)

    def walk(position: int, amount: float, left: int) -> None:
        if position not in shares or not left:
            total[position] += amount
            return
        for before, share in enumerate(shares[position]):
            if share:
                walk(before, amount * share, left - 1)

    for position, amount in enumerate(direct.tolist()):
        walk(position, amount, hops)
    return total


def expected_shares(ids: np.ndarray, positions: list[int]) -> dict[int, np.ndarray]:
    """Return by intermediate token the shares of the tokens before it, from the linear model's closed form."""
    each = log_softmax(causal()(ids[None]).value)[0]
    shares = {}
    for at in positions:
        slope = W @ (np.eye(len(E))[ids[at]] - np.exp(each[at - 1])) / at
        sizes = np.zeros(len(ids))
        sizes[:at] = np.abs(E[ids[:at]] @ slope)
        shares[at] = sizes / sizes.sum()
    return shares


@pytest.mark.parametrize("hops", [1, 2, 3, 9])
def test_hops_have_the_closed_form_of_a_linear_model(hops: int) -> None:
    ids, contrast = np.array([2, 7, 1, 5, 9, 4, 8]), 3
    result = attribute_tokens(causal(), ids[None], [-1], contrast, hops=hops, through=slice(2, 6))
    direct = np.zeros(7)
    direct[:6] = E[ids[:6]] @ (W[:, ids[6]] - W[:, contrast]) / 6
    shares = expected_shares(ids, [2, 3, 4, 5])
    np.testing.assert_allclose(result.scores[0, 0], by_paths(direct, shares, hops), atol=1e-12)
    np.testing.assert_allclose(result.scores.sum(), direct.sum(), rtol=1e-12)
    if hops >= 4:  # nothing remains: the sum over all paths is a geometric series of matrices
        matrix = np.stack(list(shares.values()))
        among, back = matrix[:, 2:6], matrix[:, :2]
        whole = direct[:2] + direct[2:6] @ np.linalg.inv(np.eye(4) - among) @ back
        np.testing.assert_allclose(result.scores[0, 0, :2], whole, atol=1e-12)
        assert not result.scores[0, 0, 2:].any()
    assert result.provenance["hops"] == hops
    assert result.provenance["through"] == [[2, 3, 4, 5]]


def test_a_chain_of_equal_tokens_is_followed_by_its_own_weights() -> None:
    """Every position reads the one before it alone, so that all of a contribution arrives at the prompt."""

    def before(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        return lookup(model["E"], input_ids) @ model["W"]

    model = ReferenceModel(before, weights())
    ids = np.array([[2, 7, 1, 5, 9]])
    direct = attribute_tokens(model, ids, [-1])
    np.testing.assert_allclose(direct.scores[0, 0, :3], 0, atol=1e-15)
    for hops, at in ((1, 2), (2, 1), (3, 1)):
        result = attribute_tokens(model, ids, [-1], hops=hops, through=slice(2, 4))
        np.testing.assert_allclose(result.scores[0, 0, at], direct.scores[0, 0, 3], rtol=1e-12)
        assert np.count_nonzero(result.scores) == 1


@pytest.mark.parametrize(
    "method",
    ["saliency", "input_x_gradient", embgrad.methods.IntegratedGradients(40), embgrad.methods.Occlusion(11)],
    ids=str,
)
def test_a_padded_batch_of_spans_equals_each_example_alone(method: Any) -> None:
    wanted, through = [[slice(3, 5)], [-1], [-1]], [[2], [-2], [1]]
    result = attribute_tokens(causal(), BATCH, wanted, method=method, hops=2, through=through)
    direct = attribute_tokens(causal(), BATCH, wanted, method=method)
    np.testing.assert_allclose(result.scores.sum(-1), direct.scores.sum(-1), atol=1e-12)
    for name in ("delta", "error", "objective"):
        np.testing.assert_array_equal(getattr(result, name), getattr(direct, name))
    real = [slice(None), slice(2, None), slice(0, 3)]
    for example in range(3):
        single = attribute_tokens(
            causal(), alone(example), wanted[example], method=method, hops=2, through=[2] if example == 0 else [1]
        )
        np.testing.assert_allclose(result.scores[example, 0, real[example]], single.scores[0, 0], atol=1e-12)
    rows = attribute_tokens(causal(), alone(0), [2], method=method).scores[0, 0]
    assert result.scores[0, 0, 2] == 0
    moved = direct.scores[0, 0] + direct.scores[0, 0, 2] * np.abs(rows) / np.abs(rows).sum()
    moved[2] = 0
    np.testing.assert_allclose(result.scores[0, 0], moved, atol=1e-12)


def test_hops_go_through_what_the_model_generated_before_an_output() -> None:
    plain = attribute_tokens(Generating(), BATCH, generate=3)
    hopped = attribute_tokens(Generating(), BATCH, generate=3, hops=3)
    np.testing.assert_allclose(hopped.scores[:, 0], plain.scores[:, 0], atol=1e-14)  # of the first nothing is between
    assert not hopped.scores[:, :, 5:].any()
    assert plain.scores[:, 2, 5:7].all()
    np.testing.assert_allclose(hopped.scores.sum(-1), plain.scores.sum(-1), atol=1e-13)
    one = attribute_tokens(Generating(), BATCH, [-1], generate=3, hops=1)
    assert one.scores[:, 0, 5].all()
    assert not one.scores[:, 0, 6].any()


def test_a_span_keeps_what_its_own_tokens_contribute() -> None:
    ids = np.array([[2, 7, 1, 5, 9, 4, 8]])
    result = attribute_tokens(causal(), ids, [slice(4, None)], hops=9, through=slice(2, None))
    direct = attribute_tokens(causal(), ids, [slice(4, None)])
    assert not result.scores[0, 0, 2:4].any()
    np.testing.assert_allclose(result.scores[0, 0, 4:], direct.scores[0, 0, 4:], atol=1e-14)
    both = attribute_tokens(causal(), ids, [slice(2, 5), 6], hops=9, through=slice(2, None))
    first, second = (attribute_tokens(causal(), ids, [wanted]) for wanted in (slice(2, 5), 6))
    np.testing.assert_array_equal(both.scores[0, 0], first.scores[0, 0])  # nothing stands between it and the prompt
    assert second.scores[0, 0, 2:6].all()
    assert not both.scores[0, 1, 2:6].any()


def test_hops_of_a_decoder_go_to_both_sides() -> None:
    result = attribute_tokens(encoder_decoder(), PAIR, [-1], hops=9, through=[[1, 2, 3], [3]])
    direct = attribute_tokens(encoder_decoder(), PAIR, [-1])
    rows = attribute_tokens(encoder_decoder(), PAIR, [[1, 2, 3], [3]])
    assert result.decoder_scores is not None
    assert direct.decoder_scores is not None
    assert rows.decoder_scores is not None
    for example, between in enumerate([[1, 2, 3], [3]]):
        whole = np.concatenate([direct.scores[example, 0], direct.decoder_scores[example, 0]])
        sizes = np.abs(np.concatenate([rows.scores[example], rows.decoder_scores[example]], 1))
        shares = {4 + at: sizes[number] / sizes[number].sum() for number, at in enumerate(between)}
        expected = by_paths(whole, shares, 9)
        np.testing.assert_allclose(result.scores[example, 0], expected[:4], atol=1e-13)
        np.testing.assert_allclose(result.decoder_scores[example, 0], expected[4:], atol=1e-13)
        assert not result.decoder_scores[example, 0, between].any()


def test_a_token_that_depends_on_nothing_keeps_its_contribution() -> None:
    def only_last(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        logits = means(lookup(model["E"], input_ids), attention_mask) @ model["W"]
        return logits * Tensor(np.where(np.arange(input_ids.shape[1]) == 2, 1.0, 0.0)[:, None])

    model = ReferenceModel(only_last, weights())
    direct = attribute_tokens(model, [[2, 7, 1, 5]], [3])
    result = attribute_tokens(model, [[2, 7, 1, 5]], [3], hops=2, through=[1, 2])
    np.testing.assert_array_equal(result.scores, direct.scores)


def test_contrasts_of_several_tokens_and_texts_go_through_as_well() -> None:
    options: dict[str, Any] = {"contrast": "bad film", "tokenizer": words()}
    text = ["the film is great is bad"]
    direct = attribute_tokens(causal(), text, [slice(5, None)], **options)
    result = attribute_tokens(causal(), text, [slice(5, None)], hops=5, through="is great", **options)
    assert not result.scores[0, 0, 3:5].any()
    assert direct.scores[0, 0, 3:5].all()
    np.testing.assert_allclose(result.scores.sum(-1), direct.scores.sum(-1), rtol=1e-12)
    np.testing.assert_array_equal(result.contrast_scores, direct.contrast_scores)
    none_between = attribute_tokens(causal(), text, [2], hops=5, through="is great", tokenizer=words())
    np.testing.assert_array_equal(none_between.scores, attribute_tokens(causal(), text, [2], tokenizer=words()).scores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"hops": -1},
            "hops is -1: expected how many times the contributions of intermediate tokens are passed on, 0 or more",
        ),
        ({"hops": True}, "hops is True: expected how many times"),
        ({"hops": 1.5}, "hops is 1.5: expected how many times"),
        ({"through": [1]}, "through is [1], and hops is 0, so that nothing goes through it: give hops=1 or more"),
        (
            {"hops": 2},
            "hops is 2, and which tokens are intermediate is not known: give through=..., such as slice(20, -3)",
        ),
        ({"hops": 2, "through": [0]}, "through: the target 0 of example 0 is not a token with a real token before it"),
    ],
)
def test_what_cannot_be_followed_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EmbgradError, match=re.escape(message)):
        attribute_tokens(causal(), [[2, 7, 1, 5]], [-1], **options)
