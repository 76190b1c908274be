"""Calls of `compare` and `bisect` on the same model in two frameworks, with the same weights or with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import embgrad
from tests.fuzz.calls_gradients import Problem, drawn_problem
from tests.fuzz.cases import REFUSAL, Case, expect, expect_equal
from tests.fuzz.drawing import Draw
from tests.fuzz.nonsense import nonsense
from tests.fuzz.worlds import World, drawn_world

ARCHITECTURES = ("mean", "hidden", "masked", "layers", "repeated", "scaled", "flat", "time_major", "named")


def _pair(draw: Draw, framework: str, changed: bool, architectures: tuple[str, ...]) -> tuple[Problem, World]:
    """Return a problem, and a model of the reference with the same weights or with another head."""
    problem = drawn_problem(draw, framework, architectures, native=False)
    if problem.world.dtype in ("float16", "bfloat16"):
        problem = drawn_problem(draw, framework, architectures, native=False, exact=True)
    other = drawn_world(draw, "reference", like=problem.world)
    other.disturbed = False
    if changed:
        name = draw.choice(["W1", "W"] if "W1" in _used(problem.world.architecture) else ["W"])
        other.weights = {**other.weights, name: other.weights[name] * 1.5 + 0.3}
    other.model = other.built()
    return problem, other


def _used(architecture: str) -> tuple[str, ...]:
    uses = {"named": ("W1",), **dict.fromkeys(("hidden", "layers", "repeated"), ("W1", "W"))}
    return uses.get(architecture, ("W",))


def compare(draw: Draw, framework: str) -> Case:
    if draw.chance(0.3):
        return _broken_compare(draw, framework)
    changed = draw.chance(0.4)
    problem, other = _pair(draw, framework, changed, tuple(name for name in ARCHITECTURES if name != "named"))
    models = (problem.world.model, other.model) if draw.chance(0.3) else None

    def run() -> Any:
        a, b = (
            embgrad.gradients(world.model, problem.batch.argument, problem.objective.argument)
            for world in (problem.world, other)
        )
        return a, b, embgrad.compare(a, b, models=models)

    def judge(actual: Any) -> None:
        a, b, comparison = actual
        apart = np.linalg.norm((a.values - b.values).astype(np.float64)) / max(np.linalg.norm(a.values), 1e-300)
        if not changed:
            expect(comparison.agrees or _cancels(a), f"the same weights do not agree: {comparison!r}")
        expect_equal(comparison.agrees, bool(comparison.figures.relative_l2 <= comparison.tolerance), "agrees")
        if a.values.any():
            expect(
                abs(comparison.figures.relative_l2 - apart) <= 1e-9 + 1e-6 * apart,
                f"relative L2 is {apart}: {comparison!r}",
            )
        if comparison.agrees:
            expect_equal(comparison.findings, (), "the findings of what agrees")
        for finding in comparison.findings:
            expect(str(finding).strip(), "a finding without words")
        comparison.to_dict()

    worlds = [problem.world, other]
    text = f"{problem.text}\nagainst: {other}\nchanged weights: {changed}, models given: {models is not None}"
    return Case("compare", text, run, judge, (), worlds, problem.arguments, warns=True, framework=framework)


def _cancels(a: Any) -> bool:
    """Return whether the values are mostly rounding errors, as for a cross-entropy that is nearly 0."""
    return bool(np.abs(a.values).max() < 1e-4)


def _broken_compare(draw: Draw, framework: str) -> Case:
    problem = drawn_problem(draw, "reference", ("mean",), native=False)
    a = embgrad.gradients(problem.world.model, problem.batch.token_batch.ids, embgrad.Sum())
    wider = (len(a.ids), a.ids.shape[1] + 1)  # of the same shape they are compared as they lie
    others = {"ids": np.full(wider, 999), "values": np.zeros((*wider, a.values.shape[2]))}
    kinds: dict[str, Callable[[], Any]] = {
        "nonsense": lambda: embgrad.compare(a, _no_path(nonsense(draw))),
        "nonsense first": lambda: embgrad.compare(_no_path(nonsense(draw)), a),
        "None": lambda: embgrad.compare(None, a),
        "other names": lambda: embgrad.compare({"word": a}, {"wrod": a}),
        "one and several": lambda: embgrad.compare(a, {"word": a}),
        "nothing": lambda: embgrad.compare({}, {}),
        "not finite": lambda: embgrad.compare(a, _with(a, values=a.values * np.nan)),
        "a tolerance": lambda: embgrad.compare(
            a, a, tolerance=draw.choice([-1, float("nan"), "1", float("inf"), [1], 1j])
        ),
        "models": lambda: embgrad.compare(a, a, models=draw.choice([3, (1,), "ab", [a] * 3])),
        "no models": lambda: embgrad.compare(a, _with(a, values=a.values * 2 + 1), models=(nonsense(draw), None)),
        "a call": lambda: embgrad.compare(a, a, call=draw.choice([3, "call", (3, None), [None]])),
        "other texts": lambda: embgrad.compare(a, _with(a, **others, activations=others["values"])),
    }
    kind = draw.choice(list(kinds))
    return Case(
        "compare", f"{problem.text}\nbroken: {kind}", kinds[kind], None, REFUSAL, warns=True, framework="reference"
    )


def _no_path(value: Any) -> Any:
    """Return the value unless it may be a path, since a missing file is another error."""
    return 3 if isinstance(value, str) else value


def _with(result: Any, **changes: Any) -> Any:
    return embgrad.results.EmbeddingGradients(**{**vars(result), **changes})


def bisect(draw: Draw, framework: str) -> Case:
    changed = draw.chance(0.5)
    problem, other = _pair(draw, framework, changed, ("hidden", "layers", "masked", "mean"))
    options: dict[str, Any] = {}
    broken = draw.chance(0.2)
    if broken:
        options = draw.choice(
            [{"tolerance": draw.choice([-1, "x", float("nan"), []])}, {"call_a": 3}, {"call_b": []}, {"progress": "x"}]
        )

    def run() -> Any:
        return embgrad.bisect(
            problem.world.model, other.model, problem.batch.argument, problem.objective.argument, **options
        )

    def judge(actual: embgrad.results.Bisection) -> None:
        if not changed:
            expect(actual.agrees, f"the same weights part at {actual.first!r}:\n{actual!r}")
        expect(actual.text.strip(), "nothing is said")
        expect_equal(actual.agrees, actual.first is None, "agrees")
        if (
            changed
            and problem.world.dtype == "float64"
            and problem.world.dim > 1
            and problem.world.classes > 1
            and _diverge(problem, other)
        ):
            expect(not actual.agrees, f"other weights do not part:\n{actual!r}")
            expect(actual.direction in ("forward", "backward"), f"direction is {actual.direction!r}")
        actual.to_dict()

    text = f"{problem.text}\nagainst: {other}\nchanged weights: {changed}\noptions: {options}"
    worlds = [problem.world, other]
    refused = REFUSAL if broken else ()
    return Case(
        "bisect",
        text,
        run,
        None if broken else judge,
        refused,
        worlds,
        problem.arguments,
        warns=True,
        framework=framework,
    )


def _diverge(problem: Problem, other: World) -> bool:
    """Return whether the oracle's objective or gradient differs by more than rounding."""
    question = type(problem.question)(**{**vars(problem.question), "weights": other.weights})
    mine, theirs = problem.oracle, type(problem.oracle)(question)
    pairs = [(mine.values(), theirs.values()), (mine.at("word").summed, theirs.at("word").summed)]
    return any(np.abs(a - b).max() > 1e-3 for a, b in pairs)
