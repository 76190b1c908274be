"""The conformance checks of `capture` in a user's training loop."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.testing.examples import close, example_batch, example_weights, expect_same, layers_by_hand, needs
from embgrad.testing.harness import Harness

__all__ = ["CaptureChecks"]

LABELS: Final = np.array([2, 0, 1])


def example_loop() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return three batches with labels, of two different lengths."""
    ids = example_batch().ids
    return [(ids, LABELS), (ids[::-1, :3] + 1 - (ids[::-1, :3] == 39), LABELS[::-1]), (ids, LABELS)]


@needs("modules", "capture")
class CaptureChecks:
    """The checks that a backend with the ability "capture" must pass."""

    @pytest.mark.parametrize("keep", ["all", "mean"])
    def test_the_gradient_of_each_step(self, harness: Harness, model: Any, keep: str) -> None:
        captured, alone = model("hidden"), model("hidden")
        expected = []
        with embgrad.capture(captured, keep=keep) as tap:
            for ids, labels in example_loop():
                expected.append(embgrad.gradients(alone, ids, embgrad.CrossEntropy(labels)))
                harness.step(captured, ids, labels)
                harness.step(alone, ids, labels)
        tables = [result.table().to_dense() / 3 for result in expected]  # the loop's loss is a mean over three examples
        close(_dense(tap.mean()), np.mean(tables, axis=0), 1e-10)
        close(_dense(tap.sum()), np.sum(tables, axis=0), 1e-10)
        assert tap.count == 3
        assert len(tap.steps) == (3 if keep == "all" else 0)
        for step, result in zip(tap.steps, expected, strict=False):
            close(step.values, result.values / 3, 1e-10)
            np.testing.assert_array_equal(step.activations, result.activations)
            np.testing.assert_array_equal(step.ids, result.ids)
            assert step.objective is None
            assert step.provenance["compute_dtype"] == result.provenance["compute_dtype"]

    @pytest.mark.parametrize("at", ["word", "layer.1", "embeddings"])
    def test_the_loop_ends_with_the_same_weights_bit_for_bit(self, harness: Harness, model: Any, at: str) -> None:
        captured, alone = model("layers", "float32"), model("layers", "float32")
        with embgrad.capture(captured, at=at) as tap:
            for ids, labels in example_loop():
                harness.step(captured, ids, labels)
        for ids, labels in example_loop():
            harness.step(alone, ids, labels)
        assert tap.count == 3
        results = [embgrad.gradients(trained, example_batch(), embgrad.Sum()) for trained in (captured, alone)]
        np.testing.assert_array_equal(results[0].values, results[1].values)
        np.testing.assert_array_equal(results[0].activations, results[1].activations)

    def test_a_layer_is_captured(self, harness: Harness, model: Any) -> None:
        built, ids = model("layers"), example_batch().ids
        expected = embgrad.gradients(built, ids, embgrad.CrossEntropy(LABELS), at="layer.1")
        with embgrad.capture(built, at="layer.1") as tap, embgrad.capture(built) as words:
            harness.step(built, ids, LABELS)
        close(tap.steps[0].values, expected.values / 3, 1e-12)
        close(_dense(tap.sum()), expected.values / 3, 1e-12)
        close(tap.steps[0].activations, layers_by_hand(example_weights(), ids, embgrad.Sum())["layer.1"][0], 1e-12)
        assert words.count == 1

    def test_calls_of_embgrad_are_not_captured(self, harness: Harness, model: Any) -> None:
        built, ids = model("hidden"), example_batch().ids
        with embgrad.capture(built) as tap:
            embgrad.gradients(built, ids, embgrad.Sum())
            harness.step(built, ids, LABELS)
            embgrad.gradients(built, ids, embgrad.Sum())
        assert (tap.count, tap.passes) == (1, 1)

    def test_nothing_captured(self, harness: Harness, model: Any) -> None:
        with embgrad.capture(model("hidden")) as tap:
            pass
        with pytest.raises(embgrad.errors.NoGradientError, match="nothing was captured at 'word'"):
            tap.mean()
        detached = model("detached")
        with (
            pytest.raises(embgrad.errors.NoGradientError, match=r"called 1 time\(s\), and no gradient reached 'word'"),
            embgrad.capture(detached),
        ):
            harness.step(detached, example_batch().ids, LABELS)

    @pytest.mark.parametrize("steps", [0, 1])
    def test_a_capture_that_is_left_open_is_closed_with_a_warning(
        self, harness: Harness, model: Any, steps: int
    ) -> None:
        built, batch = model("hidden"), example_loop()[0]
        before = harness.state(built)
        capturing = embgrad.capture(built)
        tap = capturing.__enter__()
        for _ in range(steps):
            harness.step(built, *batch)
        with pytest.warns(
            embgrad.EmbgradWarning, match=f"left open, and nobody holds it any more.*after {steps} forward"
        ):
            del capturing  # without reference counting the warning would come at some later time
        if not steps:
            expect_same(harness.state(built), before)
        harness.step(built, *batch)
        assert tap.count == steps

    def test_state_after_a_capture(self, harness: Harness, model: Any) -> None:
        for fault in (None, RuntimeError("the loop broke"), KeyboardInterrupt()):
            built, alone = model("layers"), model("layers")
            for trained in (built, alone):
                harness.step(trained, example_batch().ids, LABELS)
            before = harness.state(built)
            with embgrad.capture(built):
                pass
            expect_same(harness.state(built), before)
            raised = contextlib.nullcontext() if fault is None else pytest.raises(type(fault))
            with raised, embgrad.capture(built, at="layer.1"):
                harness.step(built, example_batch().ids, LABELS)
                if fault is not None:
                    raise fault
            harness.step(alone, example_batch().ids, LABELS)
            after, expected = harness.state(built), harness.state(alone)
            assert after.keys() == expected.keys()
            first, second = (
                embgrad.gradients(trained, example_batch(), embgrad.Sum()).values for trained in (built, alone)
            )
            np.testing.assert_array_equal(first, second)


def _dense(gradient: Any) -> np.ndarray:
    return np.asarray(gradient.to_dense() if isinstance(gradient, embgrad.results.RowSparse) else gradient)
