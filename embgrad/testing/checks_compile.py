"""The conformance checks of kept traces: results equal those without a trace, and a trace holds nothing of a call."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.engine.weights import weights_of
from embgrad.testing.examples import close, example_batch, example_weights, expect_same, needs
from embgrad.testing.harness import Harness

__all__ = ["CompileChecks"]

PROJECTION: Final = embgrad.Projection([1.0, -2.0, 0.5])

#: The largest relative difference from the result without a trace: fused operations add up in another order.
TOLERANCE: Final = 1e-10


@needs("compile")
class CompileChecks:
    """The checks that a backend with the ability "compile" must pass."""

    @pytest.mark.parametrize("architecture", ["mean", "masked", "positions", "flat", "positional"])
    def test_a_trace_gives_what_the_model_gives(self, model: Any, architecture: str) -> None:
        built, batch = model(architecture), example_batch(masked=architecture == "masked")
        plain = embgrad.gradients(built, batch, PROJECTION)
        for _ in range(2):
            expect_close(embgrad.gradients(built, batch, PROJECTION, compile=True), plain)

    def test_nothing_of_a_call_stays_in_the_trace(self, harness: Harness, model: Any) -> None:
        built, whole = model("hidden"), example_batch()
        objectives: list[Any] = [embgrad.CrossEntropy([0, 1, 2]), embgrad.CrossEntropy([2, 2, 0]), embgrad.Logit(1)]
        objectives += [harness.logit(0), harness.logit(2), embgrad.Scalar(harness.summed_logit(1))]
        for objective in objectives:
            expect_close(
                embgrad.gradients(built, whole, objective, compile=True), embgrad.gradients(built, whole, objective)
            )
        for batch in (whole[:1], whole[1:], whole.ids[:, :2], whole.ids[:, ::-1], np.tile(whole.ids, (3, 2))):
            expect_close(
                embgrad.gradients(built, batch, PROJECTION, compile=True), embgrad.gradients(built, batch, PROJECTION)
            )

    def test_weights_may_change(self, model: Any) -> None:
        built, batch = model("hidden"), example_batch()
        before = embgrad.gradients(built, batch, PROJECTION, compile=True)
        for weight in weights_of(built):
            weight.put(weight.get() * 1.5)
        after = embgrad.gradients(built, batch, PROJECTION, compile=True)
        expect_close(after, embgrad.gradients(built, batch, PROJECTION))
        assert np.abs(after.values - before.values).max() > 0.01 * np.abs(before.values).max()

    def test_a_changed_constant_is_noticed(self, harness: Harness, model: Any) -> None:
        built, batch = model("layers"), example_batch()
        before = embgrad.gradients(built, batch, PROJECTION, compile=True)
        harness.change_constant(built)
        after = embgrad.gradients(built, batch, PROJECTION, compile=True)
        expect_close(after, embgrad.gradients(built, batch, PROJECTION))
        assert np.abs(after.values - before.values).max() > 0.01 * np.abs(before.values).max()

    def test_points_and_changes(self, model: Any) -> None:
        built, batch = model("layers"), example_batch()
        names = ["word", "layer.0", "layer.-1"]
        steering = np.random.default_rng(2).normal(size=(2, 5))
        calls: list[dict[str, Any]] = [{}]
        calls += [{"add": {"layer.0": vector}, "edit": {"layer.1": lambda g: g * 2}} for vector in steering]
        calls += [{"add": {"layer.0": steering[0]}, "edit": {"layer.1": lambda g: g * 0}}]
        calls += [{"override": {"embeddings": lambda value, vector=vector: value + vector}} for vector in steering]
        for options in calls:
            at = names if "override" not in options else names[1:]
            plain = embgrad.gradients(built, batch, PROJECTION, at=at, **options)
            traced = embgrad.gradients(built, batch, PROJECTION, at=at, compile=True, **options)
            for name in at:
                expect_close(traced[name], plain[name])

    def test_what_is_wrong_is_said_as_without(self, model: Any) -> None:
        built, batch = model("mean"), example_batch()
        embgrad.gradients(built, batch, PROJECTION, compile=True)
        wrong = np.array(batch.ids)
        wrong[1, 2] = 1_000_000
        with pytest.raises(embgrad.errors.BatchError, match="id 1000000 at example 1, position 2 is outside the table"):
            embgrad.gradients(built, wrong, PROJECTION, compile=True)
        with pytest.raises(embgrad.errors.ObjectiveError, match="out of range"):
            embgrad.gradients(built, batch, embgrad.Logit(99), compile=True)

        def stopped(_: Any) -> Any:
            raise KeyboardInterrupt("stopped")

        changed: list[dict[str, Any]] = [{"edit": {"word": stopped}}, {"add": {"word": stopped}}]
        for options in changed:
            with pytest.raises(KeyboardInterrupt, match="stopped"):
                embgrad.gradients(built, batch, PROJECTION, compile=True, **options)
        with pytest.raises(KeyboardInterrupt, match="stopped"):
            embgrad.gradients(built, batch, stopped, compile=True)
        with pytest.raises(embgrad.errors.NoGradientError):
            embgrad.gradients(model("detached"), batch, PROJECTION, compile=True)
        expect_close(
            embgrad.gradients(built, batch, PROJECTION, compile=True), embgrad.gradients(built, batch, PROJECTION)
        )

    def test_each_examples_own_pullback(self, model: Any) -> None:
        built, batch = model("mixing"), example_batch()
        plain = embgrad.gradients(built, batch, PROJECTION, split=True)
        expect_close(embgrad.gradients(built, batch, PROJECTION, split=True, compile=True), plain)

    def test_state_with_a_trace(self, harness: Harness, model: Any) -> None:
        built, batch = model("hidden"), example_batch()
        embgrad.gradients(built, batch, PROJECTION)
        harness.disturb(built)
        before = harness.state(built)
        for _ in range(2):
            embgrad.gradients(built, batch, PROJECTION, compile=True)
            expect_same(harness.state(built), before)

    def test_the_model_is_not_kept_alive(self, harness: Harness) -> None:
        built = harness.build("hidden", example_weights())
        embgrad.gradients(built, example_batch(), PROJECTION, compile=True)
        reference = weakref.ref(built)
        del built
        gc.collect()
        assert reference() is None


def expect_close(traced: embgrad.results.EmbeddingGradients, plain: embgrad.results.EmbeddingGradients) -> None:
    """Assert that a call ran a trace, and that its result equals that without a trace up to rounding."""
    assert traced.provenance["compiled"] is True, traced.provenance["uncompiled"]
    close(traced.values, plain.values, TOLERANCE)
    close(traced.activations, plain.activations, TOLERANCE)
    close(traced.objective, plain.objective, TOLERANCE)
    assert traced.values.dtype == plain.values.dtype
