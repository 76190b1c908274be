"""The conformance checks that a call of `gradients` restores all state: after success, after failures, and in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.testing.examples import close, example_batch, expect_same
from embgrad.testing.harness import Harness

__all__ = ["TraceChecks"]


class TraceChecks:
    """The checks of state, modes and threads that every backend must pass."""

    # Restored state

    @pytest.mark.parametrize("architecture", ["hidden", "dropout", "masked", "named", "two_tables"])
    @pytest.mark.parametrize("training", [False, True])
    def test_state_after_success(self, harness: Harness, model: Any, architecture: str, training: bool) -> None:
        built = model(architecture)
        harness.disturb(built)
        before = harness.state(built)
        output = "pooled" if architecture == "named" else None
        at = "word#1" if architecture == "two_tables" else "word"
        embgrad.gradients(built, example_batch(), embgrad.Sum(output=output), at=at, training=training)
        expect_same(harness.state(built), before)

    @pytest.mark.parametrize("fault", ["forward", "objective", "native objective", "interrupt", "output", "point"])
    def test_state_after_an_exception(self, harness: Harness, model: Any, fault: str) -> None:
        built = model("raises" if fault == "forward" else "dropout")
        harness.disturb(built)
        before = harness.state(built)
        with pytest.raises((RuntimeError, KeyboardInterrupt, embgrad.EmbgradError)) as caught:
            _provoke(built, fault)
        expect_same(harness.state(built), before)
        expected = {
            "forward": (RuntimeError, "the model broke"),
            "objective": (RuntimeError, "the objective broke"),
            "native objective": (RuntimeError, "the objective broke"),
            "interrupt": (KeyboardInterrupt, ""),
            "output": (embgrad.errors.OutputError, "no output 'nothing'"),
            "point": (embgrad.errors.UnknownPointError, "nothing"),
        }[fault]
        assert caught.type is expected[0]
        assert expected[1] in str(caught.value)

    def test_the_model_can_be_used_after_an_exception(self, model: Any) -> None:
        built = model("hidden")
        expected = embgrad.gradients(built, example_batch(), embgrad.Sum())
        for fault in ("objective", "native objective", "interrupt"):
            with pytest.raises((RuntimeError, KeyboardInterrupt)):
                _provoke(built, fault)
            again = embgrad.gradients(built, example_batch(), embgrad.Sum())
            np.testing.assert_array_equal(again.values, expected.values)

    def test_results_belong_to_the_caller(self, harness: Harness, model: Any) -> None:
        built = model("mean")
        first = embgrad.gradients(built, example_batch(), embgrad.CrossEntropy([0, 1, 2]))
        copies = {name: getattr(first, name).copy() for name in ("values", "activations", "objective", "ids")}
        before = harness.state(built)
        for name in copies:
            array = getattr(first, name)
            assert array.flags.c_contiguous
            assert array.flags.writeable
            assert array.flags.owndata
            array[...] = 0
        expect_same(harness.state(built), before)
        second = embgrad.gradients(built, example_batch(), embgrad.CrossEntropy([0, 1, 2]))
        for name, value in copies.items():
            np.testing.assert_array_equal(getattr(second, name), value)

    def test_the_same_call_twice_gives_the_same_bits(self, model: Any) -> None:
        built = model("hidden", "float32")
        first, second = (embgrad.gradients(built, example_batch(), embgrad.CrossEntropy([0, 1, 2])) for _ in range(2))
        np.testing.assert_array_equal(first.values, second.values)
        np.testing.assert_array_equal(first.objective, second.objective)

    def test_frozen_parameters_make_no_difference(self, model: Any) -> None:
        batch, objective = example_batch(), embgrad.CrossEntropy([0, 1, 2])
        expected = embgrad.gradients(model("hidden"), batch, objective)
        close(embgrad.gradients(model("hidden", frozen=True), batch, objective).values, expected.values, 1e-12)

    # Modes

    def test_evaluation_mode_whatever_mode_the_model_is_in(self, harness: Harness, model: Any) -> None:
        batch, objective = example_batch(), embgrad.CrossEntropy([0, 1, 2])
        expected = embgrad.gradients(model("hidden"), batch, objective)
        built = model("dropout")
        harness.train(built)
        close(embgrad.gradients(built, batch, objective).values, expected.values, 1e-12)

    def test_training_mode_on_demand(self, model: Any) -> None:
        built = model("dropout")
        calm = embgrad.gradients(built, example_batch(), embgrad.Sum())
        drawn = [embgrad.gradients(built, example_batch(), embgrad.Sum(), training=True) for _ in range(4)]
        assert len({result.values.tobytes() for result in (calm, *drawn)}) > 2
        assert drawn[0].provenance["training"]

    # Threads

    def test_four_threads_on_one_model_in_both_modes(self, harness: Harness, model: Any) -> None:
        built, batch = model("dropout"), example_batch()
        calm = embgrad.gradients(built, batch, embgrad.Sum()).values
        harness.train(built)
        before = harness.state(built)
        calls = [partial(_values, built, batch, training=training) for training in (False, True, False, True)]
        results = _in_threads(calls)
        assert all(np.array_equal(values, calm) for number in (0, 2) for values in results[number])
        assert not all(np.array_equal(values, calm) for number in (1, 3) for values in results[number])
        expect_same(harness.state(built), before)

    def test_four_threads_on_four_models(self, model: Any) -> None:
        batch = example_batch()
        models = [model(name) for name in ("hidden", "mean", "scaled", "hidden")]
        calls = [partial(_values, built, batch) for built in models]
        expected = [call() for call in calls]
        for thread_results, alone in zip(_in_threads(calls), expected, strict=True):
            for values in thread_results:
                np.testing.assert_array_equal(values, alone)

    def test_threads_with_different_calls_on_one_model(self, harness: Harness, model: Any) -> None:
        built, batch, objective = model("hidden"), example_batch(), embgrad.Sum()
        calls: list[Callable[[], Any]] = [
            lambda: embgrad.gradients(built, batch, objective).values,
            lambda: embgrad.gradients(built, batch, objective, batch_size=2).values,
            lambda: [point.key for point in embgrad.points(built, batch)],
            lambda: _refuse(lambda: embgrad.gradients(built, batch, objective, at="nothing")),
        ]
        before = harness.state(built)
        expected = [call() for call in calls]
        for thread_results, alone in zip(_in_threads(calls), expected, strict=True):
            for result in thread_results:
                np.testing.assert_array_equal(result, alone)
        expect_same(harness.state(built), before)


#: The number of times that each thread makes its call.
CALLS: Final = 8


def _in_threads(calls: Sequence[Callable[[], Any]]) -> list[list[Any]]:
    """Make each call several times in its own thread, all threads at once, and return the results of each."""
    results: list[list[Any]] = [[] for _ in calls]

    def work(number: int) -> None:
        for _ in range(CALLS):
            results[number].append(calls[number]())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A call that raised has fewer results.
    assert [len(thread_results) for thread_results in results] == [CALLS] * len(calls)
    return results


def _values(model: Any, batch: Any, **options: Any) -> np.ndarray:
    values: np.ndarray = embgrad.gradients(model, batch, embgrad.Sum(), **options).values
    return values


def _refuse(call: Callable[[], Any]) -> str:
    with pytest.raises(embgrad.EmbgradError) as caught:
        call()
    return str(caught.value)


def _provoke(built: Any, fault: str) -> None:
    """Make a call of `gradients` that fails in the named way."""

    class Broken(embgrad.Sum):
        def evaluate(self, output: np.ndarray, batch: embgrad.TokenBatch) -> tuple[np.ndarray, np.ndarray]:
            raise KeyboardInterrupt if fault == "interrupt" else RuntimeError("the objective broke")

    def native(outputs: Any) -> Any:
        raise RuntimeError("the objective broke")

    objectives: dict[str, Any] = {
        "objective": Broken(),
        "interrupt": Broken(),
        "native objective": native,
        "output": embgrad.Sum(output="nothing"),
    }
    at = "nothing" if fault == "point" else "word"
    embgrad.gradients(built, example_batch(), objectives.get(fault, embgrad.Sum()), at=at)
