"""Traces: their cache, the comparison of a new one with the model itself, and callbacks that are called once for several runs."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad.backend import Callback, NativeObjective, PointValues, Request, Response, Run
from embgrad.backend.protocol import FixedChange
from embgrad.backend.replay import Retries
from embgrad.backend.trace_cache import TraceCache, UnfitError, UntraceableError
from embgrad.backend.trace_check import MeasuredObjective, difference_of
from embgrad.toolkit.recorded_changes import changes_recorded, record_change


class Model:
    """A model that returns its factor."""

    factor = 2.0

    def method(self) -> float:
        return self.factor


class Print:
    """The fingerprint of a model whose factor alone can change."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def without_model(self) -> Print:
        return self

    def is_that_of(self, now: Print) -> bool:
        return self.factor == now.factor


class Maker:
    """A maker of traces that hold the model's factor; it records its calls."""

    def __init__(self, model: Model, wrong: str = "") -> None:
        self.done: list[str] = []
        self._model = model
        self._wrong = wrong

    def plain(self, request: Request) -> Run:
        self.done.append("plain")
        record_change("state")
        return self._run(request, self._model.factor)

    def make(self, request: Request, *, exact: bool) -> float:
        self.done.append("exact" if exact else "make")
        if self._wrong == "none" or (self._wrong == "lengths" and not exact):
            raise UntraceableError("there is none")
        return self._model.factor + (1.0 if self._wrong == "differs" else 0.0)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        yield

    def run(self, trace: float, request: Request) -> Run:
        self.done.append("run")
        if self._wrong == "unfit":
            raise UnfitError("it does not fit")
        return self._run(request, trace)

    def dtypes(self, trace: float) -> list[str]:
        return ["float64"]

    def _run(self, request: Request, factor: float) -> Run:
        (objective,) = request.objectives
        response = Response(np.full(3, factor))
        if not isinstance(objective, NativeObjective):
            response = objective({name: np.full(3, factor) for name in objective.outputs})
        values = PointValues(np.ones(3), (np.full(3, factor),), None)
        return Run({"word": values}, "float64", (), (response,))


REQUEST = Request(("word",), (Callback(lambda outputs: [{None: np.ones(3)}]),), compiled=True)


def asked(
    traces: TraceCache[float],
    model: Model,
    wrong: str = "",
    question: Any = 0,
    lengths: Any = 3,
    request: Request = REQUEST,
) -> Any:
    maker = Maker(model, wrong)
    run = traces.run([model], question, Print(model.factor), lengths, request, maker)
    (gradient,) = run.points["word"].gradients
    return gradient[0], maker.done, run.uncompiled


def test_a_trace_is_compared_once_for_each_length() -> None:
    traces, model = TraceCache[float](), Model()
    assert asked(traces, model) == (2.0, ["plain", "make", "run"], None)
    assert asked(traces, model) == (2.0, ["run"], None)
    assert asked(traces, model, lengths=4) == (2.0, ["plain", "run"], None)


def test_a_trace_changes_what_the_model_changed_in_the_comparison() -> None:
    traces, model = TraceCache[float](), Model()
    for done in (["plain", "make", "run"], ["run"]):
        with changes_recorded() as changes:
            assert asked(traces, model)[1] == done
        assert [*changes.names] == ["state"]


def test_a_model_that_changes_takes_another_trace() -> None:
    traces, model = TraceCache[float](), Model()
    asked(traces, model)
    model.factor = 5.0
    assert asked(traces, model) == (5.0, ["plain", "make", "run"], None)


@pytest.mark.parametrize(
    "changed",
    [{"points": ("word", "layer.0")}, {"objectives": (Callback(lambda outputs: [{"other": np.ones(3)}], ("other",)),)},
        {"several": True}, {"add": {"word": lambda value: value}}],
)  # fmt: skip
def test_a_trace_is_compared_for_what_it_has_not_been_asked_for(changed: Any) -> None:
    traces, model = TraceCache[float](), Model()
    asked(traces, model)
    for done in (["plain", "run"], ["run"]):
        assert asked(traces, model, request=replace(REQUEST, **changed))[1] == done


def test_a_native_objective_is_known_by_its_code() -> None:
    traces, model = TraceCache[float](), Model()
    for done in (["plain", "make", "run"], ["run"]):
        objective = NativeObjective(lambda returned: returned, scalar=False)
        assert asked(traces, model, request=replace(REQUEST, objectives=(objective,)))[1] == done
    other = NativeObjective(lambda returned: -returned, scalar=False)
    assert asked(traces, model, request=replace(REQUEST, objectives=(other,)))[1] == ["plain", "run"]


def test_length_dependent_models_have_one_trace_per_length() -> None:
    traces, model = TraceCache[float](), Model()
    assert asked(traces, model, "lengths")[1:] == (["plain", "make", "exact", "run"], None)
    assert asked(traces, model, "lengths", lengths=4)[1:] == (["plain", "exact", "run"], None)
    for lengths in range(5, 11):
        asked(traces, model, "lengths", lengths=lengths)
    assert asked(traces, model, "lengths", lengths=11)[2] == "each length needs its own trace, and at most 8 are kept"
    assert asked(traces, model, "lengths")[1:] == (["run"], None)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("none", "there is none"),
        ("differs", "the gradients at 'word' differ between a trace"),
        ("unfit", "it does not fit"),
    ],
)
def test_an_unusable_trace_is_remembered(wrong: str, why: str) -> None:
    traces, model = TraceCache[float](), Model()
    gradient, _, uncompiled = asked(traces, model, wrong)
    assert gradient == 2.0
    assert why in uncompiled
    assert asked(traces, model, wrong) == (2.0, ["plain"], uncompiled)


def test_requests_that_never_repeat_are_no_longer_traced() -> None:
    traces, model = TraceCache[float](), Model()
    for question in range(16):
        assert asked(traces, model, question=question)[2] is None
    assert "the last 16 calls each made a different request" in asked(traces, model, question=16)[2]
    assert asked(traces, model, question=16)[2] is None
    for question in range(17, 33):  # counted from the last call that found its trace
        assert asked(traces, model, question=question)[2] is None


def test_a_bound_method_is_recognised_and_the_model_is_not_kept_alive() -> None:
    traces, model = TraceCache[float](), Model()
    for done in (["plain", "make", "run"], ["run"]):
        maker = Maker(model)
        traces.run([model.method], 0, Print(2.0), 3, REQUEST, maker)
        assert maker.done == done
    alive = weakref.ref(model)
    del model, maker
    gc.collect()
    assert alive() is None


VALUE = np.arange(6.0).reshape(2, 3)

#: What follows what is apart.
APART = "differ between a trace and the model itself"


def ran(gradient: Any, activation: Any = VALUE, before: Any = (), objective: Any = VALUE) -> Run:
    points = {"word": PointValues(activation, (gradient,), None, before)}
    return Run(points, "float64", objectives=(Response(objective),))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (ran(VALUE), None),
        (ran(VALUE * (1 + 1e-9)), None),
        (ran(VALUE * 1.001), "the gradients at 'word'"),
        (ran(None), "the gradients at 'word'"),
        (ran(VALUE[:1]), "the gradients at 'word'"),
        (ran(np.where(VALUE == 1, np.nan, VALUE)), "the gradients at 'word'"),
        (ran(VALUE, VALUE + 1), "the values at 'word'"),
        (ran(VALUE, objective=np.ones(2)), "the objective's values"),
    ],
)
def test_differences_are_described(given: Run, said: str | None) -> None:
    assert difference_of(ran(VALUE), given, 1e-6, 1.0) == (said and f"{said} {APART}")


def test_rounding_is_judged_by_the_cotangents() -> None:
    noise = ran(VALUE * 0), ran(VALUE * 1e-7)
    assert difference_of(*noise, 1e-6, 1.0) is None
    assert difference_of(*noise, 1e-6, 1e-3) == f"the gradients at 'word' {APART}"
    objective = MeasuredObjective(Callback(lambda outputs: [{None: outputs[None]}, {None: -9 * outputs[None]}]))
    assert objective.outputs == (None,)
    assert objective.reads(None, (2,)) is None
    assert objective({None: VALUE}).sets[0][None] is VALUE
    assert objective.largest == 45


def test_a_trace_gets_what_the_functions_returned_for_the_model() -> None:
    called: list[Any] = []

    def change(value: Any) -> Any:
        called.append(value)
        return value + len(called)

    class Adding(Maker):
        def _run(self, request: Request, factor: float) -> Run:
            added = request.add["word"](np.full(3, factor))
            values = PointValues(added, (added,), None)
            return Run({"word": values}, "float64", (), (Response(added),))

    maker = Adding(Model())
    request = replace(REQUEST, add={"word": change})
    run = TraceCache[float]().run([Model()], 0, Print(2.0), 3, request, maker)
    assert maker.done == ["plain", "make", "run"]
    assert run.uncompiled is None
    np.testing.assert_array_equal(run.points["word"].activation, [3, 3, 3])
    assert len(called) == 1


def test_a_difference_with_a_native_objective_may_be_its_own() -> None:
    objective = NativeObjective(lambda returned: returned, scalar=False)
    why = asked(TraceCache(), Model(), "differs", request=replace(REQUEST, objectives=(objective,)))[2]
    assert why == f"the gradients at 'word' {APART}, or the objective gives different results each time"


def test_a_function_is_called_once_in_several_tries() -> None:
    called: list[Any] = []

    def change(value: Any) -> Any:
        called.append(value.copy())
        value += len(called)  # as a function may that is given an array to write into
        return value

    tries = Retries(Request(("word",), add={"word": change}))
    for _ in range(3):
        function = tries.next().add["word"]
        np.testing.assert_array_equal(function(VALUE.copy()), VALUE + 1)
        np.testing.assert_array_equal(function(VALUE.copy()), VALUE + 2)  # the point is come by again
        assert len(called) == 2
    function = tries.next().add["word"]
    np.testing.assert_array_equal(function(VALUE * (1 + 1e-12)), VALUE + 1)
    np.testing.assert_array_equal(function(VALUE * 1e-9), VALUE * 1e-9 + 3)  # another value, however small
    np.testing.assert_array_equal(function(VALUE[:1].copy()), VALUE[:1] + 4)
    assert len(called) == 4


def test_an_array_needs_no_record() -> None:
    change = FixedChange(lambda value: value + 1)
    request = Request(("word",), override={"word": change}, add={"word": lambda value: value})
    assert request.has_functions
    assert not Request(("word",), override={"word": change}).has_functions
    following = Retries(request).next()
    assert following.override["word"] is change
    assert following.add["word"] is not request.add["word"]
    np.testing.assert_array_equal(change(VALUE), VALUE + 1)


@pytest.mark.parametrize("other", [1e3, np.nan, np.inf])
def test_one_entry_of_many_makes_another_value(other: float) -> None:
    values = np.ones((300, 100))
    tries = Retries(Request(("word",), add={"word": lambda value: value * 2}))
    np.testing.assert_array_equal(tries.next().add["word"](values), values * 2)
    for index in (1, 2, 6, 14_000, 29_999):
        changed = values.copy()
        changed.flat[index] = other
        np.testing.assert_array_equal(tries.next().add["word"](changed), changed * 2)


def test_an_error_of_a_try_propagates_and_is_not_recorded() -> None:
    raised = [KeyboardInterrupt]

    def change(value: Any) -> Any:
        if raised:
            raise raised.pop()
        return value

    tries = Retries(Request(("word",), edit={"word": change}))
    with pytest.raises(KeyboardInterrupt):
        tries.next().edit["word"](VALUE)
    np.testing.assert_array_equal(tries.next().edit["word"](VALUE), VALUE)
