"""The table of public calls holds all that touch a model, and what looks for traces finds them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad.testing import faults
from embgrad.testing.calls import CALLS, OF_OTHER_MODELS, WITHOUT_A_MODEL, Asked, PublicCall
from embgrad.testing.examples import example_batch, example_weights
from embgrad.testing.leaving import Trial
from embgrad.testing.snapshot import Same, different
from tests.contract.conformance.harness_reference import Harness

#: The methods of public classes that take a model, and the function in whose calls they are. A backend's are called by all.
METHODS: Final = {"Golden.check": "golden"}


PUBLIC = {
    name: getattr(space, name)
    for space in (embgrad, embgrad.methods, embgrad.metrics, embgrad.tables, embgrad.results, embgrad.zoo)
    for name in space.__all__
}
FUNCTIONS = {name: thing for name, thing in PUBLIC.items() if inspect.isfunction(thing)}


def takes_a_model(function: Callable[..., Any]) -> bool:
    """Return whether one of its parameters is a model, or models."""
    return any(name.startswith("model") for name in inspect.signature(function).parameters)


def test_every_public_function_has_a_call_or_takes_no_model() -> None:
    called = {call.function for call in CALLS.values()} | OF_OTHER_MODELS
    assert FUNCTIONS.keys() == (called | WITHOUT_A_MODEL)
    assert not called & WITHOUT_A_MODEL
    assert [name for name, function in FUNCTIONS.items() if takes_a_model(function) and name not in called] == []


def test_every_public_method_that_takes_a_model_is_called() -> None:
    actual = {
        f"{name}.{method}"
        for name, kind in PUBLIC.items()
        if inspect.isclass(kind)
        for method, function in inspect.getmembers(kind, inspect.isfunction)
        if takes_a_model(function)
    }
    assert actual == METHODS.keys()
    assert {call.function for call in CALLS.values()} >= set(METHODS.values())


def test_every_option_of_gradients_has_a_call() -> None:
    given: set[str] = set()

    class Noting(Asked):
        def gradients(self, **options: Any) -> Any:
            given.update(options)

    harness = Harness()
    noting = Noting(None, example_batch(), np.array([2, 0, 1]), harness.logit(1), harness.step)
    for call in CALLS.values():
        if call.function == "gradients":
            call.make(noting)
    options = {*inspect.signature(embgrad.gradients).parameters} - {"model", "batch", "tokenizer", "max_length", "pads"}
    assert given == options


def trial() -> Trial:
    harness = Harness()
    model = harness.build("interrupted", example_weights())
    asked = Asked(model, example_batch(), np.array([2, 0, 1]), harness.logit(1), harness.step)
    return Trial(asked, partial(harness.state, model), harness)


def call(make: Callable[[Asked], Any], *passes: str) -> PublicCall:
    return PublicCall("gradients", make, frozenset(passes))


def test_a_call_without_side_effects_has_no_findings() -> None:
    assert trial().traces(call(Asked.gradients, "forward", "backward", "objective")) == []


def leaves_it_on_an_error(asked: Asked) -> None:
    try:
        asked.gradients()
    except BaseException:
        asked.model.training = True
        raise


def leaves_it_when_interrupted(asked: Asked) -> None:
    try:
        asked.gradients()
    except KeyboardInterrupt:
        asked.model.training = True
        raise


def swallows_the_interruption(asked: Asked) -> None:
    try:
        asked.gradients()
    except KeyboardInterrupt:
        return


def raises_another(asked: Asked) -> None:
    try:
        asked.gradients()
    except faults.UserError as error:
        raise faults.UserError("another") from error


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda asked: setattr(asked.model, "note", 1), "success: not restored: /model/attributes/note is new"),
        (leaves_it_on_an_error, "UserError at 'backward' after 0 time(s): not restored: /model/training False is"),
        (leaves_it_when_interrupted, "KeyboardInterrupt at 'backward' after 0 time(s): not restored: /model/tr"),
        (swallows_the_interruption, "KeyboardInterrupt at 'forward' after 0 time(s): AssertionError: nothing was"),
        (raises_another, "UserError at 'objective' after 0 time(s): UserError: another"),
        (lambda asked: np.random.random(), "success: not restored: random numbers/of NumPy"),
        (lambda asked: asked.labels.put(0, 1), "success: not restored: /arguments/2/2"),
        (lambda asked: os.environ.update(EMBGRAD_LEFT="1"), "success: not restored: /environment/EMBGRAD_LEFT is new"),
        (lambda asked: None, "success: it does not reach 'backward'"),
    ],
)
def test_each_side_effect_is_reported(make: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EMBGRAD_LEFT", raising=False)
    actual = trial().traces(call(make, "backward"))
    monkeypatch.delenv("EMBGRAD_LEFT", raising=False)
    assert any(line.startswith(said) for line in actual), actual


def test_an_object_in_a_state_is_equal_to_itself_alone() -> None:
    item = [1]
    assert different("", {"a": Same(item)}, {"a": Same(item)}) == {}
    assert list(different("", {"a": [Same(item)]}, {"a": [Same([1])]})) == ["/a/0"]
    assert len({Same(item), Same(item)}) == 1
