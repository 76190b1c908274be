"""Pairs of calls of `gradients` whose results must be equal. The oracle of `calls_gradients` shows all other invariants."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import embgrad
from tests.fuzz.batches import drawn_mask
from tests.fuzz.cases import UNUSED, Case, expect, expect_close, expect_equal
from tests.fuzz.drawing import Draw
from tests.fuzz.worlds import FLOOR, World, drawn_world

Found = embgrad.results.EmbeddingGradients


class _Problem:
    """A classifier, a batch for it, and labels."""

    def __init__(self, draw: Draw, world: World, examples: int = 2) -> None:
        self.world = world
        shape = draw.integer(examples, 4), draw.integer(1, 5)
        self.ids = draw.integers(0, world.vocab - 1, shape)
        self.mask = drawn_mask(draw, shape) if world.architecture == "masked" else np.ones(shape, int)
        self.labels = draw.integers(0, world.classes - 1, shape[0])

    def run(
        self, objective: Any = None, rows: Any = slice(None), ids: Any = None, mask: Any = None, **options: Any
    ) -> Found:
        """Return the gradients of some of the examples, or with other ids and mask."""
        objective = embgrad.CrossEntropy(self.labels[rows]) if objective is None else objective
        ids, mask = (self.ids if ids is None else ids)[rows], (self.mask if mask is None else mask)[rows]
        batch = embgrad.TokenBatch(ids, mask if self.world.architecture == "masked" else None)
        return embgrad.gradients(self.world.model, batch, objective, **options)


def invariants(draw: Draw, framework: str) -> Case:
    world = drawn_world(draw, framework, ("masked", "hidden", "mean"), least=2)
    problem = _Problem(draw, world)
    tolerance = 5 * world.tolerance
    kinds: dict[str, Callable[[Draw, _Problem, float], Any]] = {
        "the framework's own gradient of the table": _own,
        "the same call again": _again,
        "two threads at once": _threads,
        "texts": _texts,
    }
    if world.architecture == "masked":
        del kinds["the framework's own gradient of the table"]
    kind = draw.choice(list(kinds))
    check = kinds[kind](draw, problem, tolerance)
    ids, mask, labels = problem.ids.tolist(), problem.mask.tolist(), problem.labels.tolist()
    text = f"model: {world}\nids={ids}\nmask={mask}\nlabels={labels}\ninvariant: {kind}"
    # The framework's own pass may change its state.
    own = kind.startswith("the framework's")
    return Case(
        "gradients",
        text,
        check,
        lambda actual: None,
        worlds=[] if own else [world],
        arguments=[problem.ids, problem.mask],
        warns=kind == "texts",
        random_moves=own,
        framework=framework,
        foreign=UNUSED if own else (),
    )


def _scale(*results: Found) -> float:
    return max(FLOOR, *(float(np.abs(result.values).max()) for result in results))


def _own(draw: Draw, problem: _Problem, tolerance: float) -> Callable[[], None]:
    if problem.world.frozen:
        problem.world.frozen = False
        problem.world.model = problem.world.built()

    def check() -> None:
        own = problem.world.harness.table_gradient(problem.world.model, problem.ids, problem.labels)
        actual = problem.run()
        expect_close(actual.table().to_dense(), own, tolerance, "table()", max(FLOOR, float(np.abs(own).max())))
        summed = sum(table.to_dense().astype(np.float64) for table in actual.per_example())
        expect_close(summed, own, tolerance, "the sum of per_example()", max(FLOOR, float(np.abs(own).max())))

    return check


def _again(draw: Draw, problem: _Problem, tolerance: float) -> Callable[[], None]:
    def check() -> None:
        first, second = problem.run(), problem.run()
        expect_equal(second.values, first.values, "the same call's values")
        expect_equal(second.objective, first.objective, "the same call's objective")

    return check


def _threads(draw: Draw, problem: _Problem, tolerance: float) -> Callable[[], None]:
    middle = draw.integer(1, len(problem.ids) - 1)
    rows = [slice(middle), slice(middle, None)]

    def check() -> None:
        plain = problem.run()
        with ThreadPoolExecutor(2) as pool:
            actual = [task.result() for task in [pool.submit(problem.run, rows=half) for half in rows * 2]]
        for half, result in zip(rows * 2, actual, strict=True):
            expect_close(result.values, plain.values[half], tolerance, "a thread's values", _scale(plain))
            expect_close(result.objective, plain.objective[half], tolerance, "a thread's objective", 1.0)

    return check


def _texts(draw: Draw, problem: _Problem, tolerance: float) -> Callable[[], None]:
    texts = ["".join(map(chr, row[: draw.integer(1, len(row))] + ord("a"))) for row in problem.ids]

    def tokenizer(text: str, pair: Any = None) -> list[int]:
        return [ord(letter) - ord("a") for letter in text]

    def check() -> None:
        batch = embgrad.encode(texts, tokenizer)
        objective = embgrad.CrossEntropy(problem.labels)
        mine = embgrad.gradients(problem.world.model, texts, objective, tokenizer=tokenizer)
        theirs = embgrad.gradients(problem.world.model, batch, objective)
        expect_equal(mine.ids, batch.ids, "ids")
        expect_equal(mine.values, theirs.values, "values of texts")

    return check


def native_points(draw: Draw, framework: str) -> Case:
    """Request every point that `points` lists by its name; a point with a role must give the same result as the role."""
    architectures = ("layers", "repeated", "hidden", "mean", "flat", "positional", "named", "two_tables", "twice")
    world = drawn_world(draw, framework, architectures, exact=True)
    examples, positions = draw.integer(1, 3), draw.integer(4, 5)  # two different numbers
    ids = draw.integers(2, world.vocab - 1, (examples, positions))
    objective = embgrad.Sum(output="sequence" if world.architecture == "named" else None)

    def run() -> Any:
        listed = embgrad.points(world.model, ids)
        return [(point, *_asked_for(world.model, ids, objective, point)) for point in listed]

    def judge(actual: list[Any]) -> None:
        reached = 0
        for point, by_name, by_role in actual:
            if isinstance(by_name, embgrad.EmbgradError):
                expect(str(by_name).strip(), f"{point.name}: an error that says nothing")
                expect(by_role is None or point.roles == ("word",), f"{point.name} with {point.roles}: {by_name}")
                continue
            reached += 1
            expect_equal(by_name.values.size, int(np.prod(point.shape)), f"the size at {point.name}")
            if by_role is not None and by_role.values.shape == by_name.values.shape:
                expect_equal(by_name.values, by_role.values, f"the values at {point.name} and at {point.roles[0]!r}")
        expect(reached, f"no point gave a result: {[str(entry) for entry in actual]}")

    text = f"model: {world}\nids={ids.tolist()}\nobjective: {objective!r}\nat: every point by its native name"
    return Case("gradients", text, run, judge, (), [world], [ids], framework=framework)


def _asked_for(model: Any, ids: np.ndarray, objective: Any, point: embgrad.results.Point) -> tuple[Any, Any]:
    """Return the result by the point's name, or the refusal; and by its role, if it has one of its own."""
    try:
        by_name: Any = embgrad.gradients(model, ids, objective, at=point.name)
    except embgrad.EmbgradError as error:
        by_name = error
    role = next((role for role in point.roles if role != "word"), None)
    return by_name, None if role is None else embgrad.gradients(model, ids, objective, at=role)
