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
    causal,
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
        result = attribute_tokens(sharp, alone(0), method=embgrad.methods.IntegratedGradients(1))
    worst = int(np.nanargmax(np.abs(result.delta)))
    said = str(recorded[0].message)
    assert f"at most by {np.abs(result.delta[0, worst]):.3g} of" in said
    assert f"(example 0, output {worst})" in said
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
        ({"method": "lime"}, EmbgradError, "method is Lime: output tokens are attributed by 'Saliency', 'InputXGr"),
        ({"method": "saliencies"}, EmbgradError, "Did you mean 'saliency'"),
        ({"at": ["word"]}, EmbgradError, "make a call for each point"),
        ({"at": "wrod"}, embgrad.errors.PointError, "wrod"),
        ({"batch_size": 0}, EmbgradError, "batch_size is 0"),
        ({"generate": 3}, embgrad.errors.UnsupportedError,
            "ReferenceModel has no method generate(): give the prompts with"),
        ({"generate": 0}, EmbgradError, "generate is 0: expected the number of new tokens, at least 1, or a dict"),
        ({"generate": True}, EmbgradError, "generate is True: expected the number of new tokens"),
        ({"generate": "greedy"}, EmbgradError, "generate is 'greedy': expected the number of new tokens"),
        ({"method": embgrad.methods.Occlusion("zero")}, embgrad.errors.UnsupportedError,
            "replacement is 'zero': input tokens are replaced by an id here. Give 'mask', 'pad' or an id"),
        ({"method": embgrad.methods.Occlusion(np.zeros(DIM))}, embgrad.errors.UnsupportedError,
            "input tokens are replaced by an id here"),
        ({"method": embgrad.methods.Occlusion("mask")}, embgrad.errors.BatchError, "the id of the mask is not known"),
        ({"method": embgrad.methods.Occlusion(99)}, embgrad.errors.BatchError, "id 99"),
        ({"method": embgrad.methods.IntegratedGradients(2, baseline=99)}, embgrad.errors.BatchError, "id 99"),
        ({"targets": 0}, EmbgradError, "the target 0 of example 0 is not a token"),
        ({"contrast": 99}, embgrad.errors.ObjectiveError, "against 99 at example 0, position 0 is out of range"),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
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
    random = np.random.default_rng(7)
    table, head = random.normal(size=(12, 1)), random.normal(size=(1, 12))
    model = ReferenceModel(
        lambda model, input_ids: means(lookup(model["E"], input_ids), None) @ model["W"], {"E": table, "W": head}
    )
    found = attribute_tokens(model, IDS[:1], at="E", method="saliency")
    for output in range(4):
        mean = table[IDS[0, : output + 1]].mean()
        shares = np.exp(mean * head[0]) / np.exp(mean * head[0]).sum()
        slope = (head[0, IDS[0, output + 1]] - shares @ head[0]) / (output + 1)
        expected = np.where(np.arange(5) <= output, abs(slope), 0)
        np.testing.assert_allclose(found.scores[0, output], expected, rtol=1e-10)


def test_hidden_states_are_not_taken_for_logits() -> None:
    expected = (
        r"has the shape \(1, 3, 3\), as wide as the rows of its table, which has 12: expected logits, one for each id"
    )
    with pytest.raises(embgrad.errors.ObjectiveError, match=expected):
        embgrad.attribute_tokens(headless(), [[1, 2, 0]])


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
