"""A short run of the fuzzer in every framework under test, and failures that it must detect."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend.registry import backend_named
from tests.conftest import REFERENCE, backends_under_test
from tests.fuzz import calls_gradients, calls_kinds
from tests.fuzz.cases import Case
from tests.fuzz.drawing import Draw
from tests.fuzz.oracle import Changes, Oracle, Question
from tests.fuzz.registry import drawn_case, framework_of
from tests.fuzz.running import numbers, run
from tests.fuzz.summary import summary
from tests.fuzz.verdicts import Verdict, verdict_of
from tests.support.sampling import slow

#: Marks tests of the fuzzer itself, for which one backend suffices.
of_the_fuzzer = pytest.mark.framework(REFERENCE)

SEED = 20


#: Fewer where each new shape is compiled.
CALLS = {"jax": 25, "tensorflow": 30}


@pytest.mark.parametrize(
    ("framework", "calls"),
    [each for name in backends_under_test() for each in ((name, CALLS.get(name, 60)), slow((name, 1000)))],
)
def test_a_short_run(framework: str, calls: int) -> None:
    said: list[str] = []
    tally = run(SEED, numbers(SEED, calls, [framework]), said.append)
    assert tally.calls == calls
    assert not tally.failed, "\n".join(said)
    right = sum(count for key, count in tally.verdicts.items() if key[2] == "right")
    refused = sum(count for key, count in tally.verdicts.items() if key[2] == "refused")
    assert right > 0.3 * calls
    assert refused > 0.1 * calls
    assert f"{calls} calls, 0 failed" in summary(tally)


@of_the_fuzzer
def test_a_call_follows_from_the_seed_and_its_number_alone() -> None:
    chosen = list(numbers(SEED, 5, ["reference"]))
    assert chosen == list(itertools.islice((n for n in itertools.count() if framework_of(SEED, n) == "reference"), 5))
    for number in chosen:
        first, second = drawn_case(SEED, number), drawn_case(SEED, number)
        assert (first.function, first.framework) == (second.function, second.framework)
        assert verdict_of(first, seed=number) == verdict_of(second, seed=number)
        assert _without_addresses(first.text) == _without_addresses(second.text)


@of_the_fuzzer
def test_each_kind_of_model_is_drawn_and_none_is_wrong() -> None:
    cases = [calls_kinds.kinds(Draw(SEED, number), "reference") for number in range(40)]
    assert {case.text.partition(":")[0] for case in cases} == {
        *("positions reversed", "examples reversed, and back", "padded inside", "two texts"),
        *("scores of positions", "occluded", "lengths"),
    }
    assert "failed" not in {verdict_of(case, seed=number).kind for number, case in enumerate(cases)}


@of_the_fuzzer
def test_a_framework_of_no_call_is_refused() -> None:
    """The search for its calls would not end."""
    with pytest.raises(ValueError, match="no call is of gloun: the frameworks are reference, torch"):
        next(numbers(SEED, 1, ["gloun"]))


def _without_addresses(text: str) -> list[str]:
    return [word for word in text.split() if "0x" not in word]


@of_the_fuzzer
def test_the_oracle_agrees_with_finite_differences() -> None:
    random = np.random.default_rng(0)
    sizes = {"E": (8, 3), "E2": (8, 3), "W": (3, 2), "b": (2,), "W1": (3, 3), "b1": (3,)}
    weights = {name: random.normal(size=shape) for name, shape in sizes.items()}
    ids, cotangent = random.integers(0, 8, (2, 3)), random.normal(size=(2, 2))
    question = Question("layers", weights, ids, None, lambda outputs: (outputs["logits"] * cotangent).sum(-1))
    actual = Oracle(question).at("layer.0")

    def values(step: np.ndarray) -> np.ndarray:
        return Oracle(replace(question, changes=Changes(add={"layer.0": step}))).values()

    for index in np.ndindex(*actual.value.shape):
        step = np.zeros(actual.value.shape)
        step[index] = 1e-5
        assert (values(step) - values(-step)) / 2e-5 == pytest.approx(
            actual.each[(slice(None), *index)], rel=1e-7, abs=1e-9
        )


def _case(framework: str) -> Case:
    """Return a valid call of `gradients` at `word` without options."""
    for number in itertools.count():
        problem = calls_gradients.drawn_problem(Draw(SEED, number), framework, ("hidden",), exact=True)
        if not problem.objective.scalar and not problem.world.disturbed and len(problem.batch.token_batch) > 1:
            return calls_gradients.plain(problem)
    raise AssertionError


def _failed(case: Case) -> str:
    verdict = verdict_of(case, seed=1)
    assert verdict.kind == "failed"
    return verdict.said


@pytest.fixture(params=backends_under_test())
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_right_call_is_right(framework: str) -> None:
    assert verdict_of(_case(framework), seed=1) == Verdict("right", warned=verdict_of(_case(framework), seed=1).warned)


def test_a_wrong_number_is_a_failure(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = type(backend_named(framework))
    genuine = backend.run

    def off(self: Any, *args: Any, **options: Any) -> Any:
        actual = genuine(self, *args, **options)
        shifted = {
            name: replace(point, gradients=[g if g is None else g * (1 + 1e-3) for g in point.gradients])
            for name, point in actual.points.items()
        }
        return replace(actual, points=shifted)

    monkeypatch.setattr(backend, "run", off)
    assert "values at 'word' is" in _failed(_case(framework))


def _hook(model: Any, framework: str) -> None:
    if framework in ("torch", "gluon"):
        model.register_forward_hook(lambda *_: None)
    else:
        model.note = "mine"  # the others have no hooks


@pytest.mark.parametrize(
    "state",
    ["hook", *(pytest.param(one, marks=of_the_fuzzer) for one in ("argument", "random", "environment", "settings"))],
)
def test_state_that_is_not_restored_is_a_failure(framework: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = _case(framework)
    (world,) = case.worlds
    leave: dict[str, Callable[[], Any]] = {
        "hook": lambda: _hook(world.model, framework),
        "argument": lambda: case.arguments[0].append(3),
        "random": lambda: np.random.random(),
        "environment": lambda: monkeypatch.setenv("EMBGRAD_LEFT_BEHIND", "1"),
        "settings": lambda: np.seterr(all="raise"),
    }
    case.arguments = [[1, 2], *case.arguments]
    genuine, errors = case.run, np.geterr()

    def leaving() -> Any:
        actual = genuine()
        leave[state]()
        return actual

    case.run = leaving
    try:
        assert "left behind" in _failed(case)
    finally:
        np.seterr(**errors)


def _raising(error: BaseException) -> Callable[[], Any]:
    def run() -> Any:
        raise error

    return run


@of_the_fuzzer
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("from inside"), "ValueError: from inside"),
        (KeyError("x"), "KeyError"),
        (embgrad.errors.BatchError("a refusal of what is right"), "expected a result"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_an_unexpected_error_is_a_failure(error: BaseException, said: str) -> None:
    assert said in _failed(replace(_case("reference"), run=_raising(error)))


@of_the_fuzzer
def test_a_refusal_without_a_message_is_a_failure() -> None:
    case = replace(_case("reference"), judge=None, refused=(embgrad.EmbgradError,))
    assert "that says nothing" in _failed(replace(case, run=_raising(embgrad.errors.BatchError(" "))))
    assert verdict_of(replace(case, run=_raising(embgrad.errors.BatchError("no"))), seed=1).kind == "refused"


@of_the_fuzzer
def test_a_result_of_a_broken_call_is_a_failure() -> None:
    assert "expected a refusal" in _failed(replace(_case("reference"), judge=None, refused=(embgrad.EmbgradError,)))


@of_the_fuzzer
@pytest.mark.parametrize(
    ("kind", "said"), [(RuntimeWarning, "a warning of another kind"), (embgrad.EmbgradWarning, "that is not expected")]
)
def test_a_warning_that_is_not_expected_is_a_failure(kind: type[Warning], said: str) -> None:
    case = _case("reference")
    genuine = case.run

    def warning() -> Any:
        warnings.warn("mind", kind, stacklevel=2)
        return genuine()

    assert said in _failed(replace(case, run=warning, warns=False))


@of_the_fuzzer
def test_a_result_that_shares_memory_is_a_failure() -> None:
    case = _case("reference")
    (world,) = case.worlds
    genuine = case.run

    def sharing() -> Any:
        return replace(genuine(), before=world.model["E"].value)

    assert "shares memory" in _failed(replace(case, run=sharing, judge=lambda actual: None))


@of_the_fuzzer
def test_a_call_that_cannot_be_drawn_is_a_failure() -> None:
    said: list[str] = []

    def broken(seed: int, number: int) -> Case:
        raise IndexError("nothing to draw from")

    assert run(SEED, iter([3]), said.append, broken).failed == [3]
    assert "could not be drawn" in said[0]
    assert "IndexError: nothing to draw from" in said[0]


@of_the_fuzzer
def test_a_failure_says_how_to_repeat_it() -> None:
    said: list[str] = []

    def broken(seed: int, number: int) -> Case:
        return replace(_case("reference"), run=_raising(ValueError("inside")))

    tally = run(SEED, iter([7]), said.append, broken)
    assert tally.failed == [7]
    assert f"python -m tests.fuzz --seed {SEED} --only 7" in said[0]
    assert "model: reference's harness" in said[0]
    assert "1 calls, 1 failed: [7]" in summary(tally)
