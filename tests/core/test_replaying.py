"""Two runs of a request that call the user's functions once, and what tells whether two functions do the same."""

from __future__ import annotations

import copy
import gc
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from embgrad.backend import NativeObjective, PointValues, Request, Run
from embgrad.identity import Same, code_of, identity_of
from embgrad.replaying import Recorder, ReplayError

VALUE = np.arange(6.0).reshape(2, 3)


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
    assert recorder.apart(ran(VALUE), ran(VALUE), 1e-6) == "the outputs of"
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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (ran(VALUE), None),
        (ran(VALUE * (1 + 1e-9)), None),
        (ran(VALUE * 1.001), "the gradients at 'word' of"),
        (ran(None), "the gradients at 'word' of"),
        (ran(VALUE[:1]), "the gradients at 'word' of"),
        (ran(np.where(VALUE == 1, np.nan, VALUE)), "the gradients at 'word' of"),
        (ran(VALUE, VALUE + 1), "the values at 'word' of"),
        (ran(VALUE, objective=np.ones(2)), "the objective's values of"),
    ],
)
def test_what_is_apart(given: Run, said: str | None) -> None:
    recorder = Recorder(Request(("word",), lambda _: []), unwatched)
    assert recorder.apart(ran(VALUE), given, 1e-6) == said


def test_functions_of_one_piece_of_python_around_the_same_are_the_same() -> None:
    class Held:
        def method(self) -> None: ...

        def __call__(self) -> None: ...

    one, other = Held(), Held()

    def made(held: Any) -> Any:
        return lambda inputs, option=2: (held, inputs, option)

    assert identity_of(made(one)) == identity_of(made(one))
    assert hash(identity_of(made(one))) == hash(identity_of(made(one)))
    assert identity_of(made(one)) != identity_of(made(other))
    assert identity_of(made(1)) != identity_of(made(True))
    assert identity_of(made(1)) != identity_of(made(2))
    assert identity_of(one.method) == identity_of(one.method) != identity_of(other.method)
    assert identity_of(one) == identity_of(one) != identity_of(other)
    assert code_of(made(1)) == code_of(made(2)) != code_of(one)


factor: Any = 1.0


def scaled(inputs: Any, again: bool = False) -> Any:
    return scaled(inputs) if again else factor * inputs


@pytest.mark.parametrize(
    ("one", "other"), [(1.0, 2.0), ([1, {"a": 2}], [1, {"a": 3}]), (np.arange(3), np.arange(3) + 1), (len, max)]
)
def test_functions_around_other_globals_are_not_the_same(monkeypatch: pytest.MonkeyPatch, one: Any, other: Any) -> None:
    functions = (scaled, lambda inputs: scaled(inputs), lambda inputs: [factor for _ in inputs])
    found = []
    for value in (one, copy.deepcopy(one), other):
        monkeypatch.setitem(globals(), "factor", value)
        found.append([identity_of(function) for function in functions])
    first, same, apart = found
    assert first == same
    assert list(map(hash, first)) == list(map(hash, same))
    assert not any(map(operator.eq, first, apart))


def test_functions_around_what_was_changed_in_place_are_not_the_same() -> None:
    array, entries = np.zeros(3), [1.0]
    entries.append(entries)  # type: ignore[arg-type]

    def function(inputs: Any) -> Any:
        return array * entries[0] * inputs

    before = identity_of(function)
    assert identity_of(function) == before
    array[0] = 1
    assert identity_of(function) != before
    array[0], entries[0] = 0, 2.0
    assert identity_of(function) != before
    entries[0] = 1.0
    assert identity_of(function) == before


def test_a_function_is_another_once_what_it_reads_is() -> None:
    array, listed, named = np.ones(3), [1.0], {"one": {"two": 2.0}}

    def set_factor(by: float) -> None:
        nonlocal factor
        factor = by

    factor = 1.0

    def helper(value: Any) -> Any:
        return value * factor

    def call(model: Any, inputs: Any, *, device: Any = range(3)) -> Any:
        return [helper(one) * array * listed[0] * named["one"]["two"] * SCALE for one in inputs[: GLOBAL["length"]]]

    changes: list[Callable[[], Any]] = [
        lambda: array.__setitem__(1, 4.0),
        lambda: listed.__setitem__(0, 4.0),
        lambda: named["one"].__setitem__("two", 4.0),
        lambda: set_factor(4.0),
        lambda: GLOBAL.__setitem__("length", 4),
        lambda: globals().__setitem__("SCALE", 4.0),
    ]
    for change in changes:
        before = identity_of(call)
        assert identity_of(call) == before
        assert hash(identity_of(call)) == hash(before)
        change()
        assert identity_of(call) != before


#: What a function above reads.
SCALE, GLOBAL = 1.0, {"length": 2}


def test_what_a_plain_object_holds_counts_and_what_a_model_holds_does_not() -> None:
    class Scale:
        def __init__(self) -> None:
            self.by, self.whole = 1.0, self

        def call(self, inputs: Any) -> Any:
            return inputs * self.by

    class Model(Scale):
        def __call__(self, inputs: Any) -> Any:
            return self.call(inputs)

    for kind in (Scale, Model):
        held = kind()
        functions = (held.call, lambda inputs, held=held: held.call(inputs))
        for function in functions:
            before = identity_of(function)
            assert identity_of(function) == before
            held.by += 1
            assert (identity_of(function) == before) is (kind is Model)


def test_a_function_that_reads_itself_has_an_identity() -> None:
    around: list[Any] = []

    def call(value: Any) -> Any:
        return call(around) if value else around

    around.append(around)
    assert identity_of(call) == identity_of(call)


def test_what_stands_for_an_object_does_not_keep_it() -> None:
    class Held: ...

    held = Held()
    same = Same(held)
    assert same == Same(held)
    del held
    gc.collect()
    assert same != same
    assert Same(3) != Same(3)
