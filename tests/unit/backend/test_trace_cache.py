"""The core's keeping of traces, with a backend whose traces are numbers."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from embgrad.backend import PointValues, Request, Run
from embgrad.backend.trace_cache import TraceCache, UnfitError, UntraceableError


class Model:
    """Gives its factor."""

    factor = 2.0

    def method(self) -> float:
        return self.factor


class Print:
    """The fingerprint of a model whose factor alone can change."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def kept(self) -> Print:
        return self

    def is_that_of(self, now: Print) -> bool:
        return self.factor == now.factor


class Maker:
    """Makes traces that hold the model's factor; counts what it does."""

    def __init__(self, model: Model, wrong: str = "") -> None:
        self.done: list[str] = []
        self._model = model
        self._wrong = wrong

    def plain(self, request: Request) -> Run:
        self.done.append("plain")
        return self._run(request, self._model.factor)

    def watched(self, function: Any, tell: Any) -> Any:
        return function

    def make(self, found: Run, used: tuple[int, ...], *, exact: bool) -> float:
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
        assert callable(request.respond)
        request.respond({None: np.full(3, factor)})
        values = PointValues(np.ones(3), (np.full(3, factor),), None)
        return Run({"word": values}, "float64")


REQUEST = Request(("word",), lambda outputs: [{None: np.ones(3)}], (None,), compiled=True)


def asked(traces: TraceCache[float], model: Model, wrong: str = "", question: Any = 0, lengths: Any = 3) -> Any:
    maker = Maker(model, wrong)
    run = traces.run([model], question, Print(model.factor), lengths, REQUEST, maker)
    (gradient,) = run.points["word"].gradients
    return gradient[0], maker.done, run.uncompiled


def test_a_trace_is_compared_once_for_each_length() -> None:
    traces, model = TraceCache[float](), Model()
    assert asked(traces, model) == (2.0, ["plain", "make", "run"], None)
    assert asked(traces, model) == (2.0, ["run"], None)
    assert asked(traces, model, lengths=4) == (2.0, ["plain", "run"], None)


def test_a_model_that_changes_takes_another_trace() -> None:
    traces, model = TraceCache[float](), Model()
    asked(traces, model)
    model.factor = 5.0
    assert asked(traces, model) == (5.0, ["plain", "make", "run"], None)


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
    traces, model = TraceCache[float](patience=3), Model()
    for question in range(3):
        assert asked(traces, model, question=question)[2] is None
    assert "the last 3 calls each made a different request" in asked(traces, model, question=3)[2]
    assert asked(traces, model, question=3)[2] is None


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
