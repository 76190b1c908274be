"""The conformance checks of attributions: objectives without gradients, tables, and values put in place at a point."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.attribution.quadrature import nodes_and_weights
from embgrad.testing.examples import SMOOTH, VOCAB, close, example_batch, example_weights, layers_by_hand, needs

__all__ = ["AttributionChecks", "EvaluationChecks"]

#: The smooth architectures with one lookup of the ids.
PLAIN: Final = [name for name in SMOOTH if name != "two_tables"]

OBJECTIVE: Final = embgrad.Projection([1.0, -2.0, 0.5])


class _Direction(embgrad.Objective):
    """The first logit divided by the length of all, which does not depend on their scale."""

    def _rows(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.sqrt((rows.values**2).sum(1)) + 1e-15
        cosines = rows.values[:, 0] / lengths
        slopes = -cosines[:, None] * rows.values / lengths[:, None]
        slopes[:, 0] += 1
        return cosines, slopes / lengths[:, None]


class EvaluationChecks:
    """The checks of `evaluate` and `embedding_table` that every backend must pass."""

    @pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")  # `positions` cannot take a mask
    @pytest.mark.parametrize("architecture", PLAIN)
    def test_evaluate_is_the_objective_of_gradients(self, model: Any, architecture: str) -> None:
        batch = example_batch(masked=architecture in ("masked", "positions"))
        expected = embgrad.gradients(model(architecture), batch, OBJECTIVE).objective
        close(embgrad.evaluate(model(architecture), batch, OBJECTIVE), expected, 1e-12)
        close(embgrad.evaluate(model(architecture), batch, OBJECTIVE, batch_size=2), expected, 1e-12)

    @pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")  # `positions` cannot take a mask
    @pytest.mark.parametrize("architecture", PLAIN)
    def test_without_deleted_tokens_an_example_is_the_shorter_batch(self, model: Any, architecture: str) -> None:
        batch = example_batch(masked=architecture in ("masked", "positions"))
        batch = batch.replace(tokens=[["[CLS]", *"abc"]] * len(batch))
        made = embgrad.metrics.faithfulness(model(architecture), batch, OBJECTIVE, -batch.ids)
        assert made.deletion is not None
        for example, (ids, real) in enumerate(zip(batch.ids, batch.real, strict=True)):
            ranked = 1 + np.argsort(ids[1:][real[1:]])
            for count in range(len(ranked) + 1):
                stays = np.flatnonzero(real & ~np.isin(np.arange(len(ids)), ranked[:count]))
                shorter = batch[example : example + 1].replace(
                    ids=ids[None, stays], mask=None if batch.mask is None else [[1] * len(stays)], tokens=None
                )
                expected = embgrad.evaluate(model(architecture), shorter, OBJECTIVE)[0]
                np.testing.assert_allclose(made.deletion[0, example, count], expected, atol=1e-12)

    @pytest.mark.parametrize("architecture", ["mean", "scaled", "flat", "time_major", "tied"])
    def test_the_table_holds_the_outputs_of_the_lookup(self, model: Any, architecture: str) -> None:
        table = embgrad.tables.embedding_table(model(architecture), example_batch())
        assert table.shape[0] == VOCAB
        np.testing.assert_array_equal(table, example_weights()["E"])

    @pytest.mark.parametrize("sign", [1, -1])
    @pytest.mark.parametrize("architecture", ["hidden", "scaled", "time_major"])
    def test_the_best_substitutions_are_those_of_the_whole_table(
        self, model: Any, architecture: str, sign: int
    ) -> None:
        batch, table, built = example_batch(), example_weights()["E"], model(architecture)
        slopes = embgrad.gradients(built, batch, OBJECTIVE).values
        scores = np.einsum("vd,epd->epv", table, slopes) - (table[batch.ids] * slopes).sum(-1, keepdims=True)
        np.put_along_axis(scores, batch.ids[..., None], -np.inf * sign, 2)
        best = np.argsort(-sign * scores, axis=-1, kind="stable")[..., :9]
        made = embgrad.substitutions(built, batch, OBJECTIVE, top=9, goal="maximize" if sign > 0 else "minimize")
        np.testing.assert_array_equal(made.ids, best)
        close(made.scores, np.take_along_axis(scores, best, -1), 1e-12)


@needs("override")
class AttributionChecks:
    """The checks that a backend with the ability "override" must pass."""

    @pytest.mark.parametrize("role", ["word", "embeddings", "layer.1"])
    def test_integrated_gradients_by_hand(self, model: Any, role: str) -> None:
        batch, weights = example_batch(), example_weights()
        by_hand = layers_by_hand(weights, batch.ids, OBJECTIVE)
        values, origin = by_hand[role][0], np.linspace(-1, 1, 5)
        total = np.zeros_like(values)
        for node, share in zip(*nodes_and_weights("gausslegendre", 7), strict=True):
            place = origin + node * (values - origin)
            total += share * layers_by_hand(weights, batch.ids, OBJECTIVE, override={role: place})[role][1]
        before = layers_by_hand(weights, batch.ids, OBJECTIVE, override={role: np.broadcast_to(origin, values.shape)})
        for size in (None, 5):
            method = embgrad.methods.IntegratedGradients(7, origin, tolerance=1e3)
            made = embgrad.attribute(model("layers"), batch, OBJECTIVE, method, at=role, batch_size=size)
            assert made.values is not None
            assert made.baseline_objective is not None
            close(made.values, total * (values - origin), 1e-12)
            close(made.baseline_objective, before["logits"][0] @ OBJECTIVE.vector, 1e-12)

    def test_an_objective_without_a_scale_has_another_baseline_than_zeros(self, harness: Any) -> None:
        batch, weights = example_batch(), example_weights()
        built = harness.build("mean", {**weights, "b": np.zeros_like(weights["b"])})
        objective = _Direction()
        made = embgrad.attribute(built, batch, objective, embgrad.methods.IntegratedGradients(80))
        method = made.provenance["method"]
        assert method["baseline_taken"] == ["mean"] * len(batch), method["reason"]
        named = embgrad.attribute(built, batch, objective, embgrad.methods.IntegratedGradients(80, "mean"))
        close(made.scores, named.scores, 1e-12)
        origin = np.broadcast_to(weights["E"].mean(0), (*batch.shape, weights["E"].shape[1]))
        before = embgrad.evaluate(built, batch, objective, override={"word": origin})
        close(made.scores.sum(1), made.objective - before, 1e-3)
        usual = embgrad.attribute(built, batch, OBJECTIVE, embgrad.methods.IntegratedGradients(3))
        assert usual.provenance["method"]["baseline_taken"] == ["zero"] * len(batch)

    def test_a_line_is_refined_until_its_error_is_small(self, model: Any) -> None:
        batch, objective = example_batch(), embgrad.CrossEntropy([0, 2, 1])
        method = embgrad.methods.IntegratedGradients(2, 3, tolerance=1e-4, most=400)
        made = embgrad.attribute(model("hidden"), batch, objective, method)
        exact = embgrad.attribute(model("hidden"), batch, objective, embgrad.methods.IntegratedGradients(60, 3))
        assert made.error is not None
        assert made.delta is not None
        assert made.baseline_objective is not None
        assert (made.error <= 1.01e-4 * np.abs(made.objective - made.baseline_objective)).all()
        assert (np.abs(made.delta) <= made.error).all()
        assert max(made.provenance["method"]["steps_taken"]) > 2
        close(made.scores, exact.scores, 1e-3)

    @pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")  # `positions` cannot take a mask
    @pytest.mark.parametrize("architecture", PLAIN)
    def test_occlusion_is_the_difference_to_the_batch_with_other_ids(self, model: Any, architecture: str) -> None:
        batch = example_batch(masked=architecture in ("masked", "positions"))
        made = embgrad.attribute(model(architecture), batch, OBJECTIVE, embgrad.methods.Occlusion(3))
        whole = embgrad.evaluate(model(architecture), batch, OBJECTIVE)
        for position in range(batch.shape[1]):
            ids = batch.ids.copy()
            ids[batch.real[:, position], position] = 3
            without = embgrad.evaluate(model(architecture), batch.replace(ids=ids), OBJECTIVE)
            np.testing.assert_allclose(made.scores[:, position], whole - without, atol=1e-12)

    @pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")  # few steps
    @pytest.mark.parametrize(
        ("method", "single"),
        [
            (embgrad.methods.IntegratedJacobians(3), embgrad.methods.IntegratedGradients(3, "zero")),
            ("input_x_gradient", "input_x_gradient"),
        ],
        ids=["integrated", "gradients"],
    )
    @pytest.mark.parametrize("role", ["word", "layer.1"])
    def test_pairs_are_attributed_as_by_single_calls(self, model: Any, role: str, method: Any, single: Any) -> None:
        built, batch = model("layers"), example_batch()
        other = batch.replace(ids=batch.ids[::-1].copy())
        made = embgrad.attribute_pairs(built, (batch, other), method, similarity="dot", at=role)
        expected = np.zeros_like(made.scores)
        for number in range(len(OBJECTIVE.vector)):
            first, second = (
                embgrad.attribute(built, side, embgrad.Logit(number), single, at=role).scores for side in (batch, other)
            )
            expected += first[:, :, None] * second[:, None]
        close(made.scores, expected, 1e-12)

    @pytest.mark.filterwarnings("ignore:.*contributions:embgrad.EmbgradWarning")
    @pytest.mark.parametrize(
        "method",
        [
            *("saliency", "input_x_gradient", embgrad.methods.IntegratedGradients(10), embgrad.methods.Occlusion(3)),
            embgrad.methods.IntegratedGradients(10, ["zero", 3]),
        ],
        ids=str,
    )
    def test_output_tokens_are_attributed_as_by_single_calls(self, model: Any, method: Any) -> None:
        built, ids = model("tied"), example_batch().ids
        made = embgrad.attribute_tokens(built, ids, method=method)
        assert made.shape == (3, 3, 4)
        for output in range(3):
            objective = embgrad.LogProbability(np.where(np.arange(4) == output + 1, ids, -100))
            single = embgrad.attribute(built, ids, objective, method)
            close(made.scores[:, output], single.scores, 1e-12)
            close(made.objective[:, output], embgrad.evaluate(built, ids, objective), 1e-12)

    @pytest.mark.filterwarnings("ignore:.*contributions:embgrad.EmbgradWarning")
    @pytest.mark.parametrize(
        "method", ["saliency", "input_x_gradient", embgrad.methods.IntegratedGradients(10)], ids=str
    )
    def test_spans_are_attributed_as_by_single_calls(self, model: Any, method: Any) -> None:
        built, ids = model("tied"), example_batch().ids
        labels = np.where(np.arange(4) >= 2, ids, -100)
        made = embgrad.attribute_tokens(built, ids, [slice(2, None)], method=method)
        assert made.outputs.shape == (3, 1, 2)
        close(made.scores[:, 0], embgrad.attribute(built, ids, embgrad.LogProbability(labels), method).scores, 1e-12)
        other = np.concatenate([ids[:, :2], ids[:, :2] * 0 + [3, 5]], 1)
        against = embgrad.attribute_tokens(built, ids, [slice(2, None)], [[[3, 5]]], method)
        of_other = embgrad.LogProbability(np.where(np.arange(4) >= 2, other, -100))
        rest = embgrad.evaluate(built, ids, embgrad.LogProbability(labels)) - embgrad.evaluate(built, other, of_other)
        close(against.objective[:, 0], rest, 1e-12)
        close(against.scores[:, 0, 2:], made.scores[:, 0, 2:], 1e-12)
        if method != "saliency":
            single = embgrad.attribute(built, other, of_other, method).scores
            assert against.contrast_scores is not None
            close(against.scores[:, 0, :2], made.scores[:, 0, :2] - single[:, :2], 1e-12)
            close(against.contrast_scores[:, 0], -single[:, 2:], 1e-12)
            return
        sides = [
            embgrad.gradients(built, batch, of).values
            for batch, of in ((ids, embgrad.LogProbability(labels)), (other, of_other))
        ]
        close(against.scores[:, 0, :2], np.linalg.norm((sides[0] - sides[1])[:, :2].astype(np.float64), axis=-1), 1e-12)
