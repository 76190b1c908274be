"""Kept traces: how many, how long, and what a call says that could have none."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.registry import backend_named
from embgrad.testing import reference
from embgrad.testing.conformance import example_batch, example_weights
from embgrad.traces import Traces, UnsettledError
from tests.conformance.harness_reference import Harness


class Model:
    pass


class Trace:
    pass


def test_a_trace_is_made_once_and_the_longest_unused_goes() -> None:
    traces: Traces[list[str]] = Traces(limit=2)
    model, made = Model(), []

    def get(key: str) -> list[str]:
        return traces.get([model], key, lambda: made.append(key) or [key])  # type: ignore[func-returns-value]

    first = get("a")
    assert get("a") is first
    get("b")
    get("a")
    get("c")
    assert made == ["a", "b", "c"]
    assert traces.count([model]) == 2
    assert get("a") is first
    get("b")
    assert made == ["a", "b", "c", "b"]
    traces.forget([model])
    assert traces.count([model]) == 0


def test_where_each_key_is_another_none_is_made_until_one_comes_twice() -> None:
    traces: Traces[list[int]] = Traces(patience=3)
    model, made = Model(), []

    def get(key: int) -> list[int]:
        return traces.get([model], key, lambda: made.append(key) or [key])  # type: ignore[func-returns-value]

    for key in (0, 1, 2):
        get(key)
    for key in (3, 4):
        with pytest.raises(UnsettledError, match="the last 3 calls each asked for something else"):
            get(key)
    assert made == [0, 1, 2]
    get(4)
    get(4)
    get(5)
    assert made == [0, 1, 2, 4, 5]


def test_traces_go_with_their_model() -> None:
    traces: Traces[Trace] = Traces()
    head, encoder = Model(), Model()
    trace = weakref.ref(traces.get([encoder, head], "key", Trace))
    gc.collect()
    assert trace() is not None
    del head
    gc.collect()
    assert trace() is None
    assert traces.count([encoder]) == 0


def test_the_parts_are_part_of_the_key_and_their_order_is() -> None:
    traces: Traces[Trace] = Traces()
    one, two = Model(), Model()
    found = [traces.get(parts, "key", Trace) for parts in ([one], [two], [one, two], [two, one])]
    assert len(set(map(id, found))) == 4
    assert traces.get([one, two], "key", Trace) is found[2]


def test_what_cannot_be_made_is_not_kept() -> None:
    traces: Traces[Trace] = Traces()
    model = Model()

    def broken() -> Trace:
        raise RuntimeError("broken")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            traces.get([model], "key", broken)
    assert isinstance(traces.get([model], "key", Trace), Trace)
    with pytest.raises(TypeError):
        traces.get([3], "key", Trace)


def test_several_threads_at_once() -> None:
    traces: Traces[Trace] = Traces(limit=4)
    models = [Model() for _ in range(8)]
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for turn in range(300):
                traces.get([models[turn % 8]], turn // 8 % 6, Trace)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failed
    assert all(traces.count([model]) == 4 for model in models)


def test_a_backend_without_traces_says_so() -> None:
    model = Harness().build("mean", example_weights())
    with pytest.raises(embgrad.UnsupportedError, match="does not support 'compile'"):
        embgrad.gradients(model, example_batch(), embgrad.Logit(0), compile=True)


class Falling(reference.ReferenceBackend):
    supports = frozenset({*reference.ReferenceBackend.supports, "compile"})

    def run(self, model: Any, batch: Any, request: Any) -> Any:
        run = super().run(model, batch, request)
        return replace(run, uncompiled="the moon is full") if request.compiled else run


def test_one_warning_says_why_there_is_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = Harness().build("mean", example_weights()), example_batch()
    monkeypatch.setattr("embgrad.gradient.backend_for", lambda model: Falling())
    assert backend_named("reference").supports < Falling.supports
    plain = embgrad.gradients(model, batch, embgrad.Logit(0))
    assert "compiled" not in plain.provenance
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = embgrad.gradients(model, batch, embgrad.Logit(0), compile=True, batch_size=1, check=True)
    said = [one for one in caught if issubclass(one.category, embgrad.EmbgradWarning)]
    assert [str(one.message) for one in said] == ["compile=True: the moon is full; the model ran without a trace"]
    assert said[0].filename == __file__
    assert found.provenance["compiled"] is False
    np.testing.assert_array_equal(found.values, plain.values)
