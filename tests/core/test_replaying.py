"""Two runs of a request that call the user's functions once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embgrad.backend import NativeObjective, PointValues, Request, Run
from embgrad.replaying import Gave, Recorder, ReplayError, Tries

VALUE = np.arange(6.0).reshape(2, 3)

#: What follows what is apart.
APART = "of a trace of it differ from what it gives itself"


def unwatched(function: Any, tell: Any) -> Any:
    def watched(returned: Any) -> Any:
        tell((1,))
        return function(returned)

    return watched


def ran(gradient: Any, activation: Any = VALUE, before: Any = (), objective: Any = None) -> Run:
    return Run({"word": PointValues(activation, (gradient,), None, before)}, "float64", objective=objective)


def test_the_second_run_gets_what_the_first_got() -> None:
    called: list[Any] = []

    def change(value: Any) -> Any:
        called.append(value)
        return value + len(called)

    def respond(outputs: Any) -> Any:
        called.append(outputs)
        return [{None: outputs[None] * 2}]

    recorder = Recorder(Request(("word",), respond, (None,), edit={"word": change}, compiled=True), unwatched)
    first, second = recorder.recording(), recorder.replaying()
    assert first.compiled is second.compiled is False
    gave, answered = first.edit["word"](VALUE), first.respond({None: VALUE})  # type: ignore[operator]
    second = recorder.replaying()
    np.testing.assert_array_equal(second.edit["word"](VALUE * 9), gave)
    assert second.respond({None: VALUE * 9}) is answered  # type: ignore[operator]
    assert len(called) == 2
    assert recorder.apart(ran(VALUE), ran(VALUE), 1e-6) == f"the outputs {APART}"
    with pytest.raises(ReplayError, match="comes by the points otherwise"):
        second.edit["word"](VALUE)
    with pytest.raises(ReplayError, match="comes by the points otherwise"):
        recorder.replaying().edit["word"](VALUE[:1])
    with pytest.raises(ReplayError, match="outputs of other shapes"):
        recorder.replaying().respond({None: VALUE[:1]})  # type: ignore[operator]


def test_what_the_first_run_raises_comes_out() -> None:
    def stopped(_: Any) -> Any:
        raise KeyboardInterrupt

    recorder = Recorder(Request(("word",), stopped, edit={"word": stopped}), unwatched)
    for function in (recorder.recording().edit["word"], recorder.recording().respond):
        with pytest.raises(KeyboardInterrupt):
            function(VALUE)  # type: ignore[operator]


def test_a_native_objective_is_called_again() -> None:
    called: list[Any] = []
    recorder = Recorder(Request(("word",), NativeObjective(called.append, scalar=True)), unwatched)
    for request in (recorder.recording(), recorder.replaying()):
        request.respond.function("returned")  # type: ignore[union-attr]
    assert called == ["returned"] * 2
    assert recorder.used == (1,)


def test_a_function_is_called_once_in_several_tries() -> None:
    called: list[Any] = []

    def change(value: Any) -> Any:
        called.append(value.copy())
        value += len(called)  # as a function may that is given an array to write into
        return value

    tries = Tries(Request(("word",), lambda _: [], add={"word": change}))
    for _ in range(3):
        one = tries.next().add["word"]
        np.testing.assert_array_equal(one(VALUE.copy()), VALUE + 1)
        np.testing.assert_array_equal(one(VALUE.copy()), VALUE + 2)  # the point is come by again
        assert len(called) == 2
    one = tries.next().add["word"]
    np.testing.assert_array_equal(one(VALUE * (1 + 1e-12)), VALUE + 1)
    np.testing.assert_array_equal(one(VALUE * 1e-9), VALUE * 1e-9 + 3)  # another value, however small
    np.testing.assert_array_equal(one(VALUE[:1].copy()), VALUE[:1] + 4)
    assert len(called) == 4


def test_what_a_function_gave_is_kept_once_where_a_try_takes_several_itself() -> None:
    """As one does that a call makes with points found by few examples, of a trace that turns out not to serve."""
    called: list[Any] = []

    def change(value: Any) -> Any:
        called.append(value)
        return value + len(called)

    gave = Gave()
    for _ in range(2):
        tries = Tries(Request(("word",), lambda _: [], add={"word": gave.again(change)}))
        for _ in range(2):
            np.testing.assert_array_equal(tries.next().add["word"](VALUE), VALUE + 1)
    assert len(called) == len(gave.calls) == 1


@pytest.mark.parametrize("other", [1e3, np.nan, np.inf])
def test_one_entry_of_many_makes_another_value(other: float) -> None:
    """Wherever it is."""
    values = np.ones((300, 100))
    tries = Tries(Request(("word",), lambda _: [], add={"word": lambda value: value * 2}))
    np.testing.assert_array_equal(tries.next().add["word"](values), values * 2)
    for place in (1, 2, 6, 14_000, 29_999):
        changed = values.copy()
        changed.flat[place] = other
        np.testing.assert_array_equal(tries.next().add["word"](changed), changed * 2)


def test_large_values_are_not_kept() -> None:
    gave = Gave()
    gave.again(lambda value: value[:0])(np.ones((1000, 1000)))
    ((glimpse, _),) = gave.calls
    assert sum(one.nbytes for one in vars(glimpse).values() if isinstance(one, np.ndarray)) < 1 << 17


def test_what_a_try_raises_comes_out_and_is_not_remembered() -> None:
    raised = [KeyboardInterrupt]

    def change(value: Any) -> Any:
        if raised:
            raise raised.pop()
        return value

    tries = Tries(Request(("word",), lambda _: [], edit={"word": change}))
    with pytest.raises(KeyboardInterrupt):
        tries.next().edit["word"](VALUE)
    np.testing.assert_array_equal(tries.next().edit["word"](VALUE), VALUE)


def test_a_request_without_functions_is_the_same_in_each_try() -> None:
    request = Request(("word",), lambda _: [])
    assert Tries(request).next() is request


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
def test_what_is_apart(given: Run, said: str | None) -> None:
    recorder = Recorder(Request(("word",), lambda _: []), unwatched)
    assert recorder.apart(ran(VALUE), given, 1e-6) == (said and f"{said} {APART}")


def test_what_is_apart_with_an_objective_of_the_users() -> None:
    recorder = Recorder(Request(("word",), NativeObjective(lambda _: None, scalar=False)), unwatched)
    assert recorder.apart(ran(VALUE), ran(VALUE), 1e-6) is None
    said = recorder.apart(ran(VALUE), ran(VALUE * 2), 1e-6)
    assert said == f"the gradients at 'word' {APART}, or the objective gives something else each time"
