"""The comparison of a new trace with the model itself, which calls the user's functions once for both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embgrad.backend import NativeObjective, PointValues, Request, Run
from embgrad.backend.trace_check import Trial, UntraceableError

VALUE = np.arange(6.0).reshape(2, 3)

#: What follows what is apart.
APART = "differ between a trace and the model itself"


def unwatched(function: Any, tell: Any) -> Any:
    def watched(returned: Any) -> Any:
        tell((1,))
        return function(returned)

    return watched


def ran(gradient: Any, activation: Any = VALUE, before: Any = (), objective: Any = None) -> Run:
    return Run({"word": PointValues(activation, (gradient,), None, before)}, "float64", objective=objective)


def test_the_second_run_replays_the_callbacks_of_the_first() -> None:
    called: list[Any] = []

    def change(value: Any) -> Any:
        called.append(value)
        return value + len(called)

    def respond(outputs: Any) -> Any:
        called.append(outputs)
        return [{None: outputs[None] * 2}]

    trial = Trial(Request(("word",), respond, (None,), edit={"word": change}, compiled=True), unwatched)
    first, second = trial.first(), trial.second()
    assert first.compiled is second.compiled is False
    returned, answered = first.edit["word"](VALUE), first.respond({None: VALUE})
    second = trial.second()
    np.testing.assert_array_equal(second.edit["word"](VALUE * 9), returned)
    assert second.respond({None: VALUE * 9}) is answered
    assert len(called) == 2
    assert trial.difference(ran(VALUE), ran(VALUE), 1e-6) == f"the outputs {APART}"
    with pytest.raises(UntraceableError, match="reaches the points differently"):
        second.edit["word"](VALUE)
    with pytest.raises(UntraceableError, match="reaches the points differently"):
        trial.second().edit["word"](VALUE[:1])
    with pytest.raises(UntraceableError, match="outputs of other shapes"):
        trial.second().respond({None: VALUE[:1]})


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
    trial = Trial(Request(("word",), lambda _: []), unwatched)
    assert trial.difference(ran(VALUE), given, 1e-6) == (said and f"{said} {APART}")


def test_differences_with_a_native_objective_are_described() -> None:
    trial = Trial(Request(("word",), NativeObjective(lambda _: None, scalar=False)), unwatched)
    assert trial.difference(ran(VALUE), ran(VALUE), 1e-6) is None
    said = trial.difference(ran(VALUE), ran(VALUE * 2), 1e-6)
    assert said == f"the gradients at 'word' {APART}, or the objective gives different results each time"
