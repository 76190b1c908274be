"""Outputs that are spans of several tokens, and contrasts of several tokens: against differences of L computed by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad import EmbgradError, EmbgradWarning, LogProbability, TokenBatch, attribute_tokens
from embgrad.attribution.token_passes import TokenPasses
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.language_models import (
    DECODER,
    PAIR,
    SOURCE,
    Generating,
    causal,
    encoder_decoder,
    log_softmax,
    means,
    weights,
)
from tests.unit.attribution.test_attribute_tokens import BATCH, IDS, MASK, METHODS, alone
from tests.unit.objectives.test_log_probability import words
from tests.unit.refusals import refused
from tests.unit.stored import expect_restored

WEIGHTS = weights()
E, D, W = WEIGHTS["E"], WEIGHTS["D"], WEIGHTS["W"]

#: Of each example of `BATCH` a slice of its real tokens, the positions of these in the batch, and a continuation to compare with.
SPANS = [slice(2, 4), slice(1, 3), slice(2, None)]
POSITIONS = [[2, 3], [3, 4], [2]]
CONTRAST = [[[3, 4, 6]], [[8]], [[1, 2, 3, 4]]]


def log_probability(rows: np.ndarray, ids: Any, start: int, source: Any = 0.0) -> float:
    """Return the log-probability of the ids from `start` on, where these are the embeddings: the reference model by hand."""
    states = rows.cumsum(0) / np.arange(1, len(rows) + 1)[:, None] + source
    return float(sum(log_softmax(states[at - 1] @ W)[ids[at]] for at in range(start, len(rows))))


def slopes(function: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
    """Return the gradient of a function by central differences."""
    found = np.zeros_like(at)
    for index in np.ndindex(*at.shape):
        step = np.zeros_like(at)
        step[index] = 1e-5
        found[index] = (function(at + step) - function(at - step)) / 2e-5
    return found


def by_hand(row: np.ndarray, start: int, end: int) -> tuple[float, np.ndarray]:
    """Return L of a span of a text, and its gradient."""
    ids = row[:end]
    return log_probability(E[ids], ids, start), slopes(lambda rows: log_probability(rows, ids, start), E[ids])


def compared(row: np.ndarray, start: int, end: int, contrast: Any) -> tuple[float, np.ndarray, np.ndarray]:
    """Return L of a span against a continuation, its gradient at the tokens of the text, and at those of the continuation."""
    own, gradient = by_hand(row, start, end)
    other, of_other = by_hand(np.array([*row[:start], *contrast]), start, start + len(contrast))
    gradient[:start] -= of_other[:start]
    return own - other, gradient, -of_other[start:]


def reduced(method: str, gradient: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.linalg.norm(gradient, axis=-1) if method == "saliency" else (gradient * values).sum(-1)


@pytest.mark.parametrize("method", ["saliency", "input_x_gradient"])
@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_a_span_has_the_gradient_of_the_sum_of_its_log_probabilities(method: str, batch_size: Any) -> None:
    result = attribute_tokens(causal(), BATCH, [[span] for span in SPANS], method=method, batch_size=batch_size)
    assert result.shape == (3, 1, 5)
    assert result.outputs.tolist() == [[[2, 3]], [[3, 4]], [[2, -1]]]
    assert result.output_ids.tolist() == [[[1, 5]], [[9, 3]], [[10, -1]]]
    for example, positions in enumerate(POSITIONS):
        row, first = alone(example)[0], int((MASK[example] == 0).sum()) if example == 1 else 0
        start, end = positions[0] - first, positions[-1] - first + 1
        objective, gradient = by_hand(row, start, end)
        np.testing.assert_allclose(result.objective[example, 0], objective, rtol=1e-12)
        expected = np.zeros(5)
        expected[first : first + end] = reduced(method, gradient, E[row[:end]])
        np.testing.assert_allclose(result.scores[example, 0], expected, atol=1e-8)
        assert not result.scores[example, 0, positions[-1] :].any()


@pytest.mark.parametrize("method", ["saliency", "input_x_gradient"])
@pytest.mark.parametrize("batch_size", [None, 1, 4])
def test_a_contrast_of_several_tokens_is_read_in_the_place_of_the_output(method: str, batch_size: Any) -> None:
    result = attribute_tokens(
        causal(), BATCH, [[span] for span in SPANS], [[row] for (row,) in CONTRAST], method, batch_size=batch_size
    )
    assert result.contrast_ids is not None
    assert result.contrast_scores is not None
    assert result.contrast_ids.tolist() == [[[3, 4, 6, -1]], [[8, -1, -1, -1]], [[1, 2, 3, 4]]]
    for example, positions in enumerate(POSITIONS):
        row, first, (contrast,) = alone(example)[0], 2 * int(example == 1), CONTRAST[example]
        start, end = positions[0] - first, positions[-1] - first + 1
        objective, gradient, of_contrast = compared(row, start, end, contrast)
        np.testing.assert_allclose(result.objective[example, 0], objective, rtol=1e-12)
        expected, own = np.zeros(5), np.zeros(4)
        expected[first : first + end] = reduced(method, gradient, E[row[:end]])
        own[: len(contrast)] = reduced(method, of_contrast, E[contrast])
        np.testing.assert_allclose(result.scores[example, 0], expected, atol=1e-8)
        np.testing.assert_allclose(result.contrast_scores[example, 0], own, atol=1e-8)


def test_occlusion_changes_the_tokens_before_both() -> None:
    row, contrast = alone(0)[0], [3, 4, 6]
    result = attribute_tokens(causal(), row[None], [slice(2, 4)], [[contrast]], embgrad.methods.Occlusion(11))
    before, other = row[:4], np.array([*row[:2], *contrast])

    def difference(*occluded: int) -> float:
        rows = [E[ids].copy() for ids in (before, other)]
        for at in occluded:
            for values in rows:
                values[at] = E[11]
        return log_probability(rows[0], before, 2) - log_probability(rows[1], other, 2)

    np.testing.assert_allclose(result.scores[0, 0, :2], [difference() - difference(at) for at in (0, 1)], atol=1e-12)
    own = E[before].copy()
    own[2] = E[11]
    expected = log_probability(E[before], before, 2) - log_probability(own, before, 2)
    np.testing.assert_allclose(result.scores[0, 0, 2:], [expected, 0, 0], atol=1e-12)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_single_tokens_have_the_same_contributions_by_either_way(method: Any) -> None:
    both = attribute_tokens(causal(), BATCH, [slice(-2, None), -1, -2], contrast=[5, 3, 4], method=method)
    single = attribute_tokens(causal(), BATCH, [-1, -2], contrast=[3, 4], method=method)
    assert both.outputs.ndim == 3
    assert single.contrast_scores is None
    np.testing.assert_allclose(both.scores[:, 1:], single.scores, atol=1e-13)
    np.testing.assert_allclose(both.objective[:, 1:], single.objective, atol=1e-13)
    assert both.contrast_scores is not None
    assert not both.contrast_scores[:, 1:].any()


@pytest.mark.parametrize("baseline", ["auto", "zero", 11, "mean", ["zero", 11]], ids=str)
@pytest.mark.parametrize("contrast", [None, [[[3, 4, 6]]]], ids=["alone", "against"])
def test_integrated_gradients_of_spans_have_the_whole_difference_and_its_error(baseline: Any, contrast: Any) -> None:
    method = embgrad.methods.IntegratedGradients(60, baseline=baseline)
    result = attribute_tokens(causal(), BATCH, [[span] for span in SPANS], contrast, method)
    assert result.delta is not None
    assert result.error is not None
    sums = result.scores.sum(-1) + (0 if result.contrast_scores is None else result.contrast_scores.sum(-1))
    assert result.baseline_objective is not None
    np.testing.assert_allclose(sums, result.objective - result.baseline_objective, atol=1e-9)
    np.testing.assert_allclose(result.delta, 0, atol=1e-9)
    if baseline == 11:
        row = np.full(4, 11)
        expected = log_probability(E[row], alone(0)[0][:4], 2)
        if contrast is not None:
            expected -= log_probability(E[np.full(5, 11)], np.array([*alone(0)[0][:2], 3, 4, 6]), 2)
        np.testing.assert_allclose(result.baseline_objective[0, 0], expected, rtol=1e-12)
    sharp = causal()
    sharp.parameters["W"].value = sharp.parameters["W"].value * 20
    few = embgrad.methods.IntegratedGradients(2, baseline=baseline)
    with pytest.warns(
        EmbgradWarning, match=r"with \d steps the contributions to . of 3 output tokens miss the difference"
    ):
        coarse = attribute_tokens(sharp, BATCH, [[span] for span in SPANS], contrast, few)
    assert coarse.error is not None
    assert (coarse.error >= np.abs(coarse.delta) - 1e-12).all()
    finer = embgrad.methods.IntegratedGradients(4, baseline=baseline, tolerance=1e-4, most=4000)
    refined = attribute_tokens(sharp, BATCH, [[span] for span in SPANS], contrast, finer)
    difference = np.abs(refined.objective - refined.baseline_objective)  # type: ignore[operator]
    # Of several baselines each error is small beside the difference from that baseline.
    assert isinstance(baseline, list) or (refined.error <= 1e-4 * difference + 1e-9).all()  # type: ignore[operator]


def test_both_texts_have_the_users_baseline() -> None:
    values = np.random.default_rng(3).normal(size=(3, 5, 3))
    whole = embgrad.methods.IntegratedGradients(50, baseline=values)
    result = attribute_tokens(causal(), BATCH, [slice(-2, None), -1], [[3, 3], [4, 4], [5, 5]], whole)
    plain = attribute_tokens(causal(), BATCH, [-1], [[3], [4], [5]], whole)
    np.testing.assert_allclose(result.scores[:, 1:], plain.scores, atol=1e-13)
    assert result.contrast_scores is not None
    for batch, baseline in ((BATCH, values), (alone(0), values[0])):
        method = embgrad.methods.IntegratedGradients(50, baseline=baseline)
        with refused(embgrad.errors.UnsupportedError, "and the baseline has 5 positions: pad both on the right"):
            attribute_tokens(causal(), batch, [-1], [[[3, 4]]], method)


def test_a_span_equals_a_single_call_with_its_labels() -> None:
    ids = alone(0)
    for method in ("saliency", "input_x_gradient", embgrad.methods.IntegratedGradients(30)):
        result = attribute_tokens(causal(), ids, [slice(2, None)], method=method)
        labels = np.where(np.arange(5) >= 2, ids, -100)
        single = embgrad.attribute(causal(), ids, LogProbability(labels), method)
        np.testing.assert_allclose(result.scores[:, 0], single.scores, atol=1e-13)


@pytest.mark.parametrize("contrast", [None, [3, 4, 6, 7]], ids=["alone", "against"])
@pytest.mark.parametrize("batch_size", [None, 1])
def test_spans_of_a_decoder_have_contributions_of_both_sides(contrast: Any, batch_size: Any) -> None:
    wanted = [[slice(2, 4)], [slice(1, None)]]
    result = attribute_tokens(
        encoder_decoder(), PAIR, wanted, None if contrast is None else [[contrast]], batch_size=batch_size
    )
    assert result.decoder_scores is not None
    for example, (start, end, first) in enumerate([(2, 4, 0), (1, 3, 2)]):
        source = SOURCE[example, example:]
        row = DECODER[example, first : first + end]
        rows = [row] if contrast is None else [row, np.array([*row[:start], *contrast])]

        def objective(values: np.ndarray, rows: Any = rows, start: int = start) -> float:
            parts = [log_probability(D[ids], ids, start, values.mean(0)) for ids in rows]
            return parts[0] - (parts[1] if len(parts) > 1 else 0)

        gradient = slopes(objective, E[source])
        np.testing.assert_allclose(result.objective[example, 0], objective(E[source]), rtol=1e-12)
        np.testing.assert_allclose(result.scores[example, 0, example:], (gradient * E[source]).sum(-1), atol=1e-8)
        mean = E[source].mean(0)

        def of_decoder(ids: np.ndarray, start: int = start, mean: np.ndarray = mean) -> np.ndarray:
            return slopes(lambda values: log_probability(values, ids, start, mean), D[ids])

        sides = [of_decoder(ids) for ids in rows]
        if contrast is not None:
            sides[0][:start] -= sides[1][:start]
        own = (sides[0] * D[row]).sum(-1)
        np.testing.assert_allclose(result.decoder_scores[example, 0, first : first + end], own, atol=1e-8)


def test_continuations_longer_than_the_batch_need_room_in_further_inputs() -> None:
    def shifted(model: Any, input_ids: Any, attention_mask: Any = None, shift: Any = None) -> Tensor:
        rows = lookup(model["E"], input_ids)
        return means(rows + Tensor(np.asarray(shift)[..., None]), attention_mask) @ model["W"]

    model, extras = ReferenceModel(shifted, weights()), {"shift": np.linspace(0, 1, 5)[None]}
    batch = TokenBatch(IDS[:1], extras=extras)
    attribute_tokens(model, batch, [3], [[[3, 4]]])
    with refused(
        embgrad.errors.UnsupportedError,
        "the contrast is longer than the room for it in the batch, and the further input 'shift' has 5 positions",
    ):
        attribute_tokens(model, batch, [4], [[[3, 4]]])


def test_types_of_the_contrast_are_those_of_the_output() -> None:
    def typed(model: Any, input_ids: Any, token_type_ids: Any = None) -> Tensor:
        return means(lookup(model["E"], input_ids) + lookup(model["D"], token_type_ids), None) @ model["W"]

    model, types = ReferenceModel(typed, weights()), np.array([[0, 1, 2, 2, 3]])
    result = attribute_tokens(model, TokenBatch(IDS[:1], types=types), [slice(3, 4)], [[[3, 4, 6]]])
    row, other = IDS[0, :4], np.array([*IDS[0, :3], 3, 4, 6])
    values = [E[row] + D[types[0, :4]], E[other] + D[[0, 1, 2, 2, 2, 2]]]
    expected = log_probability(values[0], row, 3) - log_probability(values[1], other, 3)
    np.testing.assert_allclose(result.objective[0, 0], expected, rtol=1e-12)


def test_the_generated_tokens_are_one_output() -> None:
    model = Generating()
    single = attribute_tokens(model, BATCH, generate=3)
    whole = attribute_tokens(model, BATCH, [None], generate=3)
    assert whole.outputs.tolist() == [[[5, 6, 7]]] * 3
    np.testing.assert_allclose(whole.scores[:, 0], single.scores.sum(1), atol=1e-13)
    np.testing.assert_allclose(whole.objective[:, 0], single.objective.sum(1), rtol=1e-12)


def test_texts_name_targets_and_contrasts(tmp_path: Path) -> None:
    tokenizer = words()
    result = attribute_tokens(
        causal(), ["the film is great", "a bad film is great"], "is great", contrast="is bad a", tokenizer=tokenizer
    )
    assert result.output_tokens == ((("is", "great"),),) * 2
    assert result.contrast_ids is not None
    assert result.contrast_ids.shape == (2, 1, 3)
    matrix = result.matrix(1)
    assert [piece.text for piece in matrix.outputs] == ["is great"]
    assert matrix.outputs[0].positions == tuple(result.outputs[1, 0].tolist())
    assert matrix.earlier[0].tolist() == [
        position < result.outputs[1, 0, -1] for position in range(matrix.scores.shape[1])
    ]
    np.testing.assert_array_equal(matrix.scores[0], result.scores[1, 0])
    assert "is great" in result.to_html()
    path = tmp_path / "a.safetensors"
    result.save(path)
    expect_restored(result, embgrad.load(path))
    single = result.of_output(-1)
    np.testing.assert_array_equal(single.scores, result.scores[:, 0])
    assert single.delta is None
    without = attribute_tokens(causal(), [[3, 4, 5, 6]], [slice(2, None)])
    assert without.output_tokens is None
    assert [piece.text for piece in without.matrix().outputs] == ["5 6"]


def test_a_contrast_needs_an_output_without_gaps() -> None:
    with refused(EmbgradError, "the target at the positions [1, 3] of example 0 has other tokens between its own"):
        attribute_tokens(causal(), alone(0), [slice(1, 4, 2)], contrast=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = attribute_tokens(causal(), alone(0), [slice(1, 4, 2)])
    parts = attribute_tokens(causal(), alone(0), [1, 3])
    np.testing.assert_allclose(result.scores[:, 0], parts.scores.sum(1), atol=1e-13)


def test_an_example_may_have_fewer_outputs_and_a_longer_contrast() -> None:
    contrast = [[[3, 4], [5]], [[6], [7, 8, 9]], [[1], [2]]]
    wanted = [[slice(1, 3), 4], [slice(1, 3), 4], [1]]
    result = attribute_tokens(causal(), BATCH, wanted, contrast)
    assert np.isnan(result.objective[2, 1])
    assert result.contrast_ids is not None
    assert result.contrast_ids[2, 1].tolist() == [-1, -1, -1]
    assert not result.scores[2, 1].any()
    objective, gradient, own = compared(alone(1)[0], 2, 3, [7, 8, 9])
    np.testing.assert_allclose(result.objective[1, 1], objective, rtol=1e-12)
    np.testing.assert_allclose(result.scores[1, 1, 2:], (gradient * E[alone(1)[0]]).sum(-1), atol=1e-8)
    assert result.contrast_scores is not None
    np.testing.assert_allclose(result.contrast_scores[1, 1], (own * E[[7, 8, 9]]).sum(-1), atol=1e-8)


def test_a_baseline_that_one_of_a_pair_needs_is_that_of_both() -> None:
    options: dict[str, Any] = {"bound": None, "batch": None, "targets": None, "names": ()}
    options |= {"batch_size": None, "training": False}
    chosen = np.array([True, False, False, False, False, True])
    assert TokenPasses(**options).in_pairs(chosen).tolist() == chosen.tolist()
    assert TokenPasses(**options, paired=True).in_pairs(chosen).tolist() == [True, False, True, True, False, True]
