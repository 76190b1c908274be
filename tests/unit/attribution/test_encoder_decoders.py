"""Attributions of output tokens by encoder-decoders: closed forms on both sides, padding, baselines, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad import attribute_tokens
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.language_models import (
    DECODER,
    DECODER_MASK,
    DIM,
    PAIR,
    SOURCE,
    SOURCE_MASK,
    VOCAB,
    Generating,
    encoder_decoder,
    encoder_decoder_with_axis,
    log_softmax,
    means,
    weights,
)
from tests.unit.objectives.test_log_probability import words

METHODS = ("saliency", "input_x_gradient", embgrad.methods.IntegratedGradients(40), embgrad.methods.Occlusion(11))
WEIGHTS = weights()
E, D, W = WEIGHTS["E"], WEIGHTS["D"], WEIGHTS["W"]


def pair(example: int) -> dict[str, np.ndarray]:
    """One example of the pairs, without padding."""
    return {
        "input_ids": SOURCE[example : example + 1, SOURCE_MASK[example] == 1],
        "decoder_input_ids": DECODER[example : example + 1, DECODER_MASK[example] == 1],
    }


def test_both_sides_of_an_encoder_decoder_have_their_closed_forms() -> None:
    contrast = 3
    for method in ("saliency", "input_x_gradient", "integrated_gradients", embgrad.methods.Occlusion(1)):
        result = attribute_tokens(encoder_decoder(), pair(0), contrast=contrast, method=method)
        assert result.decoder_scores is not None
        assert result.scores.shape == (1, 4, 4)
        assert result.decoder_scores.shape == (1, 4, 5)
        for output in range(4):
            direction = W[:, DECODER[0, output + 1]] - W[:, contrast]
            before = DECODER[0, : output + 1]
            if method == "saliency":
                sides = [np.full(4, np.linalg.norm(direction / 4)), np.linalg.norm(direction / (output + 1))]
            else:
                away = [E[1], D[1]] if isinstance(method, embgrad.methods.Occlusion) else [0, 0]
                sides = [(E[SOURCE[0]] - away[0]) @ direction / 4, (D[before] - away[1]) @ direction / (output + 1)]
            np.testing.assert_allclose(result.scores[0, output], sides[0], atol=1e-13)
            np.testing.assert_allclose(result.decoder_scores[0, output, : output + 1], sides[1], atol=1e-13)
            assert not result.decoder_scores[0, output, output + 1 :].any()
        if method in ("input_x_gradient", "integrated_gradients"):
            sums = result.scores.sum(-1) + result.decoder_scores.sum(-1)
            np.testing.assert_allclose(sums, result.objective, rtol=1e-12)


@pytest.mark.parametrize("batch_size", [None, 1])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_padded_batch_of_pairs_equals_each_pair_alone(method: Any, batch_size: Any) -> None:
    result = attribute_tokens(encoder_decoder(), PAIR, method=method, batch_size=batch_size)
    assert result.decoder_scores is not None
    np.testing.assert_array_equal(result.outputs, [[1, 2, 3, 4], [3, 4, -1, -1]])
    np.testing.assert_array_equal(result.decoder_ids, DECODER)
    np.testing.assert_array_equal(result.decoder_mask, DECODER_MASK)
    for example, count in ((0, 4), (1, 2)):
        single = attribute_tokens(encoder_decoder(), pair(example), method=method)
        assert single.decoder_scores is not None
        assert single.decoder_mask is None
        sides = (
            (result.scores, single.scores, SOURCE_MASK),
            (result.decoder_scores, single.decoder_scores, DECODER_MASK),
        )
        for of_batch, of_one, mask in sides:
            real = mask[example] == 1
            np.testing.assert_allclose(of_batch[example, :count][:, real], of_one[0], atol=1e-13)
            assert not of_batch[example][:, ~real].any()
            assert not of_batch[example, count:].any()
        np.testing.assert_allclose(result.objective[example, :count], single.objective[0], rtol=1e-12)


@pytest.mark.parametrize("shape", [(2, 3, 5), (4, 3, 5), (4, 5, 3), (4, 5, 5), (5, 5, 4), (13, 3, 5)], ids=str)
@pytest.mark.parametrize("encoder", [encoder_decoder, encoder_decoder_with_axis], ids=["plain", "another axis"])
@pytest.mark.parametrize(
    "method", ["saliency", embgrad.methods.IntegratedGradients(40), embgrad.methods.Occlusion(1)], ids=str
)
def test_each_of_many_pairs_has_the_scores_of_the_pair_alone(method: Any, encoder: Any, shape: Any) -> None:
    examples, positions, outputs = shape
    draws = np.random.default_rng(0)
    source, target = draws.integers(1, VOCAB, (examples, positions)), draws.integers(1, VOCAB, (examples, outputs))
    result = attribute_tokens(encoder(), {"input_ids": source, "decoder_input_ids": target}, method=method)
    assert result.decoder_scores is not None
    for row in range(examples):
        batch = {"input_ids": source[row : row + 1], "decoder_input_ids": target[row : row + 1]}
        single = attribute_tokens(encoder(), batch, method=method)
        assert single.decoder_scores is not None
        np.testing.assert_allclose(result.scores[row], single.scores[0], atol=1e-13)
        np.testing.assert_allclose(result.decoder_scores[row], single.decoder_scores[0], atol=1e-13)


@pytest.mark.parametrize("baseline", ["zero", 1, np.int64(1), "pad"], ids=repr)
def test_the_baseline_of_an_encoder_decoder_stands_on_both_sides(baseline: Any) -> None:
    method = embgrad.methods.IntegratedGradients(60, baseline=baseline)
    result = attribute_tokens(encoder_decoder(), PAIR, method=method)
    model = encoder_decoder()
    ids = np.ones((1, 5), int) if baseline == 1 else np.zeros((1, 5), int)
    at = np.zeros((1, 5, VOCAB)) if baseline == "zero" else model(ids, None, ids).value
    expected = log_softmax(at)[0, np.arange(4), DECODER[0, 1:]]
    assert result.baseline_objective is not None
    assert result.delta is not None
    np.testing.assert_allclose(result.baseline_objective[0], expected, rtol=1e-12)
    np.testing.assert_allclose(result.delta[0], 0, atol=1e-9)


def test_an_encoder_decoder_continues_from_its_start() -> None:
    model = Generating(decoder=True)
    batch = {"input_ids": SOURCE, "attention_mask": SOURCE_MASK}
    plain = attribute_tokens(model, batch, generate=4)
    assert plain.decoder_ids is not None
    np.testing.assert_array_equal(plain.outputs, [[1, 2, 3, 4]] * 2)
    np.testing.assert_array_equal(plain.decoder_ids[:, 0], 0)
    given = attribute_tokens(encoder_decoder(), {**batch, "decoder_input_ids": plain.decoder_ids})
    np.testing.assert_allclose(plain.scores, given.scores, atol=1e-14)
    np.testing.assert_allclose(plain.decoder_scores, given.decoder_scores, atol=1e-14)
    end = int(plain.output_ids[0, 0])
    ended = attribute_tokens(Generating(decoder=True, eos=end), batch, generate=4)
    assert ended.decoder_mask is not None
    assert ended.decoder_mask[0].tolist() == [1, 1, *[0] * (ended.decoder_mask.shape[1] - 2)]
    np.testing.assert_array_equal(ended.outputs[0], [1, *[-1] * (ended.shape[1] - 1)])
    np.testing.assert_allclose(ended.objective[0, 0], plain.objective[0, 0], rtol=1e-12)


def test_the_decoders_tokens_are_named() -> None:
    batch = {"input_ids": [[3, 4]], "decoder_input_ids": [[1, 5, 6]]}
    result = attribute_tokens(encoder_decoder(), batch, tokenizer=words())
    assert result.tokens == (("the", "film"),)
    assert result.decoder_tokens == (("[START]", "is", "great"),)
    assert result.output_tokens == (("is", "great"),)


def test_an_encoder_decoder_without_decoder_ids_is_refused() -> None:
    message = (
        "ReferenceModel is an encoder-decoder, and the batch has no 'decoder_input_ids': give the ids of the output"
    )
    for extras in ({}, {"labels": DECODER[:, :4]}):
        with pytest.raises(embgrad.errors.BatchError, match=re.escape(message)):
            attribute_tokens(encoder_decoder(), {"input_ids": SOURCE, **extras})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"at": "D"}, embgrad.errors.PointError,
            "at is 'D': expected 'word' for an encoder-decoder, whose inputs are the rows"),
        (
            {"method": embgrad.methods.IntegratedGradients(2, baseline=np.zeros(DIM))},
            embgrad.errors.UnsupportedError,
            "the baseline of an encoder-decoder is put in place of the encoder's and the decoder's tokens: expected 'auto'",
        ),
        (
            {"method": embgrad.methods.IntegratedGradients(2, baseline=np.zeros((2, DIM))), "contrast": [[[7, 8, 9]]],
                "targets": [-1]},
            embgrad.errors.UnsupportedError,
            "the baseline of an encoder-decoder is put in place of the encoder's and the decoder's tokens: expected 'auto'",
        ),
        ({"method": embgrad.methods.IntegratedGradients(2, baseline=[0.0] * DIM)}, embgrad.errors.UnsupportedError,
            "the baseline of an encoder-decoder is put in place of"),
        ({"method": embgrad.methods.IntegratedGradients(2, keep_special=True), "tokenizer": words()},
            embgrad.errors.UnsupportedError, "and keep_special=False"),
    ],
)  # fmt: skip
def test_what_an_encoder_decoder_cannot_do_is_refused(options: dict[str, Any], error: Any, message: str) -> None:
    batch = {"input_ids": [[3, 4]], "decoder_input_ids": [[1, 5, 6]]}
    with pytest.raises(error, match=re.escape(message)):
        attribute_tokens(encoder_decoder(), batch, **options)


def test_a_baseline_outside_the_decoders_table_is_refused() -> None:
    model = encoder_decoder()
    model.parameters["D"] = Tensor(D[:9])
    batch = {"input_ids": [[3, 11]], "decoder_input_ids": [[1, 5, 6]]}
    with pytest.raises(
        embgrad.errors.BatchError, match="the baseline's id 11 is outside the decoder's table, which has 9 rows"
    ):
        attribute_tokens(model, batch, method=embgrad.methods.IntegratedGradients(2, baseline=11))


def test_a_decoder_whose_lookup_is_not_known_is_refused() -> None:
    def twice(model: Any, input_ids: np.ndarray, attention_mask: Any = None, decoder_input_ids: Any = None) -> Tensor:
        source = lookup(model["E"], input_ids).mean(1).reshape(len(input_ids), 1, DIM)
        rows = lookup(model["D"], decoder_input_ids) + lookup(model["F"], decoder_input_ids)
        return (means(rows, None) + source) @ model["W"]

    def shifted(model: Any, input_ids: np.ndarray, attention_mask: Any = None, decoder_input_ids: Any = None) -> Tensor:
        source = lookup(model["E"], input_ids).mean(1).reshape(len(input_ids), 1, DIM)
        return (means(lookup(model["D"], decoder_input_ids - 1), None) + source) @ model["W"]

    for forward, message in (
        (twice, "2 lookups have the decoder's ids as indices ("),
        (shifted, "0 lookups have the decoder's ids as indices ("),
    ):
        model = ReferenceModel(forward, {**WEIGHTS, "F": WEIGHTS["D"] + 1})
        with pytest.raises(embgrad.errors.PointError, match=re.escape(message)):
            attribute_tokens(model, pair(0))


def test_special_tokens_of_a_decoder_are_not_known() -> None:
    message = "keep_special=True leaves special tokens, and those of a decoder are not known: give keep_special=False"
    with pytest.raises(embgrad.errors.UnsupportedError, match=message):
        embgrad.attribute_tokens(encoder_decoder(), PAIR, method=embgrad.methods.Occlusion(3, keep_special=True))
