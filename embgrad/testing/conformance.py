"""The conformance suite that every backend must pass: subclass `ConformanceSuite` in a test module, with a `harness` fixture.

class TestMyBackend(ConformanceSuite):
    @pytest.fixture
    def harness(self):
        return MyHarness()
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend.protocol import ABILITIES
from embgrad.backend.registry import backend_named
from embgrad.testing.checks_calls import CallChecks, PartChecks
from embgrad.testing.checks_capture import CaptureChecks
from embgrad.testing.checks_changes import ChangeChecks
from embgrad.testing.checks_compile import CompileChecks
from embgrad.testing.checks_errors import ErrorChecks
from embgrad.testing.checks_no_trace import NoTraceChecks
from embgrad.testing.checks_objectives import (
    ObjectiveListChecks,
    SeveralFunctionsChecks,
    SeveralInTrainingChecks,
    SeveralObjectiveChecks,
)
from embgrad.testing.checks_outputs import EvaluationChecks, OutputChecks
from embgrad.testing.checks_perturbed import PerturbedChecks
from embgrad.testing.checks_points import PointChecks
from embgrad.testing.checks_tables import TableChecks
from embgrad.testing.checks_trace import TraceChecks
from embgrad.testing.checks_weights import WeightChecks
from embgrad.testing.examples import (
    CLASSES,
    CLOSED_FORM,
    EXAMPLES,
    POSITIONS,
    SMOOTH,
    VOCAB,
    close,
    closed_form,
    example_batch,
    example_weights,
    expect_same,
    finite_difference,
    logits_of_mean,
    softmax,
)
from embgrad.testing.harness import ARCHITECTURES, Harness

__all__ = ["ConformanceSuite", "example_batch", "example_weights"]


class ConformanceSuite(
    TraceChecks,
    NoTraceChecks,
    OutputChecks,
    SeveralObjectiveChecks,
    SeveralInTrainingChecks,
    SeveralFunctionsChecks,
    ObjectiveListChecks,
    ErrorChecks,
    PointChecks,
    ChangeChecks,
    TableChecks,
    CaptureChecks,
    PerturbedChecks,
    WeightChecks,
    CompileChecks,
    EvaluationChecks,
    CallChecks,
    PartChecks,
):
    """The checks that every backend must pass. A subclass defines the fixture `harness`."""

    @pytest.fixture
    def model(self, harness: Harness) -> Callable[..., Any]:
        """Return a function that builds a model of the suite in the harness's framework."""

        def build(architecture: str, dtype: str = "float64", **options: Any) -> Any:
            return harness.build(architecture, example_weights(dtype), **options)

        build.harness = harness  # type: ignore[attr-defined]
        return build

    # The backend's declarations

    def test_backend_is_registered_and_its_abilities_are_known(self, harness: Harness) -> None:
        backend = backend_named(harness.backend)
        by_ability = {
            "capture": "capture",
            "perturb": "perturb",
            "weights": "weights",
            "alone": "weights",
        }  # members that not every backend needs, by ability
        needed = [name for name in vars(embgrad.backend.Backend) if by_ability.get(name, "word") in backend.supports]
        assert not [name for name in needed if not name.startswith("_") and not hasattr(backend, name)]
        assert backend.supports <= ABILITIES.keys()
        assert "word" in backend.supports
        assert backend.versions()

    def test_backend_owns_its_models_and_nothing_else(self, harness: Harness, model: Any) -> None:
        backend = backend_named(harness.backend)
        assert backend.owns(model("mean"))
        for other in (None, "mean", 3, [], {}, np.zeros(3), object(), int, print):
            assert not backend.owns(other)

    def test_every_architecture_of_the_suite_builds(self, model: Any) -> None:
        for architecture in ARCHITECTURES:
            assert model(architecture) is not None

    # Values

    def test_closed_form_of_cross_entropy(self, harness: Harness) -> None:
        batch, labels = example_batch(), np.array([2, 0, 1])
        for dtype in harness.precisions:
            weights = _round(example_weights(), dtype)
            built = harness.build("mean", weights, dtype=dtype)
            result = embgrad.gradients(built, batch, embgrad.CrossEntropy(labels))
            logits = logits_of_mean(weights, batch.ids)
            expected = closed_form(weights, softmax(logits) - np.eye(CLASSES)[labels])
            close(result.values, expected, CLOSED_FORM[dtype])
            close(result.objective, -np.log(softmax(logits))[np.arange(EXAMPLES), labels], CLOSED_FORM[dtype])
            assert result.values.dtype == (np.float64 if dtype == "float64" else np.float32)
            assert result.provenance["compute_dtype"] == dtype

    @pytest.mark.parametrize(
        "objective",
        [
            embgrad.Logit(1),
            embgrad.Logit([0, 2, 1]),
            embgrad.Margin(0, against=2),
            embgrad.Margin([0, 1, 2]),
            embgrad.Margin([0, 1, 2], against=[1, 2, 0]),
            embgrad.Sum(),
            embgrad.Projection([0.5, -2.0, 3.0]),
            embgrad.Projection(np.arange(9.0).reshape(3, 3)),
        ],
        ids=repr,
    )
    def test_closed_form_of_linear_objectives(self, model: Any, objective: embgrad.Objective) -> None:
        weights, batch = example_weights(), example_batch()
        result = embgrad.gradients(model("mean"), batch, objective)
        value, cotangent = objective.evaluate(logits_of_mean(weights, batch.ids), batch)
        close(result.values, closed_form(weights, cotangent), 1e-12)
        close(result.objective, value, 1e-12)

    @pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")  # `positions` cannot take a mask
    @pytest.mark.parametrize("architecture", SMOOTH)
    def test_finite_differences_along_the_table(self, harness: Harness, architecture: str) -> None:
        weights, batch = example_weights(), example_batch(masked=architecture in ("masked", "positions"))
        objective = embgrad.Projection([0.7, -1.1, 0.4])
        path = {"two_tables": "word#0"}.get(architecture, "word")
        result = embgrad.gradients(harness.build(architecture, weights), batch, objective, at=path)

        def total(table: np.ndarray) -> float:
            changed = harness.build(architecture, {**weights, "E": table})
            return float(embgrad.gradients(changed, batch, objective, at=path).objective.sum())

        random = np.random.default_rng(5)
        for _ in range(3):
            direction = random.normal(size=weights["E"].shape)
            slope = finite_difference(total, weights["E"], direction)
            assert slope == pytest.approx(float((result.table().to_dense() * direction).sum()), rel=1e-8)

    def test_finite_differences_at_each_entry(self, harness: Harness) -> None:
        weights, batch = example_weights(), embgrad.TokenBatch([[7, 3], [11, 30]])
        objective = embgrad.CrossEntropy([1, 2])
        result = embgrad.gradients(harness.build("hidden", weights), batch, objective)

        def total(table: np.ndarray) -> float:
            changed = harness.build("hidden", {**weights, "E": table})
            return float(embgrad.gradients(changed, batch, objective).objective.sum())

        expected = np.zeros_like(result.values)
        for index in np.ndindex(*expected.shape):
            direction = np.zeros_like(weights["E"])
            direction[batch.ids[index[:2]], index[2]] = 1
            expected[index] = finite_difference(total, weights["E"], direction, step=1e-4)
        close(result.values, expected, 1e-9)

    def test_table_is_the_frameworks_own_table_gradient(self, harness: Harness) -> None:
        ids, labels = np.array([[3, 3, 5, 0], [5, 9, 3, 0], [1, 1, 1, 1]]), np.array([0, 1, 2])
        built = harness.build("hidden", example_weights())
        result = embgrad.gradients(built, ids, embgrad.CrossEntropy(labels))
        expected = harness.table_gradient(built, ids, labels)
        close(result.table().to_dense(), expected, 1e-12)
        close(np.sum([gradient.to_dense() for gradient in result.per_example()], axis=0), expected, 1e-12)
        assert result.table().rows.tolist() == [0, 1, 3, 5, 9]

    def test_activations_are_the_rows_of_the_table(self, model: Any) -> None:
        weights, batch = example_weights(), example_batch()
        for architecture in ("mean", "scaled", "flat", "time_major", "positional"):
            result = embgrad.gradients(model(architecture), batch, embgrad.Sum())
            np.testing.assert_array_equal(result.activations, weights["E"][batch.ids])

    def test_two_names_of_one_point_have_arrays_of_their_own(self, model: Any) -> None:
        built, batch = model("mean"), example_batch()
        path = embgrad.gradients(built, batch, embgrad.Sum()).provenance["path"]
        both = embgrad.gradients(built, batch, embgrad.Sum(), at=["word", path], pads="zero")
        copies = both[path].values.copy(), both[path].activations.copy()
        assert both[path].pad_leak == both["word"].pad_leak
        for array in (both["word"].values, both["word"].activations):
            array[:] = np.nan
        np.testing.assert_array_equal(both[path].values, copies[0])
        np.testing.assert_array_equal(both[path].activations, copies[1])

    def test_every_layout_of_the_lookup_is_returned_as_example_position_dim(self, model: Any) -> None:
        batch, objective = example_batch(), embgrad.CrossEntropy([0, 1, 2])
        plain = embgrad.gradients(model("mean"), batch, objective)
        for architecture in ("flat", "time_major"):
            close(embgrad.gradients(model(architecture), batch, objective).values, plain.values, 1e-12)

    def test_ids_that_read_the_same_by_example_and_by_position(self, model: Any) -> None:
        """Check the layout of the result for ids that do not show which axis is the examples: all equal, or symmetric."""
        objective = embgrad.CrossEntropy([0, 1, 2])
        for ids in (np.full((3, 3), 5), np.array([[1, 2, 3], [2, 1, 2], [3, 2, 1]]), np.full((3, 4), 5)):
            plain = embgrad.gradients(model("mean"), ids, objective)
            for architecture in ("flat", "time_major"):
                close(embgrad.gradients(model(architecture), ids, objective).values, plain.values, 1e-12)

    def test_probabilities(self, model: Any) -> None:
        batch = example_batch()
        of_logits = embgrad.gradients(model("mean"), batch, embgrad.CrossEntropy([0, 1, 2]))
        of_probabilities = embgrad.gradients(
            model("probabilities"), batch, embgrad.CrossEntropy([0, 1, 2], of="probabilities")
        )
        close(of_probabilities.values, of_logits.values, 1e-11)
        with pytest.raises(embgrad.errors.ObjectiveError, match="of='probabilities'"):
            embgrad.gradients(model("probabilities"), batch, embgrad.CrossEntropy([0, 1, 2]))

    # Several lookups

    def test_two_lookups_in_one_table_have_a_name_each(self, harness: Harness, model: Any) -> None:
        weights, batch = example_weights(), example_batch()
        built, objective = model("twice"), embgrad.Projection([1.0, 2.0, 3.0])
        with pytest.raises(embgrad.errors.AmbiguousPointError, match=r"word#0.*word#1"):
            embgrad.gradients(built, batch, objective)
        both = embgrad.gradients(built, batch, objective, at=["word#0", "word#1"])
        assert list(both) == ["word#0", "word#1"]
        plain = closed_form(weights, np.tile([1.0, 2.0, 3.0], (EXAMPLES, 1)))
        close(both["word#0"].values, plain, 1e-12)
        close(both["word#1"].values, plain * (1 - np.tanh(weights["E"][batch.ids]) ** 2), 1e-12)
        with pytest.raises(embgrad.errors.PointError, match="2 time"):
            embgrad.gradients(built, batch, objective, at="word#2")

    def test_two_tables_are_distinguished_by_path(self, model: Any) -> None:
        weights, batch = example_weights(), example_batch()
        built = model("two_tables")
        with pytest.raises(embgrad.errors.AmbiguousPointError):
            embgrad.gradients(built, batch, embgrad.Sum())
        seen = embgrad.points(built, batch)
        paths = [point.path for point in seen if point.lookup is not None]
        assert [point.roles for point in seen if point.lookup is not None] == [("word",), ("word",)]
        assert len(set(paths)) == 2
        second = embgrad.gradients(built, batch, embgrad.Sum(), at=paths[1])
        np.testing.assert_array_equal(second.activations, weights["E2"][batch.ids])
        close(
            second.values,
            closed_form(weights, np.ones((EXAMPLES, CLASSES))) * (1 - np.tanh(weights["E2"][batch.ids]) ** 2),
            1e-12,
        )

    def test_a_lookup_whose_indices_equal_the_ids_by_chance_is_distinguished(self, model: Any) -> None:
        weights, ids = example_weights(), np.arange(POSITIONS)[None]  # as the positions are
        result = embgrad.gradients(model("positional"), ids, embgrad.Sum())
        np.testing.assert_array_equal(result.activations, weights["E"][ids])

    # Bad input

    def test_an_id_outside_the_table_is_named(self, harness: Harness, model: Any) -> None:
        ids = example_batch().ids.copy()
        ids[1, 2] = VOCAB
        for architecture in ("mean", "time_major", "flat"):
            built = model(architecture)
            before = harness.state(built)
            with pytest.raises(
                embgrad.errors.BatchError, match=r"id 40 at example 1, position 2 .*40 rows: expected 0 to 39"
            ):
                embgrad.gradients(built, ids, embgrad.Sum())
            expect_same(harness.state(built), before)

    def test_an_occurrence_that_is_not_reached_is_an_error(self, model: Any) -> None:
        path = embgrad.points(model("mean"), example_batch())[0].path
        with pytest.raises(embgrad.errors.UnknownPointError, match="reached 1 time"):
            embgrad.gradients(model("mean"), example_batch(), embgrad.Sum(), at=f"{path}#4")

    def test_a_gradient_of_zero_is_a_result(self, model: Any) -> None:
        result = embgrad.gradients(model("hidden"), example_batch(), embgrad.Projection(np.zeros(CLASSES)))
        assert not result.values.any()

    def test_a_gradient_that_is_not_finite_is_an_error(self, harness: Harness) -> None:
        weights = example_weights()
        weights["W"][0, 0] = np.nan
        with pytest.raises(embgrad.errors.ObjectiveError, match="nan at example 0"):
            embgrad.gradients(harness.build("mean", weights), example_batch(), embgrad.Sum())

    # Independence of examples

    def test_independence_of_the_other_examples(self, model: Any) -> None:
        labels = np.array([0, 1, 2])
        batch = example_batch(masked=True)
        whole = embgrad.gradients(model("masked"), batch, embgrad.CrossEntropy(labels))
        for example in range(EXAMPLES):
            alone = slice(example, example + 1)
            result = embgrad.gradients(model("masked"), batch[alone], embgrad.CrossEntropy(labels[alone]))
            close(result.values, whole.values[alone], 1e-12)

    def test_padding_changes_nothing_else(self, model: Any) -> None:
        batch, objective = example_batch(masked=True), embgrad.CrossEntropy([0, 1, 2])
        plain = embgrad.gradients(model("masked"), batch, objective)
        for before, after in ((0, 3), (2, 0)):
            widths = ((0, 0), (before, after))
            padded = embgrad.TokenBatch(np.pad(batch.ids, widths), np.pad(np.asarray(batch.mask), widths))
            wide = embgrad.gradients(model("masked"), padded, objective)
            close(wide.values[:, before : before + POSITIONS], plain.values, 1e-12)
            assert wide.pad_leak == 0.0

    def test_pads_are_kept_reported_or_zeroed(self, model: Any) -> None:
        batch = example_batch(masked=True)
        with pytest.warns(embgrad.EmbgradWarning, match="cannot take the mask"):
            kept = embgrad.gradients(model("mean"), batch, embgrad.Sum())
        with pytest.warns(embgrad.EmbgradWarning):
            zeroed = embgrad.gradients(model("mean"), batch, embgrad.Sum(), pads="zero")
        padding = ~batch.real
        assert kept.provenance["unused"] == ["mask"]
        assert kept.pad_leak == zeroed.pad_leak == np.abs(kept.values[padding]).max() > 0
        assert not zeroed.values[padding].any()
        np.testing.assert_array_equal(zeroed.values[batch.real], kept.values[batch.real])
        assert not zeroed.table().to_dense()[batch.ids[padding]].any()

    def test_split_gives_each_example_its_own_pullback(self, model: Any) -> None:
        batch, objective = example_batch(), embgrad.CrossEntropy([0, 1, 2])
        together = embgrad.gradients(model("hidden"), batch, objective)
        split = embgrad.gradients(model("hidden"), batch, objective, split=True)
        close(split.values, together.values, 1e-12)
        close(split.table().to_dense(), together.table().to_dense(), 1e-12)
        for actual, expected in zip(split.per_example(), together.per_example(), strict=True):
            close(actual.to_dense(), expected.to_dense(), 1e-12)

    def test_micro_batches_give_one_result(self, model: Any) -> None:
        batch, objective = example_batch(masked=True), embgrad.CrossEntropy([0, 1, 2])
        whole = embgrad.gradients(model("masked"), batch, objective)
        for size in (1, 2, 5):
            pieces = embgrad.gradients(model("masked"), batch, objective, batch_size=size)
            close(pieces.values, whole.values, 1e-12)
            close(pieces.objective, whole.objective, 1e-12)
            np.testing.assert_array_equal(pieces.ids, whole.ids)

    # Calling

    def test_call_and_parts(self, harness: Harness, model: Any) -> None:
        batch, objective = example_batch(), embgrad.Sum()
        built = model("hidden")
        expected = embgrad.gradients(built, batch, objective)
        called = embgrad.gradients(built, batch, objective, call=lambda m, inputs: m(inputs["input_ids"]))
        np.testing.assert_array_equal(called.values, expected.values)
        bare = embgrad.gradients(built, batch.ids, objective, call=lambda m, ids: m(ids))
        np.testing.assert_array_equal(bare.values, embgrad.gradients(built, batch.ids, objective).values)
        parts = [model("named"), built]
        second = embgrad.gradients(parts, batch, objective, call=lambda p, inputs: p[1](inputs["input_ids"]))
        np.testing.assert_array_equal(second.values, expected.values)
        assert second.provenance["path"].startswith("1.")
        with pytest.raises(embgrad.errors.UnsupportedError, match="call="):
            embgrad.gradients(parts, batch, objective)

    def test_a_batch_is_accepted_in_every_form(self, model: Any) -> None:
        batch, objective = example_batch(masked=True), embgrad.CrossEntropy([0, 1, 2])
        expected = embgrad.gradients(model("masked"), batch, objective).values
        forms = (batch.to_huggingface(), batch.to_tfhub(), batch.to_keras_hub(), batch.to_gluonnlp())
        for form in forms:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", embgrad.EmbgradWarning)  # types of zeros may be dropped
                np.testing.assert_array_equal(embgrad.gradients(model("masked"), form, objective).values, expected)
        floats = {"input_ids": batch.ids.astype(np.float32), "attention_mask": batch.real}
        np.testing.assert_array_equal(embgrad.gradients(model("masked"), floats, objective).values, expected)


def _round(weights: Mapping[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """Return the weights rounded to a dtype but stored with more precision, since NumPy has no bfloat16."""
    if dtype == "bfloat16":
        bits = {name: value.astype(np.float32).view(np.uint32) & 0xFFFF0000 for name, value in weights.items()}
        return {name: value.astype(np.uint32).view(np.float32) for name, value in bits.items()}
    return {name: value.astype(dtype).astype(np.float64) for name, value in weights.items()}
