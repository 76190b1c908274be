"""The conformance checks of objectives: outputs by name and role, positions, native objectives, and values without gradients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.examples import (
    CLASSES,
    EXAMPLES,
    POSITIONS,
    SMOOTH,
    close,
    example_batch,
    example_weights,
    softmax,
)
from embgrad.testing.harness import Harness

__all__ = ["EvaluationChecks", "OutputChecks"]


class EvaluationChecks:
    """The checks of `evaluate` and `embedding_table` that every backend must pass."""

    @pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")  # `positions` cannot take a mask
    @pytest.mark.parametrize("architecture", [name for name in SMOOTH if name != "two_tables"])
    def test_evaluate_is_the_objective_of_gradients(self, model: Any, architecture: str) -> None:
        batch, objective = example_batch(masked=architecture in ("masked", "positions")), embgrad.Logit(1)
        expected = embgrad.gradients(model(architecture), batch, objective).objective
        close(embgrad.evaluate(model(architecture), batch, objective), expected, 1e-12)
        close(embgrad.evaluate(model(architecture), batch, objective, batch_size=2), expected, 1e-12)

    @pytest.mark.parametrize("architecture", ["mean", "scaled", "flat", "time_major", "tied"])
    def test_the_table_holds_the_outputs_of_the_lookup(self, model: Any, architecture: str) -> None:
        table = embgrad.tables.embedding_table(model(architecture), example_batch())
        np.testing.assert_array_equal(table, example_weights()["E"])


class OutputChecks:
    """The checks of outputs and objectives that every backend must pass."""

    # Outputs and positions

    def test_named_outputs_and_roles(self, model: Any) -> None:
        weights, batch = example_weights(), example_batch()
        hidden = np.tanh(weights["E"][batch.ids] @ weights["W1"] + weights["b1"])
        slope = (1 - hidden**2) @ weights["W1"].T
        for name in ("sequence", "last_hidden_state"):
            close(embgrad.gradients(model("named"), batch, embgrad.Sum(output=name)).values, slope, 1e-12)
        for name in ("pooled", "pooler_output"):
            close(embgrad.gradients(model("named"), batch, embgrad.Sum(output=name)).values, slope / POSITIONS, 1e-12)

    def test_an_unknown_output_is_an_error_that_lists_what_there_is(self, model: Any) -> None:
        with pytest.raises(embgrad.errors.OutputError, match=r"pooler_output.*role 'pooled'.*Did you mean 'pooled'"):
            embgrad.gradients(model("named"), example_batch(), embgrad.Sum(output="poold"))
        with pytest.raises(embgrad.errors.OutputError, match="2 outputs and none of them is its logits"):
            embgrad.gradients(model("named"), example_batch(), embgrad.Sum())

    def test_per_position_outputs_count_at_real_positions(self, model: Any) -> None:
        weights, batch = example_weights(), example_batch(masked=True)
        hidden = np.tanh(weights["E"][batch.ids] @ weights["W1"] + weights["b1"])
        slope = ((1 - hidden**2) * weights["W"].sum(1)) @ weights["W1"].T
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", embgrad.EmbgradWarning)  # this model cannot take a mask
            result = embgrad.gradients(model("positions"), batch, embgrad.Sum())
            last = embgrad.gradients(model("positions"), batch, embgrad.Sum(position=-1))
            each = embgrad.gradients(model("positions"), batch, embgrad.Sum(position=[3, 2, 1]))
        close(result.values, slope * batch.real[..., None], 1e-12)
        chosen = np.zeros(batch.shape, bool)
        chosen[[0, 1, 2], [3, 2, 1]] = True
        close(last.values, slope * chosen[..., None], 1e-12)
        np.testing.assert_array_equal(each.values, last.values)

    def test_only_the_rows_that_count_cross(self, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        built, batch, crossed = model("positions"), example_batch(masked=True), []
        whole = embgrad.gradients(built, batch, embgrad.Projection(np.array([1.0, -1, 2]))).values
        evaluate = embgrad.Objective.evaluate_rows

        def watch(objective: Any, rows: np.ndarray, *args: Any) -> Any:
            crossed.append(rows.shape)
            return evaluate(objective, rows, *args)

        monkeypatch.setattr(embgrad.Objective, "evaluate_rows", watch)
        last = embgrad.Projection(np.array([1.0, -1, 2]), position=-1)
        for split in (False, True):
            result = embgrad.gradients(built, batch, last, split=split)
            for example, position in enumerate([3, 2, 1]):
                close(result.values[example, position], whole[example, position], 1e-12)
                assert not np.delete(result.values[example], position, 0).any()
            assert result.provenance["output_shape"] == [EXAMPLES, POSITIONS, CLASSES]
        labels = np.full((EXAMPLES, POSITIONS), -100)
        labels[1, 1] = 2
        assert embgrad.gradients(built, batch, embgrad.CrossEntropy(labels)).values[1, 1].any()
        assert crossed == [(EXAMPLES, CLASSES)] * 2 + [(1, CLASSES)]

    def test_per_position_cross_entropy(self, model: Any) -> None:
        weights, batch = example_weights(), example_batch()
        labels = np.array([[0, -100, 2, 1], [1, 1, -100, 0], [2, 2, 0, -100]])
        hidden = np.tanh(weights["E"][batch.ids] @ weights["W1"] + weights["b1"])
        slopes = (softmax(hidden @ weights["W"] + weights["b"]) - np.eye(CLASSES)[np.maximum(labels, 0)]) * (
            labels != -100
        )[..., None]
        expected = ((slopes @ weights["W"].T) * (1 - hidden**2)) @ weights["W1"].T
        result = embgrad.gradients(model("positions"), batch, embgrad.CrossEntropy(labels))
        close(result.values, expected, 1e-12)
        with pytest.raises(embgrad.errors.ObjectiveError, match="labels of shape"):
            embgrad.gradients(model("positions"), batch, embgrad.CrossEntropy([0, 1, 2]))

    def test_scores_of_the_positions_count_at_real_positions(self, harness: Harness) -> None:
        weights, batch, labels = example_weights(), example_batch(masked=True), np.array([2, 1, 0])
        weights = {**weights, "W": weights["W"][:, :1], "b": weights["b"][:1]}
        hidden = np.tanh(weights["E"][batch.ids] @ weights["W1"] + weights["b1"])
        scores = np.where(batch.real, (hidden @ weights["W"] + weights["b"])[..., 0], -np.inf)
        chosen = np.eye(POSITIONS)[labels]
        for objective, values, slopes in (
            (embgrad.Sum(), np.where(batch.real, scores, 0).sum(1), batch.real),
            (embgrad.CrossEntropy(labels), -np.log((softmax(scores) * chosen).sum(1)), softmax(scores) - chosen),
        ):
            result = _of_scores(harness, weights, batch, objective)
            close(result.objective, values, 1e-12)
            expected = ((slopes[..., None] @ weights["W"].T) * (1 - hidden**2)) @ weights["W1"].T
            close(result.values, expected, 1e-12)
        with pytest.raises(embgrad.errors.ObjectiveError, match=r"label 3 at example 2 is padding: .*\[0, 1\]"):
            _of_scores(harness, weights, batch, embgrad.CrossEntropy([2, 1, 3]))

    def test_as_many_classes_as_positions_all_count(self, model: Any) -> None:
        weights, whole = example_weights(), example_batch()
        mask = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0]])
        batch = embgrad.TokenBatch(whole.ids[:, :CLASSES], mask)
        means = (weights["E"][batch.ids] * mask[..., None]).sum(1) / mask.sum(1)[:, None]
        logits = means @ weights["W"] + weights["b"]
        close(embgrad.evaluate(model("masked"), batch, embgrad.Sum()), logits.sum(1), 1e-12)
        surprisals = -np.log(softmax(logits)[:, 2])
        close(embgrad.evaluate(model("masked"), batch, embgrad.CrossEntropy([2, 2, 2])), surprisals, 1e-12)

    # Native objectives

    def test_a_native_objective_is_the_same_arithmetic(self, harness: Harness, model: Any) -> None:
        batch = example_batch()
        expected = embgrad.gradients(model("hidden"), batch, embgrad.Logit(1))
        native = embgrad.gradients(model("hidden"), batch, harness.logit(1))
        scalar = embgrad.gradients(model("hidden"), batch, embgrad.Scalar(harness.summed_logit(1)))
        close(native.values, expected.values, 1e-12)
        close(scalar.values, expected.values, 1e-12)
        close(native.objective, expected.objective, 1e-12)
        assert scalar.objective.shape == ()
        assert float(scalar.objective) == pytest.approx(float(expected.objective.sum()), rel=1e-12)
        assert scalar.provenance["objective"]["class"] == "Scalar"

    def test_a_native_objective_of_another_shape_is_an_error(self, harness: Harness, model: Any) -> None:
        with pytest.raises(embgrad.errors.ObjectiveError, match=r"expected .*shape \(3,\)"):
            embgrad.gradients(model("hidden"), example_batch(), harness.summed_logit(1))
        with pytest.raises(embgrad.errors.ObjectiveError, match=r"expected .*shape \(\)"):
            embgrad.gradients(model("hidden"), example_batch(), embgrad.Scalar(harness.logit(1)))
        for returned in (1.0, None):
            with pytest.raises(embgrad.errors.ObjectiveError, match=f"returned {type(returned).__name__}: expected"):
                embgrad.gradients(model("hidden"), example_batch(), lambda outputs, returned=returned: returned)


def _of_scores(
    harness: Harness, weights: Mapping[str, np.ndarray], batch: embgrad.TokenBatch, objective: embgrad.Objective
) -> embgrad.results.EmbeddingGradients:
    """Return the result of a model whose output, (example, position), is the only column of its logits at each position."""

    def call(model: Any, inputs: Any) -> Any:
        return model(inputs["input_ids"])[:, :, 0]

    return embgrad.gradients(harness.build("positions", weights), batch, objective, call=call)
