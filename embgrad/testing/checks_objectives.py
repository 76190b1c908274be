"""The conformance checks of several objectives through one forward pass."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.backend.registry import backend_named, bind
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.engine.run import reduce_run, run_located
from embgrad.testing.examples import EXAMPLES, POSITIONS, close, example_batch, needs
from embgrad.testing.harness import Harness

__all__ = [
    "ObjectiveListChecks",
    "SeveralFunctionsChecks",
    "SeveralInTrainingChecks",
    "SeveralObjectiveChecks",
]

#: Objectives of the logits of each example, (example, class).
PER_EXAMPLE: Final = (
    embgrad.CrossEntropy([2, 0, 1]),
    embgrad.Logit(1),
    embgrad.Margin(0, against=2),
    embgrad.Margin(1),
    embgrad.Projection([0.5, -2.0, 3.0]),
    embgrad.Logit(1),
)

#: Objectives of the logits of each position, which read all rows or some, the same or others.
PER_POSITION: Final = (
    embgrad.Projection([1.0, -1.0, 2.0], position=-1),
    embgrad.Logit(2),
    embgrad.Logit(0, position=0),
    embgrad.Logit(0, position=[2, 1, 0]),
    embgrad.Sum(position=-1),
)


def expect_equal(results: Any, expected: Any) -> None:
    """Assert that results, or results by name, are equal bit for bit and own their arrays."""
    pairs = results.items() if isinstance(results, dict) else [("", results)]
    for name, result in pairs:
        other = expected[name] if name else expected
        np.testing.assert_array_equal(result.values, other.values)
        np.testing.assert_array_equal(result.activations, other.activations)
        np.testing.assert_array_equal(result.objective, other.objective)
        assert (result.before is None) is (other.before is None)
        if result.before is not None:
            np.testing.assert_array_equal(result.before, other.before)
        assert result.pad_leak == other.pad_leak
        assert dict(result.provenance) == dict(other.provenance)


def expect_those_of_single_calls(model: Any, batch: Any, objectives: Any, **options: Any) -> list[Any]:
    """Assert that one call with a list returns what a call for each objective returns; return its results."""
    results = embgrad.gradients(model, batch, list(objectives), **options)
    assert isinstance(results, list)
    assert len(results) == len(objectives)
    for result, objective in zip(results, objectives, strict=True):
        expect_equal(result, embgrad.gradients(model, batch, objective, **options))
    flat = [entry for result in results for entry in (result.values() if isinstance(result, dict) else [result])]
    for index, result in enumerate(flat):
        for other in flat[:index]:
            assert not np.shares_memory(result.values, other.values)
            assert not np.shares_memory(result.activations, other.activations)
    return results


@needs("split")
class SeveralObjectiveChecks:
    """A list of objectives takes one forward pass and a pullback each, with the numbers of single calls."""

    def test_several_objectives_give_the_numbers_of_single_calls(self, model: Any) -> None:
        for architecture in ("mean", "hidden", "layers"):
            expect_those_of_single_calls(model(architecture), example_batch(), PER_EXAMPLE)
        expect_those_of_single_calls(model("positions"), example_batch(masked=True), PER_POSITION)
        (only,) = expect_those_of_single_calls(model("mean"), example_batch(), (embgrad.Logit(1),))
        assert isinstance(only, embgrad.results.EmbeddingGradients)
        as_tuple = embgrad.gradients(model("mean"), example_batch(), (embgrad.Logit(1), embgrad.Logit(2)))
        assert [result.provenance["objective"]["index"] for result in as_tuple] == [1, 2]

    def test_several_objectives_take_one_forward_pass(self, model: Any) -> None:
        for built, batch, objectives in (
            (model("mean"), example_batch(), PER_EXAMPLE),
            (model("positions"), example_batch(masked=True), PER_POSITION),
        ):
            for options in _options({}, {"split": True}):
                passes: list[int] = []
                results = embgrad.gradients(built, batch, list(objectives), call=_counting(passes), **options)
                assert (len(passes), len(results)) == (1, len(objectives))
            passes = []
            assert len(embgrad.evaluate(built, batch, list(objectives), call=_counting(passes))) == len(objectives)
            assert len(passes) == 1

    def test_several_objectives_at_several_points(self, model: Any) -> None:
        at = ["word", "embeddings", "layer.0", "layer.-1"]
        for result in expect_those_of_single_calls(model("layers"), example_batch(), PER_EXAMPLE, at=at):
            assert list(result) == at
        expect_those_of_single_calls(model("layers"), example_batch(), PER_EXAMPLE, at="layer.1")

    def test_several_objectives_at_changed_points(self, harness: Harness, model: Any) -> None:
        added = np.random.default_rng(3).normal(size=(EXAMPLES, POSITIONS, 5))
        changes: dict[str, dict[str, Any]] = {
            "override": {"layer.0": lambda value: value * 2},
            "add": {"word": added},
            "edit": {"layer.-1": lambda gradient: gradient * 3},
        }
        for option in backend_named(harness.backend).supports & changes.keys():
            options = {option: changes[option]}
            at = ["layer.-1", "layer.1"] if option == "override" else ["word", "layer.-1"]
            results = expect_those_of_single_calls(model("layers"), example_batch(), PER_EXAMPLE, at=at, **options)
            for result in results if option == "edit" else ():
                assert result["layer.-1"].before is not None
                np.testing.assert_array_equal(result["layer.-1"].values, 3 * result["layer.-1"].before)

    def test_several_objectives_split_and_in_sub_batches(self, model: Any) -> None:
        for options in _options({"split": True}, {"batch_size": 2}, {"split": True, "batch_size": 2}, {"pads": "zero"}):
            expect_those_of_single_calls(model("positions"), example_batch(masked=True), PER_POSITION, **options)
            expect_those_of_single_calls(model("layers"), example_batch(), PER_EXAMPLE, at="layer.0", **options)
        expect_those_of_single_calls(model("mixing"), example_batch(), PER_EXAMPLE, split=True)

    def test_several_objectives_at_a_point_without_an_axis_of_examples(self, model: Any) -> None:
        batch = example_batch()
        expect_those_of_single_calls(model("positional"), batch, PER_EXAMPLE, at=["word", "position"])

    def test_several_objectives_are_checked_each(self, model: Any) -> None:
        results = embgrad.gradients(model("hidden"), example_batch(), [embgrad.Logit(0), embgrad.Logit(1)], check=True)
        assert all(result.certificate is not None and result.certificate.slopes for result in results)
        with pytest.raises(embgrad.errors.CertificationError, match=r"^at index 0 of the objectives: ") as raised:
            embgrad.gradients(model("broken"), example_batch(), [embgrad.Logit(0), embgrad.Logit(1)], check=True)
        assert raised.value.certificate is not None

    def test_gradients_are_reduced_as_they_arrive(self, model: Any) -> None:
        built, batch = model("layers"), example_batch()
        for at in ("word", "layer.0", ["word", "layer.0"]):
            for objectives in (PER_EXAMPLE, PER_EXAMPLE[:1]):
                arrived: list[tuple[str, tuple[int, ...]]] = []

                def reduce(key: str, gradient: np.ndarray, value: np.ndarray, arrived: Any = arrived) -> np.ndarray:
                    arrived.append((key, gradient.shape))
                    return np.asarray((gradient * value).sum(-1, keepdims=True))

                names = (at,) if isinstance(at, str) else tuple(at)
                question = Question(bind(built, None), batch, tuple(objectives), GradientOptions(names))
                run, located = run_located(question, reduce)
                assert len(run.objectives) == len(objectives)
                assert len(arrived) == len(objectives) * len(run.points)
                results = embgrad.gradients(built, batch, list(objectives), at=at)
                for name, point in located.items():
                    values = run.points[point.key if point.key in run.points else name]
                    for result, reduced in zip(results, reduce_run(values, point.arrangement), strict=True):
                        whole = result[name] if isinstance(result, dict) else result
                        assert reduced is not None
                        close(reduced, (whole.values * whole.activations).sum(-1), 1e-12)

    def test_an_error_names_the_index_of_the_objective(self, model: Any) -> None:
        batch = example_batch()
        cases: list[tuple[str, list[Any], type[embgrad.EmbgradError], str]] = [
            (
                "detached",
                [embgrad.Logit(0), embgrad.Logit(1)],
                embgrad.errors.NoGradientError,
                "0.*does not depend on the point",
            ),
            ("mean", [embgrad.Logit(0), embgrad.Logit(7)], embgrad.errors.ObjectiveError, "1.*index 7"),
            ("mean", [embgrad.Logit(0), embgrad.Sum(output="pooled")], embgrad.errors.OutputError, "1.*pooled"),
            ("mean", [embgrad.Logit(9), embgrad.Logit(0)], embgrad.errors.ObjectiveError, "0.*index 9"),
        ]
        for architecture, objectives, error, message in cases:
            with pytest.raises(error, match=f"^at index {message}"):
                embgrad.gradients(model(architecture), batch, objectives)
            if error is not embgrad.errors.NoGradientError:
                with pytest.raises(error, match=f"^at index {message}"):
                    embgrad.evaluate(model(architecture), batch, objectives)
        with pytest.raises(embgrad.errors.ObjectiveError, match=r"^(?!at index)"):
            embgrad.gradients(model("mean"), batch, [embgrad.Logit(7)])


@needs("split", "training")
class SeveralInTrainingChecks:
    """The check that a backend with the abilities "split" and "training" must pass."""

    def test_several_objectives_in_training_mode(self, harness: Harness, model: Any) -> None:

        def seeded(objective: Any, **options: Any) -> Any:
            harness.seed(5)
            random.seed(5)  # from which Keras seeds its layers
            np.random.seed(5)
            return embgrad.gradients(model("dropout"), example_batch(), objective, training=True, **options)

        results = seeded([embgrad.Logit(1), embgrad.Logit(1), embgrad.Logit(0)])
        np.testing.assert_array_equal(results[0].values, results[1].values)  # of one pass with one dropout
        expect_equal(results[0], seeded(embgrad.Logit(1)))
        expect_equal(results[2], seeded(embgrad.Logit(0)))
        np.testing.assert_array_equal(seeded(embgrad.Logit(0), split=True).values, results[2].values)


@needs("split", "native")
class SeveralFunctionsChecks:
    """The check that a backend with the abilities "split" and "native" must pass."""

    def test_functions_of_the_user_among_several_objectives(self, harness: Harness, model: Any) -> None:
        built, batch = model("hidden"), example_batch()
        mixed = [embgrad.Logit(0), harness.logit(1), embgrad.Scalar(harness.summed_logit(2)), harness.logit(1)]
        for order in (mixed, mixed[::-1]):
            expect_those_of_single_calls(built, batch, order)
            values = embgrad.evaluate(built, batch, order)
            assert [value.shape for value in values] == [
                () if isinstance(each, embgrad.Scalar) else (EXAMPLES,) for each in order
            ]
        expect_those_of_single_calls(built, batch, [harness.logit(1), embgrad.Logit(0), harness.logit(2)], split=True)
        only_scalars = [embgrad.Scalar(harness.summed_logit(index)) for index in (1, 2)]
        expect_those_of_single_calls(built, batch, only_scalars)
        with pytest.raises(embgrad.EmbgradError, match="Scalar"):
            embgrad.gradients(built, batch, mixed, batch_size=2)


class ObjectiveListChecks:
    """Lists of objectives: values without gradients."""

    def test_evaluating_several_objectives(self, model: Any) -> None:
        for built, batch, objectives in (
            (model("hidden"), example_batch(), PER_EXAMPLE),
            (model("positions"), example_batch(masked=True), PER_POSITION),
        ):
            for options in _options({}, {"batch_size": 2}):
                values = embgrad.evaluate(built, batch, list(objectives), **options)
                for value, objective in zip(values, objectives, strict=True):
                    np.testing.assert_array_equal(value, embgrad.evaluate(built, batch, objective, **options))


def _counting(passes: list[int]) -> Callable[[Any, Any], Any]:
    """Return a function for `call=` that counts the forward passes, in a list, since attributes are restored after a call."""

    def call(model: Any, inputs: Any) -> Any:
        passes.append(1)
        return model(inputs["input_ids"] if isinstance(inputs, dict) else inputs)

    return call


def _options(*options: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the options of several calls, of any type."""
    return options
