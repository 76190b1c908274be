"""Calls of `table_gradients`, `padding_report` and `parameter_gradients`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np

import embgrad
from tests.fuzz.calls_broken import broken_gradients
from tests.fuzz.calls_gradients import Problem, drawn_problem
from tests.fuzz.cases import REFUSAL, Case, expect, expect_close, expect_equal
from tests.fuzz.drawing import Draw
from tests.fuzz.nonsense import nonsense
from tests.fuzz.surroundings import surrounded
from tests.fuzz.worlds import FLOOR

#: The weights of each architecture that the harnesses can name.
USED: Final[Mapping[str, tuple[str, ...]]] = {
    "mean": ("E", "W", "b"),
    "hidden": ("E", "W1", "b1", "W", "b"),
    "masked": ("E", "W", "b"),
    "positions": ("E", "W1", "b1", "W", "b"),
    "named": ("E", "W1", "b1"),
    "twice": ("E", "W", "b"),
    "two_tables": ("E", "E2", "W", "b"),
    "mixing": ("E", "W", "b"),
    "tied": ("E", "W1", "b1"),
    "positional": ("E", "E2", "W", "b"),
}


def _around(draw: Draw, problem: Problem, call: Any, *args: Any, **options: Any) -> tuple[str, Any]:
    """Return a text, and the call inside one of the framework's contexts."""
    inside, around = surrounded(draw, problem.world.framework)

    def run() -> Any:
        with around():
            return call(problem.world.model, problem.batch.argument, problem.objective.argument, *args, **options)

    return f"{problem.text}\noptions: {options}\ninside: {inside}", run


def table_gradients(draw: Draw, framework: str) -> Case:
    problem = drawn_problem(draw, framework, tuple(USED))
    at = {"two_tables": draw.choice(["word#0", "word#1"]), "twice": draw.choice(["word", "word#0", "word#1"])}
    options = {"at": at[problem.world.architecture]} if problem.world.architecture in at else {}
    text, run = _around(draw, problem, embgrad.tables.table_gradients, **options)
    table = "E2" if options.get("at") == "word#1" and problem.world.architecture == "two_tables" else "E"
    points = ("word#0", "word#1") if problem.world.architecture == "twice" else (options.get("at", "word"),)
    tolerance = 4 * problem.world.tolerance

    def judge(actual: embgrad.results.TableGradients) -> None:
        total, lookup = problem.oracle.of(table).summed, _scattered(problem, points)
        scale = max(float(np.abs(total).max()), float(np.abs(lookup).max()), FLOOR)
        expect_close(actual.lookup, lookup, tolerance, "lookup", scale)
        expect_close(actual.head, total - lookup, tolerance, "head", scale)
        expect_close(actual.total, total, tolerance, "total", scale)
        expect_equal(actual.lookups, len(points), "lookups")
        if actual.own is not None:
            expect_close(actual.own, total, tolerance, "own", scale)
        else:
            expect(problem.world.frozen or framework == "reference", "own is None, and the table is trainable")
        if problem.world.architecture != "tied":
            expect(not actual.head.any(), "head is not zero, and nothing shares the table")

    return _case("table_gradients", problem, text, run, judge)


def _scattered(problem: Problem, points: tuple[str, ...]) -> np.ndarray:
    dense = np.zeros_like(problem.world.weights["E"])
    for point in points:
        np.add.at(dense, problem.batch.token_batch.ids, problem.oracle.at(point).summed)
    return dense


def _case(function: str, problem: Problem, text: str, run: Any, judge: Any, refused: tuple[type, ...] = ()) -> Case:
    return Case(
        function,
        text,
        run,
        judge,
        refused,
        [problem.world],
        problem.arguments,
        warns=problem.warns,
        framework=problem.world.framework,
    )


def padding_report(draw: Draw, framework: str) -> Case:
    problem = drawn_problem(
        draw, framework, ("masked", "mean", "positions", "tied", "hidden"), mask=True, native=False, pad=True
    )
    text, run = _around(draw, problem, embgrad.metrics.padding_report)
    batch = problem.batch.token_batch
    pads = ~batch.real
    rows = np.unique(batch.ids[pads])
    if len(rows) > 1:  # the row is ambiguous
        return _case("padding_report", problem, text, run, None, REFUSAL)

    def judge(actual: embgrad.results.PaddingReport) -> None:
        right, tolerance = problem.oracle.at("word").summed, 4 * problem.world.tolerance
        here = batch.ids == rows[0]
        scale = max(float(np.abs(right).max()), FLOOR)
        total = problem.oracle.of("E").summed - _scattered(problem, ("word",))
        figures = {
            "row_norm": np.linalg.norm(problem.world.weights["E"][rows[0]]),
            "at_pads": np.linalg.norm(right[here & pads].sum(0)),
            "at_real": np.linalg.norm(right[here & ~pads].sum(0)),
            "head": np.linalg.norm(total[rows[0]]),
            "pad_leak": np.abs(right[pads]).max(),
        }
        for name, figure in figures.items():
            expect_close(getattr(actual, name), figure, tolerance, name, 4 * scale)
        expect_equal(
            (actual.pad_id, actual.pads, actual.positions), (int(rows[0]), int(pads.sum()), pads.size), "counts"
        )
        expect_equal(actual.mask_taken, problem.world.architecture == "masked", "mask_taken")
        expect(str(actual).strip(), "its text is empty")

    return _case("padding_report", problem, text, run, judge)


def parameter_gradients(draw: Draw, framework: str) -> Case:
    problem = drawn_problem(draw, framework, tuple(USED))
    text, run = _around(draw, problem, embgrad.tables.parameter_gradients)
    if problem.world.frozen and framework != "reference":  # the reference trains nothing, so that nothing can be frozen
        return _case("parameter_gradients", problem, text, run, None, REFUSAL)

    def judge(actual: embgrad.results.ParameterGradients) -> None:
        oracle, names = problem.oracle, _names(problem, actual)
        for weight, (name, transposed) in names.items():
            right = oracle.of(weight).summed
            value = actual[name].T if transposed else actual[name]
            expect_close(value, right, 4 * problem.world.tolerance, f"the gradient of {weight}", 4 * FLOOR)
            expect(name not in actual.unreached, f"{name} is unreached")
        for name in actual.unreached:
            expect(not actual[name].any(), f"{name} is unreached, and not zero")
        total = oracle.values()
        expect_close(
            actual.objective,
            total.sum() if problem.objective.scalar else total,
            problem.world.tolerance,
            "objective",
            1.0,
        )

    return _case("parameter_gradients", problem, text, run, judge)


#: The layer and attribute of each weight in TensorFlow; Keras 2 gives several weights the same name.
VARIABLES: Final = {
    "E": ("table", "embeddings"),
    "E2": ("second", "embeddings"),
    "W": ("outer", "kernel"),
    "b": ("outer", "bias"),
    "W1": ("inner", "kernel"),
    "b1": ("inner", "bias"),
}


def _names(problem: Problem, actual: embgrad.results.ParameterGradients) -> dict[str, tuple[str, bool]]:
    """Return for each weight its name among the gradients, and whether it is stored transposed."""
    model, used = problem.world.model, USED[problem.world.architecture]
    if problem.world.framework != "tensorflow":
        return {name: problem.world.harness.parameter(model, name) for name in used}
    variables = {id(variable): name for name, variable in zip(actual, model.trainable_variables, strict=True)}
    places = {name: VARIABLES[name] for name in used}
    return {
        name: (variables[id(getattr(model.get_layer(layer), kind))], False) for name, (layer, kind) in places.items()
    }


def broken_asking(draw: Draw, framework: str) -> Case:
    name = draw.choice(["table_gradients", "padding_report", "parameter_gradients"])
    space = embgrad.metrics if name == "padding_report" else embgrad.tables
    case = broken_gradients(draw, framework, getattr(space, name), name)
    if name == "parameter_gradients":
        if "broken options: at" in case.text:
            return parameter_names(draw, framework)
        if any(kind in case.text for kind in ("without a lookup", "that is detached")):
            return parameter_names(draw, framework)  # the model has parameter gradients
    return case


def parameter_names(draw: Draw, framework: str) -> Case:
    problem = drawn_problem(draw, framework, ("mean",), native=False)
    names = draw.choice(["Native", "canonical", "", None, 3, [], nonsense(draw)])
    text, run = _around(draw, problem, partial(embgrad.tables.parameter_gradients, names=names))
    return _case("parameter_gradients", problem, f"{text}\nnames: {names!r}", run, None, REFUSAL)
