"""Attributions of output tokens: closed forms, single calls, padding, generation, and what is refused in which words."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import tokenizers

import embgrad
from embgrad import EmbgradError, EmbgradWarning, LogProbability, TokenBatch, attribute_tokens
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.language_models import (
    DIM,
    VOCAB,
    Generating,
    causal,
    encoder_decoder,
    encoder_decoder_with_axis,
    headless,
    log_softmax,
    means,
    weights,
)
from tests.unit.objectives.test_log_probability import words
from tests.unit.refusals import refused

IDS = np.array([[2, 7, 1, 5, 9], [0, 0, 4, 9, 3], [8, 6, 10, 0, 0]])
MASK = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
BATCH = TokenBatch(IDS, MASK)
METHODS = ("saliency", "input_x_gradient", embgrad.methods.IntegratedGradients(40), embgrad.methods.Occlusion(11))
WEIGHTS = weights()
E, D, W = WEIGHTS["E"], WEIGHTS["D"], WEIGHTS["W"]


def alone(example: int) -> np.ndarray:
    """The example's real tokens, as a batch of one."""
    return IDS[example : example + 1, MASK[example] == 1]


def label(ids: np.ndarray, position: int) -> LogProbability:
    return LogProbability(np.where(np.arange(ids.shape[1]) == position, ids, -100))


def test_with_contrast_the_contributions_are_the_closed_form_of_a_linear_model() -> None:
    ids = alone(0)
    row, contrast = ids[0], 3
    expected = np.zeros((4, 5))
    occluded = np.zeros((4, 5))
    norms = np.zeros((4, 5))
    for output in range(4):
        direction = (W[:, row[output + 1]] - W[:, contrast]) / (output + 1)
        expected[output, : output + 1] = E[row[: output + 1]] @ direction
        occluded[output, : output + 1] = (E[row[: output + 1]] - E[11]) @ direction
        norms[output, : output + 1] = np.linalg.norm(direction)
    by_name = {"input_x_gradient": expected, "integrated_gradients": expected, "saliency": norms}
    for method, scores in by_name.items():
        result = attribute_tokens(causal(), ids, contrast=contrast, method=method)
        np.testing.assert_allclose(result.scores[0], scores, atol=1e-13)
        np.testing.assert_allclose(result.objective[0], expected.sum(1), rtol=1e-12)
        np.testing.assert_array_equal(result.contrast_ids, [[3] * 4])
    result = attribute_tokens(causal(), ids, contrast=contrast, method=embgrad.methods.Occlusion(11))
    np.testing.assert_allclose(result.scores[0], occluded, atol=1e-13)


def test_the_objective_is_the_log_probability_and_the_gradient_its_closed_form() -> None:
    ids = alone(0)
    result = attribute_tokens(causal(), ids)
    each = log_softmax(causal()(ids).value)[0]
    np.testing.assert_allclose(result.objective[0], each[np.arange(4), ids[0, 1:]], rtol=1e-12)
    for output in range(4):
        slope = W @ (np.eye(VOCAB)[ids[0, output + 1]] - np.exp(each[output])) / (output + 1)
        np.testing.assert_allclose(result.scores[0, output, : output + 1], E[ids[0, : output + 1]] @ slope, rtol=1e-10)
        assert not result.scores[0, output, output + 1 :].any()


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_each_output_equals_a_single_call(method: Any) -> None:
    ids = alone(0)
    result = attribute_tokens(causal(), ids, method=method)
    for output in range(4):
        objective = label(ids, output + 1)
        if isinstance(method, str):
            single = embgrad.gradients(causal(), ids, objective)
            expected = single.saliency("norm") if method == "saliency" else (single.values * single.activations).sum(-1)
            np.testing.assert_array_equal(result.scores[0, output], expected[0])
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", EmbgradWarning)
                expected = embgrad.attribute(causal(), ids, objective, method).scores
            np.testing.assert_allclose(result.scores[0, output], expected[0], atol=1e-12)
        np.testing.assert_allclose(
            result.objective[0, output], embgrad.evaluate(causal(), ids, objective)[0], rtol=1e-13
        )


@pytest.mark.parametrize("batch_size", [None, 1, 2])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_padded_batch_equals_each_example_alone(method: Any, batch_size: Any) -> None:
    result = attribute_tokens(causal(), BATCH, method=method, batch_size=batch_size)
    assert result.shape == (3, 4, 5)
    np.testing.assert_array_equal(result.outputs, [[1, 2, 3, 4], [3, 4, -1, -1], [1, 2, -1, -1]])
    np.testing.assert_array_equal(result.output_ids, [[7, 1, 5, 9], [9, 3, -1, -1], [6, 10, -1, -1]])
    np.testing.assert_array_equal(result.ids, IDS)
    np.testing.assert_array_equal(result.mask, MASK)
    for example in range(3):
        single = attribute_tokens(causal(), alone(example), method=method)
        count = single.shape[1]
        real = MASK[example] == 1
        np.testing.assert_allclose(result.scores[example, :count][:, real], single.scores[0], rtol=0, atol=1e-13)
        assert not result.scores[example][:, ~real].any()
        assert not result.scores[example, count:].any()
        for name in ("objective", "baseline_objective", "delta", "error"):
            of_batch, of_one = getattr(result, name), getattr(single, name)
            assert (of_batch is None) == (of_one is None)
            if of_batch is not None:
                np.testing.assert_allclose(of_batch[example, :count], of_one[0], rtol=0, atol=1e-13)
                assert np.isnan(of_batch[example, count:]).all()


def test_integrated_gradients_sum_to_the_difference_of_the_log_probabilities() -> None:
    for baseline in ("zero", 11, np.ones(DIM)):
        method = embgrad.methods.IntegratedGradients(60, baseline=baseline)
        result = attribute_tokens(causal(), alone(0), method=method)
        assert result.baseline_objective is not None
        assert result.delta is not None
        if isinstance(baseline, int):
            at_baseline = log_softmax(causal()(np.full((1, 5), 11)).value)[0, np.arange(4), IDS[0, 1:]]
            np.testing.assert_allclose(result.baseline_objective[0], at_baseline, rtol=1e-12)
        if isinstance(baseline, str):
            np.testing.assert_allclose(result.baseline_objective, -np.log(VOCAB), rtol=1e-12)
        np.testing.assert_allclose(
            result.scores.sum(-1), result.objective - result.baseline_objective, rtol=0, atol=1e-10
        )
        np.testing.assert_allclose(result.delta, 0, atol=1e-10)


def test_too_few_steps_are_a_warning() -> None:
    sharp = causal()
    sharp.parameters["W"].value = sharp.parameters["W"].value * 30
    with pytest.warns(
        EmbgradWarning,
        match=r"with 1 steps the contributions to \d of 4 output tokens miss .* than 0.01 of it, .*more steps",
    ) as recorded:
        attribute_tokens(sharp, alone(0), method=embgrad.methods.IntegratedGradients(1))
    assert [warning.filename for warning in recorded] == [__file__]


def test_special_tokens_may_keep_their_values() -> None:
    ids = np.array([[1, 3, 4, 2]])
    for method in (
        embgrad.methods.Occlusion(7, keep_special=True),
        embgrad.methods.IntegratedGradients(30, keep_special=True),
    ):
        result = attribute_tokens(causal(), ids, method=method, tokenizer=words())
        assert not result.scores[..., 0].any()
        assert result.scores[0, 2, 1:3].all()


def test_tokens_are_named_where_a_tokenizer_is_given() -> None:
    tokenizer = words()
    result = attribute_tokens(causal(), ["the film is great", "film"], tokenizer=tokenizer, targets=slice(2, None))
    assert result.output_tokens == (("film", "is", "great", "[END]"), ("[END]",))
    assert result.tokens is not None
    assert result.tokens[0] == ("[START]", "the", "film", "is", "great", "[END]")
    assert result.texts == ("the film is great", "film")
    assert result.offsets is not None
    assert attribute_tokens(causal(), IDS[:, 2:]).output_tokens is None
    named = attribute_tokens(causal(), TokenBatch([[3, 4, 7]]), tokenizer=tokenizer, contrast=" bad", targets=-1)
    assert named.output_tokens == (("bad",),)
    assert named.objective.item() == 0
    assert "contrastive at 'word' of embgrad.testing.tensors.ReferenceModel" in repr(named)


@pytest.mark.parametrize(
    ("contrast", "is_warned"), [("is", True), (" is", False), (",", False), ([["is"]], True), ([[4]], False)]
)
def test_a_contrast_without_the_space_of_the_output_is_warned_of(contrast: Any, is_warned: bool) -> None:
    vocabulary = {"the": 3, "is": 4, "\u0120keys": 5, "\u0120are": 6, "\u0120is": 7, ",": 8}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="the"))  # type: ignore[attr-defined]
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[attr-defined]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EmbgradWarning)
        result = attribute_tokens(causal(), ["the keys are"], targets=-1, contrast=contrast, tokenizer=tokenizer)
    assert result.output_tokens == (("\u0120are",),)
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == is_warned
    if is_warned:
        assert messages[0].startswith(
            "the contrast 'is' begins without the space of '\u0120are', in whose place it stands"
        )
        assert "Give ' is' for the word" in messages[0]
        assert caught[0].filename == __file__


def test_the_result_says_how_it_was_computed() -> None:
    result = attribute_tokens(causal(), BATCH, targets=-1, method=embgrad.methods.IntegratedGradients(40))
    assert result.method == "IntegratedGradients"
    assert result.signed
    assert result.provenance["objective"] == {"class": "LogProbability", "contrast": False}
    assert result.provenance["method"]["steps"] == 40
    assert result.provenance["point"] == "word"
    assert result.provenance["path"] == "E#0"
    np.testing.assert_array_equal(np.asarray(result), result.scores)
    assert not attribute_tokens(causal(), BATCH, method="saliency").signed


def test_the_inputs_may_be_the_values_at_another_point() -> None:
    def hidden(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        rows = model.module("block", lambda rows: rows.tanh(), lookup(model["E"], input_ids))
        return means(rows, attention_mask) @ model["W"]

    model = ReferenceModel(hidden, WEIGHTS, ["block"])
    result = attribute_tokens(model, BATCH, at="block", contrast=3)
    row = IDS[0]
    direction = (W[:, row[4]] - W[:, 3]) / 4
    np.testing.assert_allclose(result.scores[0, 3, :4], np.tanh(E[row[:4]]) @ direction, rtol=1e-12)
    single = attribute_tokens(model, alone(1), at="block", contrast=3)
    np.testing.assert_allclose(result.scores[1, :2, 2:], single.scores[0], atol=1e-14)


def test_one_forward_pass_serves_all_output_tokens() -> None:
    model, passes = causal(), []
    forward = model.forward
    model.forward = lambda *args, **kwargs: (passes.append(1), forward(*args, **kwargs))[1]
    attribute_tokens(model, TokenBatch(np.array([[9, 3, 7, 1]])), call=lambda model, inputs: model(**inputs))
    assert len(passes) == 1


def test_the_model_is_left_as_it_was() -> None:
    model = causal()
    model.training = True
    before = {name: tensor.value.copy() for name, tensor in model.parameters.items()}
    for method in METHODS:
        attribute_tokens(model, BATCH, method=method)
    assert model.training
    for name, value in before.items():
        np.testing.assert_array_equal(model.parameters[name].value, value)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"method": "lime"},
            EmbgradError,
            "method is Lime: output tokens are attributed by 'Saliency', 'InputXGr",
        ),
        ({"method": "saliencies"}, EmbgradError, "Did you mean 'saliency'"),
        ({"at": ["word"]}, EmbgradError, "make a call for each point"),
        ({"at": "wrod"}, embgrad.errors.PointError, "wrod"),
        ({"batch_size": 0}, EmbgradError, "batch_size is 0"),
        (
            {"generate": 3},
            embgrad.errors.UnsupportedError,
            "ReferenceModel has no method generate(): give the prompts with",
        ),
        ({"generate": 0}, EmbgradError, "generate is 0: expected the number of new tokens, at least 1, or a dict"),
        ({"generate": True}, EmbgradError, "generate is True: expected the number of new tokens"),
        ({"generate": "greedy"}, EmbgradError, "generate is 'greedy': expected the number of new tokens"),
        (
            {"method": embgrad.methods.Occlusion("zero")},
            embgrad.errors.UnsupportedError,
            "replacement is 'zero': input tokens are replaced by an id here. Give 'mask', 'pad' or an id",
        ),
        (
            {"method": embgrad.methods.Occlusion(np.zeros(DIM))},
            embgrad.errors.UnsupportedError,
            "input tokens are replaced by an id here",
        ),
        ({"method": embgrad.methods.Occlusion("mask")}, embgrad.errors.BatchError, "the id of the mask is not known"),
        ({"method": embgrad.methods.Occlusion(99)}, embgrad.errors.BatchError, "id 99"),
        ({"method": embgrad.methods.IntegratedGradients(2, baseline=99)}, embgrad.errors.BatchError, "id 99"),
        ({"targets": 0}, EmbgradError, "the target 0 of example 0 is not a token"),
        ({"contrast": 99}, embgrad.errors.ObjectiveError, "against 99 at example 0, position 0 is out of range"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        attribute_tokens(causal(), BATCH, **options)


def test_a_misspelt_argument_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="contrast"):
        attribute_tokens(causal(), BATCH, contrasts=3)  # type: ignore[call-arg]


def test_a_model_that_is_not_causal_is_a_warning() -> None:
    def whole(model: Any, input_ids: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        return (rows + rows.mean(1).reshape(len(input_ids), 1, DIM)) @ model["W"]

    model = ReferenceModel(whole, WEIGHTS)
    for method in METHODS:
        with pytest.warns(
            EmbgradWarning,
            match="the output token at position 1 of example 0 depends on position 1: the model is not causal",
        ) as recorded:
            attribute_tokens(model, alone(0), method=method)
        assert {warning.filename for warning in recorded} == {__file__}


def test_rounding_at_later_tokens_is_no_dependence() -> None:
    def noisy(model: Any, input_ids: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        return (means(rows, None) + rows.mean(1).reshape(len(input_ids), 1, DIM) * 1e-9) @ model["W"]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = attribute_tokens(ReferenceModel(noisy, WEIGHTS), alone(0))
    assert not np.triu(result.scores[0], 1).any()


def test_outputs_that_do_not_depend_on_the_inputs_are_refused() -> None:
    def detached(model: Any, input_ids: np.ndarray) -> Tensor:
        return lookup(model["E"], input_ids).detach() @ model["W"]

    def infinite(model: Any, input_ids: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        wrong = Tensor(rows.value, [(rows, lambda g: g * np.nan)])
        return wrong @ model["W"]

    with pytest.raises(
        embgrad.errors.NoGradientError, match=r"the output tokens at index 0 do not depend on the point\s+'word'"
    ):
        attribute_tokens(ReferenceModel(detached, WEIGHTS), alone(0))
    with pytest.raises(
        embgrad.errors.NoGradientError,
        match="the gradient of the output tokens at index 0 at 'word' is nan at example 0",
    ):
        attribute_tokens(ReferenceModel(infinite, WEIGHTS), alone(0))


def test_a_point_without_a_vector_for_each_position_is_refused() -> None:
    def pooling(model: Any, input_ids: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        pooled = model.module("pool", lambda rows: rows.mean(1), rows)
        return (rows + pooled.reshape(len(input_ids), 1, DIM)) @ model["W"]

    def shared(model: Any, input_ids: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        return (rows + lookup(model["D"], np.arange(input_ids.shape[1]))) @ model["W"]

    for forward, at in ((pooling, "pool"), (shared, "D")):
        for method in ("saliency", "input_x_gradient"):
            with pytest.raises(
                embgrad.errors.UnsupportedError,
                match=r"the point has the shape \(.*expected one vector for each example and",
            ):
                attribute_tokens(ReferenceModel(forward, WEIGHTS, ["pool"]), alone(0), at=at, method=method)


def _positions_first(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    rows = model.module("block", lambda rows: rows.tanh(), lookup(model["E"], input_ids).swap(0, 1))
    return means(rows.swap(0, 1), attention_mask) @ model["W"]


@pytest.mark.parametrize("method", [*METHODS[:2], embgrad.methods.IntegratedGradients(5)], ids=str)
@pytest.mark.filterwarnings("ignore:.*contributions:embgrad.EmbgradWarning")
@pytest.mark.parametrize("ids", [IDS[:, 2:], np.arange(10).reshape(2, 5)], ids=["square", "longer"])
def test_a_point_whose_first_axis_is_the_positions_is_read_in_the_users_axes(method: Any, ids: np.ndarray) -> None:
    model = ReferenceModel(_positions_first, WEIGHTS, ["block"])
    result = attribute_tokens(model, ids, at="block", method=method)
    for output in range(ids.shape[1] - 1):
        single = embgrad.attribute(model, ids, label(ids, output + 1), method, at="block")
        np.testing.assert_allclose(result.scores[:, output], single.scores, atol=1e-13)


@pytest.mark.parametrize("batch_size", [None, 1])
def test_a_lookup_of_positions_that_equal_the_ids_is_no_input(batch_size: Any) -> None:
    def positional(model: Any, input_ids: np.ndarray) -> Tensor:
        columns = np.broadcast_to(np.arange(input_ids.shape[1]), input_ids.shape)
        rows = lookup(model["D"], columns) * 0.5 + lookup(model["E"], input_ids)
        return means(rows, None) @ model["W"]

    model = ReferenceModel(positional, WEIGHTS)
    ids = np.array([[0, 1, 2, 3], [0, 1, 2, 3]])
    result = attribute_tokens(model, ids, batch_size=batch_size)
    for output in range(3):
        single = embgrad.gradients(model, ids, label(ids, output + 1))
        np.testing.assert_allclose(
            result.scores[:, output], (single.values * single.activations).sum(-1), rtol=1e-12, atol=1e-15
        )
    expected = E[ids[0, :3]] @ (W[:, 3] - W[:, 7]) / 3
    np.testing.assert_allclose(
        attribute_tokens(model, ids, targets=-1, contrast=7).scores[0, 0, :3], expected, rtol=1e-12
    )


def test_the_inputs_of_the_model_may_be_changed_by_a_function_of_the_user() -> None:
    def calls(model: Any, inputs: Any) -> Any:
        return {"logits": model(inputs["input_ids"]), "other": Tensor(np.zeros((len(inputs["input_ids"]), 2)))}

    ids = TokenBatch(IDS[:, 2:])
    result = attribute_tokens(causal(), ids, call=calls)
    np.testing.assert_array_equal(result.scores, attribute_tokens(causal(), ids).scores)


def test_an_array_as_baseline_moves_with_a_batch_padded_on_the_left() -> None:
    ids, mask = np.array([[0, 0, 5, 6], [7, 8, 9, 10]]), np.array([[0, 0, 1, 1], [1, 1, 1, 1]])
    baseline = np.random.default_rng(0).normal(size=(2, 4, DIM))
    whole = attribute_tokens(
        causal(), embgrad.TokenBatch(ids, mask), method=embgrad.methods.IntegratedGradients(50, baseline)
    )
    alone = attribute_tokens(causal(), [[5, 6]], method=embgrad.methods.IntegratedGradients(50, baseline[:1, 2:]))
    assert whole.baseline_objective is not None
    assert alone.baseline_objective is not None
    np.testing.assert_allclose(whole.baseline_objective[0, 0], alone.baseline_objective[0, 0], atol=1e-12)
    for vector in (baseline[0, 0], baseline[0, :1]):
        method = embgrad.methods.IntegratedGradients(5, vector)
        padded = attribute_tokens(causal(), embgrad.TokenBatch(ids, mask), method=method)
        bare = attribute_tokens(causal(), [[5, 6]], method=method)
        np.testing.assert_allclose(padded.scores[0, 0, 2:], bare.scores[0, 0], atol=1e-12)
    np.testing.assert_allclose(whole.scores[0, 0, 2:], alone.scores[0, 0], atol=1e-12)


# Encoder-decoders.

SOURCE = np.array([[2, 7, 1, 5], [0, 4, 9, 3]])
SOURCE_MASK = np.array([[1, 1, 1, 1], [0, 1, 1, 1]])
DECODER = np.array([[11, 8, 6, 10, 2], [0, 0, 11, 6, 7]])
DECODER_MASK = np.array([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
PAIR = {
    "input_ids": SOURCE,
    "attention_mask": SOURCE_MASK,
    "decoder_input_ids": DECODER,
    "decoder_attention_mask": DECODER_MASK,
}


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


def test_an_error_of_rounding_is_not_warned_of() -> None:
    """Where L at the baseline nearly equals L, 1 % of their difference is less than rounding in float32."""
    model, ids = causal(), np.array([[2, 7, 1, 5]])
    for name, tensor in model.parameters.items():
        model.parameters[name] = Tensor(tensor.value.astype(np.float32))
    rows = model["E"].value[ids].astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method = embgrad.methods.IntegratedGradients(20, rows * (1 + 1e-7))
        found = attribute_tokens(model, ids, method=method)
    assert found.delta is not None
    assert found.delta.any()


def test_the_user_is_warned_of_an_input_once() -> None:
    batch = TokenBatch(IDS[:1], extras={"shift": np.ones((1, 5))})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        method = embgrad.methods.IntegratedGradients(4, 11, tolerance=1e-3, most=64)
        attribute_tokens(causal(), batch, method=method, batch_size=1)
    ignored = [entry for entry in caught if "the model cannot take the input 'shift'" in str(entry.message)]
    assert len(ignored) == 1


def test_a_table_of_single_numbers_has_the_gradient_of_each_output_token() -> None:
    """Numbers in which no dimension tells a row from a value of the ids: whether L follows the ids otherwise is tested."""
    random = np.random.default_rng(7)
    table, head = random.normal(size=(12, 1)), random.normal(size=(1, 12))
    model = ReferenceModel(
        lambda model, input_ids: means(lookup(model["E"], input_ids), None) @ model["W"], {"E": table, "W": head}
    )
    found = attribute_tokens(model, IDS[:1], method="saliency")
    for output in range(4):
        mean = table[IDS[0, : output + 1]].mean()
        shares = np.exp(mean * head[0]) / np.exp(mean * head[0]).sum()
        slope = (head[0, IDS[0, output + 1]] - shares @ head[0]) / (output + 1)
        expected = np.where(np.arange(5) <= output, abs(slope), 0)
        np.testing.assert_allclose(found.scores[0, output], expected, rtol=1e-10)


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
        (
            {"at": "D"},
            embgrad.errors.PointError,
            "at is 'D': expected 'word' for an encoder-decoder, whose inputs are the rows",
        ),
        (
            {"method": embgrad.methods.IntegratedGradients(2, baseline=np.zeros(DIM))},
            embgrad.errors.UnsupportedError,
            "the baseline of an encoder-decoder is put in place of the encoder's and the decoder's tokens: expected 'auto'",
        ),
        (
            {
                "method": embgrad.methods.IntegratedGradients(2, baseline=np.zeros((2, DIM))),
                "contrast": [[[7, 8, 9]]],
                "targets": [-1],
            },
            embgrad.errors.UnsupportedError,
            "the baseline of an encoder-decoder is put in place of the encoder's and the decoder's tokens: expected 'auto'",
        ),
        (
            {"method": embgrad.methods.IntegratedGradients(2, baseline=[0.0] * DIM)},
            embgrad.errors.UnsupportedError,
            "the baseline of an encoder-decoder is put in place of",
        ),
        (
            {"method": embgrad.methods.IntegratedGradients(2, keep_special=True), "tokenizer": words()},
            embgrad.errors.UnsupportedError,
            "and keep_special=False",
        ),
    ],
)
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


def test_hidden_states_are_not_taken_for_logits() -> None:
    expected = (
        r"has the shape \(1, 3, 3\), as wide as the rows of its table, which has 12: expected logits, one for each id"
    )
    with pytest.raises(embgrad.errors.ObjectiveError, match=expected):
        embgrad.attribute_tokens(headless(), [[1, 2, 0]])


def test_special_tokens_of_a_decoder_are_not_known() -> None:
    message = "keep_special=True leaves special tokens, and those of a decoder are not known: give keep_special=False"
    with pytest.raises(embgrad.errors.UnsupportedError, match=message):
        embgrad.attribute_tokens(encoder_decoder(), PAIR, method=embgrad.methods.Occlusion(3, keep_special=True))


def _rooted(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    """Return logits of the square roots of the rows' sizes, whose gradient at zero is not finite."""
    rows = lookup(model["E"], input_ids)
    root = np.sqrt(np.abs(rows.value))

    def pullback(gradient: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(gradient * np.sign(rows.value) / (2 * root))

    return means(Tensor(root, [(rows, pullback)]), attention_mask) @ model["W"]


@pytest.mark.parametrize("rule", ["gausslegendre", "riemann_right", "riemann_middle"])
@pytest.mark.filterwarnings("ignore:.*do not sum to:embgrad.EmbgradWarning", "ignore:.*miss the difference")
def test_no_gradient_is_needed_at_an_end_of_the_path_without_weight(rule: str) -> None:
    """The gradient at the baseline is nan, and the sum over the rule's own nodes has a closed form."""
    ids, model, method = alone(0), ReferenceModel(_rooted, weights()), embgrad.methods.IntegratedGradients(6, rule=rule)
    count = ids.shape[1] - 1
    direction = (W[:, ids[0, -1]] - W[:, 3]) / count
    whole = np.sqrt(np.abs(E[ids[0, :count]])) @ direction
    if rule == "gausslegendre":
        nodes, shares = np.polynomial.legendre.leggauss(6)
        nodes, shares = (nodes + 1) / 2, shares / 2
    else:
        nodes, shares = (np.arange(6) + (1 if rule == "riemann_right" else 0.5)) / 6, np.full(6, 1 / 6)
    factor = (shares / (2 * np.sqrt(nodes))).sum()
    result = attribute_tokens(model, ids, [-1], contrast=3, method=method)
    np.testing.assert_allclose(result.scores[0, 0, :count], factor * whole, atol=1e-12)
    assert result.baseline_objective is not None
    assert result.delta is not None
    np.testing.assert_allclose(result.baseline_objective, 0, atol=1e-12)
    np.testing.assert_allclose(result.delta, [[(factor - 1) * whole.sum()]], atol=1e-12)
    margin = embgrad.Margin(ids[0, -1:], 3, position=count - 1)
    by_attribute = embgrad.attribute(model, ids, margin, method)
    np.testing.assert_allclose(by_attribute.scores[0, :count], factor * whole, atol=1e-12)


def test_a_gradient_that_is_not_finite_at_a_node_with_weight_is_refused() -> None:
    model, method = ReferenceModel(_rooted, weights()), embgrad.methods.IntegratedGradients(6, rule="riemann_left")
    with pytest.raises(
        embgrad.errors.NoGradientError,
        match=r"the gradient of the output tokens at index 0 at 'word' is .* The rule 'riemann_left' takes a step at the",
    ):
        attribute_tokens(model, alone(0), [-1], contrast=3, method=method)


@pytest.mark.parametrize(
    ("options", "total"),
    [
        ({}, 4),
        ({"batch_size": 1}, 12),
        ({"method": embgrad.methods.IntegratedGradients(10)}, 4),
        ({"method": embgrad.methods.IntegratedGradients(10), "batch_size": 9}, 4 * 4),
        ({"method": embgrad.methods.IntegratedGradients(10, baseline=["zero", 3])}, 8),
        ({"contrast": [[[3, 4]] * 4] * 3, "batch_size": 2}, 4 * 3),
        ({"targets": [-1], "through": [2], "hops": 1}, 2),
    ],
    ids=["one pass", "batches", "steps", "batches of steps", "baselines", "continuations", "hops"],
)
def test_progress_counts_pullbacks(options: dict[str, Any], total: int) -> None:
    reported: list[tuple[int, Any]] = []
    ids = np.array([[2, 7, 1, 5, 9], [8, 6, 10, 3, 1], [1, 2, 3, 4, 5]])
    attribute_tokens(causal(), ids, progress=lambda done, whole: reported.append((done, whole)), **options)
    assert reported == [(number, total) for number in range(total + 1)]


def test_progress_has_no_total_where_none_is_known() -> None:
    reported: list[tuple[int, Any]] = []
    batch = TokenBatch(alone(0))
    occlusion = embgrad.methods.Occlusion(11)
    attribute_tokens(causal(), batch, method=occlusion, progress=lambda *counts: reported.append(counts), batch_size=1)
    assert reported == [(number, None) for number in range(7)]  # the text itself, and each of its five tokens replaced
    with refused(EmbgradError, "progress is 3: expected True, or a function that takes (done, total)"):
        attribute_tokens(causal(), batch, progress=3)  # type: ignore[arg-type]
