"""The conformance checks of `perturbed` in a user's training loop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.testing.checks_capture import LABELS, example_loop
from embgrad.testing.examples import (
    CLASSES,
    CLOSED_FORM,
    DIM,
    POSITIONS,
    close,
    example_batch,
    example_weights,
    expect_same,
    layers_by_hand,
    needs,
    softmax,
)
from embgrad.testing.harness import Harness

__all__ = ["PerturbedChecks"]

RATE: Final = 0.125  # exact in float32, as some optimisers keep it
IDS: Final = np.array([[3, 5, 3, 8], [2, 9, 3, 2], [7, 7, 7, 7]])  # the same id, with another array each time it occurs
DELTA: Final = np.random.default_rng(7).normal(size=(len(IDS), POSITIONS, DIM))


def _gradients(weights: dict[str, np.ndarray], delta: np.ndarray) -> dict[str, np.ndarray]:
    """Return the gradients of the weights and the rows of the architecture "mean" in a perturbed pass, by hand."""
    pooled = (weights["E"][IDS] + delta).mean(1)
    slope = (softmax(pooled @ weights["W"] + weights["b"]) - np.eye(CLASSES)[LABELS]) / len(IDS)
    rows = np.repeat((slope @ weights["W"].T)[:, None] / POSITIONS, POSITIONS, axis=1)
    table = np.zeros_like(weights["E"])
    np.add.at(table, IDS, rows)
    return {"E": table, "W": pooled.T @ slope, "b": slope.sum(0), "rows": rows}


def _after_a_step(weights: dict[str, np.ndarray], delta: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weights of the architecture "mean" after a step of gradient descent on a perturbed pass, by hand."""
    gradients = _gradients(weights, delta)
    return {name: weights[name] - RATE * gradients[name] for name in ("E", "W", "b")}


@contextlib.contextmanager
def _both(built: Any, at: str, add: dict[str, Any], *, captured_first: bool) -> Iterator[Any]:
    """Open a capture and a perturbation, in either order, and yield the tap."""
    if captured_first:
        with embgrad.capture(built, at=at) as tap, embgrad.perturbed(built, add):
            yield tap
    else:
        with embgrad.perturbed(built, add), embgrad.capture(built, at=at) as tap:
            yield tap


@needs("modules", "add", "capture", "perturb")
class PerturbedChecks:
    """The checks that a backend with the ability "perturb" must pass."""

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    @pytest.mark.parametrize("function", [False, True])
    def test_closed_form_of_a_step_of_a_perturbed_pass(
        self, harness: Harness, model: Any, dtype: str, function: bool
    ) -> None:
        built, weights = model("mean", dtype), example_weights(dtype)
        given: list[np.ndarray] = []

        def addition(value: np.ndarray) -> np.ndarray:
            given.append(value.copy())
            value[...] = 0.0  # it is the user's copy
            return DELTA

        with embgrad.perturbed(built, {"word": addition if function else DELTA}) as perturbation:
            harness.step(built, IDS, LABELS, RATE)
        assert perturbation.passes == 1
        for value in given:
            np.testing.assert_array_equal(value, weights["E"][IDS])
        expected, tolerance = _after_a_step(weights, DELTA), CLOSED_FORM[dtype]
        assert np.abs(expected["W"] - weights["W"]).max() > 100 * tolerance
        result = embgrad.gradients(built, IDS, embgrad.Projection(np.ones(CLASSES)))
        close(result.activations, expected["E"][IDS], tolerance)
        close(result.values[0, 0], expected["W"].sum(1) / POSITIONS, tolerance)

    def test_closed_form_of_steps_of_adversarial_training(self, harness: Harness, model: Any) -> None:
        """The fast gradient method: a pass whose gradient is captured, and a step on one that is perturbed along it."""
        built, weights = model("mean"), example_weights()
        for _ in range(2):
            with embgrad.capture(built) as tap:
                harness.step(built, IDS, LABELS, 0.0)
            close(tap.steps[0].values, _gradients(weights, np.zeros_like(DELTA))["rows"], 1e-12)
            delta = tap.steps[0].values / np.linalg.norm(tap.steps[0].values, axis=(1, 2), keepdims=True)
            with embgrad.perturbed(built, {"word": delta}):
                harness.step(built, IDS, LABELS, RATE)
            weights = _after_a_step(weights, delta)
        result = embgrad.gradients(built, IDS, embgrad.Projection(np.ones(CLASSES)))
        close(result.activations, weights["E"][IDS], 1e-12)
        close(result.values[0, 0], weights["W"].sum(1) / POSITIONS, 1e-12)

    @pytest.mark.parametrize("at", ["word", "layer.1", "embeddings", "position"])
    def test_zeros_change_no_bit(self, harness: Harness, model: Any, at: str) -> None:
        perturbed, alone = model("layers", "float32"), model("layers", "float32")
        with embgrad.perturbed(perturbed, {at: 0.0}) as perturbation:
            for ids, labels in example_loop():
                harness.step(perturbed, ids, labels)
        assert perturbation.passes == len(example_loop())
        for ids, labels in example_loop():
            harness.step(alone, ids, labels)
        _expect_same_model(perturbed, alone)

    @pytest.mark.parametrize("captured_first", [False, True])
    @pytest.mark.parametrize("at", ["word", "layer.1", "embeddings"])
    @pytest.mark.parametrize("point", ["word", "layer.1", "embeddings"])
    def test_a_capture_of_a_perturbed_pass(
        self, harness: Harness, model: Any, at: str, point: str, captured_first: bool
    ) -> None:
        built, ids = model("layers"), example_batch().ids
        delta = np.random.default_rng(3).normal(size=(*ids.shape, DIM))
        expected = embgrad.gradients(built, ids, embgrad.CrossEntropy(LABELS), at=at, add={point: delta})
        with _both(built, at, {point: delta}, captured_first=captured_first) as tap:
            harness.step(built, ids, LABELS)
        close(tap.steps[0].values, expected.values / 3, 1e-12)
        close(tap.steps[0].activations, expected.activations, 1e-12)

    def test_only_passes_of_the_user_are_perturbed(self, harness: Harness, model: Any) -> None:
        built, alone, ids = model("layers"), model("layers"), example_batch().ids
        by_hand = layers_by_hand(example_weights(), ids, embgrad.Sum())["word"]
        with embgrad.perturbed(built, {"word": 1.0}) as perturbation:
            result = embgrad.gradients(built, ids, embgrad.Sum())
            embgrad.evaluate(built, ids, embgrad.Sum())
            thread = threading.Thread(target=harness.step, args=(built, ids, LABELS))
            thread.start()
            thread.join()
        close(result.activations, by_hand[0], 1e-12)
        assert perturbation.passes == 0
        harness.step(built, ids, LABELS)
        for _ in range(2):
            harness.step(alone, ids, LABELS)
        _expect_same_model(built, alone)

    def test_nested_perturbations_add_up(self, harness: Harness, model: Any) -> None:
        built, once = model("mean"), model("mean")
        with embgrad.perturbed(built, {"word": 0.75 * DELTA}), embgrad.perturbed(built, {"word": 0.25 * DELTA}):
            harness.step(built, IDS, LABELS)
        with embgrad.perturbed(once, {"word": DELTA}):
            harness.step(once, IDS, LABELS)
        results = [embgrad.gradients(trained, IDS, embgrad.Sum()) for trained in (built, once)]
        close(results[0].values, results[1].values, 1e-12)
        close(results[0].activations, results[1].activations, 1e-12)

    def test_a_function_may_call_the_model(self, harness: Harness, model: Any) -> None:
        built, ids = model("hidden"), example_batch().ids
        plain = embgrad.gradients(built, ids, embgrad.Sum())
        own, inner = harness.table_gradient(built, ids, LABELS), list[np.ndarray]()

        def addition(value: np.ndarray) -> np.ndarray:
            inner.append(harness.table_gradient(built, ids, LABELS))
            return embgrad.gradients(built, ids, embgrad.Sum()).values

        with embgrad.capture(built) as tap, embgrad.perturbed(built, {"word": addition}) as perturbation:
            harness.step(built, ids, LABELS)
        assert (tap.count, tap.passes, perturbation.passes) == (1, 1, 1)
        close(tap.steps[0].activations, plain.activations + plain.values, 1e-12)
        np.testing.assert_array_equal(inner, [own])

    @pytest.mark.parametrize("at", ["word", "layer.1"])
    @pytest.mark.parametrize("error", [OSError("the function broke"), KeyboardInterrupt()])
    def test_state_after_a_function_that_raises(
        self, harness: Harness, model: Any, at: str, error: BaseException
    ) -> None:
        def broken(value: np.ndarray) -> np.ndarray:
            raise error

        built, alone = model("layers"), model("layers")
        for trained in (built, alone):
            harness.step(trained, example_batch().ids, LABELS)
        before = harness.state(built)
        with pytest.raises(type(error)) as caught, embgrad.capture(built), embgrad.perturbed(built, {at: broken}):
            harness.step(built, example_batch().ids, LABELS)
        assert caught.value is error
        expect_same(harness.state(built), before)
        for trained in (built, alone):
            harness.step(trained, example_batch().ids, LABELS)
        _expect_same_model(built, alone)

    @pytest.mark.parametrize(
        ("add", "message"),
        [
            (
                {"word": np.zeros((2, POSITIONS, DIM))},
                r"add\['word'\] has the shape \(2, 4, 5\): expected .* \(3, 4, 5\)",
            ),
            ({"layer.1": lambda value: value[:2, :2]}, r"add\['layer.1'\] has the shape \(2, 2, 5\)"),
            ({"layer.7": 0.0}, r"no point 'layer\.7'"),
        ],
    )
    def test_arrays_that_do_not_fit(self, harness: Harness, model: Any, add: dict[str, Any], message: str) -> None:
        built, alone = model("layers"), model("layers")
        with pytest.raises(embgrad.errors.PointError, match=message), embgrad.perturbed(built, add):
            harness.step(built, IDS, LABELS)
        _expect_same_model(built, alone)
        harness.step(built, IDS, LABELS)
        harness.step(alone, IDS, LABELS)
        _expect_same_model(built, alone)

    def test_state_after_a_perturbation(self, harness: Harness, model: Any) -> None:
        for fault in (None, RuntimeError("the loop broke"), KeyboardInterrupt()):
            built, alone = model("layers"), model("layers")
            for trained in (built, alone):
                harness.step(trained, example_batch().ids, LABELS)
            before = harness.state(built)
            raised = contextlib.nullcontext() if fault is None else pytest.raises(type(fault))
            with raised, embgrad.perturbed(built, {"word": 1.0, "layer.1": 1.0}):
                if fault is not None:
                    raise fault
            expect_same(harness.state(built), before)
            for trained in (built, alone):
                harness.step(trained, example_batch().ids, LABELS)
            _expect_same_model(built, alone)

    def test_a_perturbation_that_is_left_open_is_closed_with_a_warning(self, harness: Harness, model: Any) -> None:
        built, before = model("hidden"), harness.state(model("hidden"))
        opened = embgrad.perturbed(built, {"word": 1.0})
        opened.__enter__()
        with pytest.warns(
            embgrad.EmbgradWarning, match="a perturbation of 'word' was left open, and nobody holds it any more"
        ):
            del opened  # without reference counting the warning would come at some later time
        assert harness.state(built).keys() == before.keys()
        alone = model("hidden")
        for trained in (built, alone):
            harness.step(trained, *example_loop()[0])
        _expect_same_model(built, alone)


def _expect_same_model(built: Any, other: Any) -> None:
    """Expect that two models have the same weights, as far as values and gradients show, bit for bit."""
    results = [embgrad.gradients(trained, example_batch(), embgrad.Sum()) for trained in (built, other)]
    np.testing.assert_array_equal(results[0].values, results[1].values)
    np.testing.assert_array_equal(results[0].activations, results[1].activations)
