"""Where a graph's gradient is not finite the model itself is asked, with what the user's functions gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embgrad.backend import Backend, PointValues, Request, Run
from embgrad.batch import TokenBatch
from embgrad.finite import run_finite

BATCH = TokenBatch([[1, 2, 3]])
FINITE, INFINITE = np.ones((1, 3, 2)), np.full((1, 3, 2), np.inf)


class Overflowing:
    """A backend whose graph overflows: to provoke that without a framework."""

    def __init__(self, graph: Any, model: Any) -> None:
        self.gives = {True: graph, False: model}
        self.asked: list[Request] = []

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        self.asked.append(request)
        activation = request.add["word"](np.zeros((1, 3, 2))) if request.add else np.zeros((1, 3, 2))
        traced = request.compiled is not False
        return Run({"word": PointValues(activation, (None, self.gives[traced]), None)}, "float64", traced=traced)


def answered(backend: Overflowing, **asked: Any) -> Run:
    given: Any = backend  # of a backend's methods it needs one
    ready: Backend = given
    return run_finite(ready, object(), BATCH, Request(("word",), lambda outputs: [], **asked))


@pytest.mark.parametrize("compiled", [None, True])
def test_the_model_tells_where_its_graph_overflows(compiled: bool | None) -> None:
    called: list[None] = []

    def add(value: np.ndarray) -> np.ndarray:
        called.append(None)
        return value + len(called)

    backend = Overflowing(INFINITE, FINITE)
    found = answered(backend, compiled=compiled, add={"word": add})
    assert [one.compiled for one in backend.asked] == [compiled, False]
    assert found.points["word"].gradients == (None, FINITE)
    assert found.uncompiled == ("its graph's gradient is not finite" if compiled else None)
    assert len(called) == 1
    assert (found.points["word"].activation == 1).all()


def test_what_overflows_in_the_model_too_is_given_as_it_is() -> None:
    backend = Overflowing(INFINITE, INFINITE)
    assert answered(backend, compiled=True).points["word"].gradients == (None, INFINITE)
    assert len(backend.asked) == 2


@pytest.mark.parametrize("asked", [{}, {"compiled": False}, {"training": True}])
def test_the_model_is_run_once(asked: dict[str, Any]) -> None:
    """Where its graph is finite, there is none, or each run would draw other numbers."""
    backend = Overflowing(FINITE if not asked else INFINITE, INFINITE)
    answered(backend, **asked)
    assert len(backend.asked) == 1
