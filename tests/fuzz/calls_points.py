"""Calls of `points`, and of `capture` around training steps."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

import embgrad
from embgrad.backend.registry import backend_named
from tests.fuzz.batches import broken_batch
from tests.fuzz.calls_gradients import drawn_problem
from tests.fuzz.cases import REFUSAL, UNUSED, Case, expect, expect_close, expect_equal
from tests.fuzz.drawing import Draw
from tests.fuzz.nonsense import nonsense
from tests.fuzz.oracle import POINTS, Oracle, Question
from tests.fuzz.surroundings import surrounded
from tests.fuzz.worlds import FLOOR, abilities, drawn_world

#: Framework and architecture whose weights after a captured loop differ in their last bits: a hybridised block runs operator by
#: operator under a capture, and MXNet then sums the gradients of a table's two lookups in another order.
IN_ANOTHER_ORDER: Final = {("gluon", "twice")}
LAYERS: Final = ("layer.0", "layer.1", "layer.2", "layer.-1", "embeddings")
TRAINED: Final = ("mean", "hidden", "twice", "two_tables", "time_major", "positional", "layers", "repeated")


def points(draw: Draw, framework: str) -> Case:
    problem = drawn_problem(draw, framework)
    inside, around = surrounded(draw, framework)
    architecture, batch = problem.world.architecture, problem.batch.token_batch
    has_positions = batch.shape[1] > 1

    def run() -> Any:
        with around():
            return embgrad.points(problem.world.model, problem.batch.argument)

    def judge(actual: list[embgrad.results.Point]) -> None:
        roles = [role for point in actual for role in point.roles]
        expected = {"layers": LAYERS, "repeated": LAYERS}.get(architecture, ())
        for role in (
            "word",
            *expected,
            *(("position",) if "position" in POINTS[architecture] and has_positions else ()),
        ):
            expect(role in roles, f"no point has the role {role!r}: {[str(point) for point in actual]}")
        for point in actual:
            if "word" in point.roles and point.lookup is not None:
                expect_equal(
                    (point.lookup.rows, point.lookup.dim), (problem.world.vocab, problem.world.dim), "the table's size"
                )
                expect_equal(np.prod(point.shape), batch.ids.size * problem.world.dim, "the point's size")
            if any(role in LAYERS for role in point.roles):
                expect_equal(point.shape, (*batch.shape, problem.world.dim), "the layer's shape")
            expect(str(point) and point.name and repr(point), "a point without a name")
        twice = architecture in ("twice", "two_tables")
        expect(roles.count("word") >= (2 if twice else 1), f"'word' is the role of {roles.count('word')} points")

    text = f"model: {problem.world}\nbatch: {problem.batch.text}\ninside: {inside}"
    return Case("points", text, run, judge, (), [problem.world], [problem.batch.argument], framework=framework)


def broken_points(draw: Draw, framework: str) -> Case:
    problem = drawn_problem(draw, framework, ("mean", "layers", "flat", "time_major"), native=False)
    kind, made = broken_batch(draw, framework, problem.world.vocab)
    no_model = draw.chance(0.2)
    wrong = nonsense(draw)

    def run() -> Any:
        return (
            embgrad.points(wrong, problem.batch.argument) if no_model else embgrad.points(problem.world.model, made())
        )

    broken = f"model: {wrong!r}" if no_model else f"batch: {kind}"
    text = f"model: {problem.world}\nbroken {broken}"
    return Case("points", text, run, None, REFUSAL, [problem.world], problem.arguments, framework=framework)


def capture(draw: Draw, framework: str) -> Case:
    """Draw one or two captured training steps, and the same steps on a twin without a capture."""
    world = drawn_world(draw, framework, TRAINED)
    if "capture" not in abilities(framework):
        run_without = lambda: _entered(world.model, "word", "sum")  # noqa: E731
        return Case("capture", f"a backend that cannot: {framework}", run_without, None, REFUSAL, framework=framework)
    if world.dtype in ("float16", "bfloat16") or world.classes < 2:
        world = drawn_world(draw, framework, ("layers", "hidden"), exact=True, least=2)
    world.frozen = world.disturbed = False
    world.model = world.built()
    twin = world.built()
    at = draw.choice([name for name in POINTS[world.architecture] if name != "position"])
    keep = draw.choice(["all", "mean"])
    if draw.chance(0.2):
        return _broken_capture(draw, world, at)
    steps = draw.integer(1, 2)
    shape = draw.integer(2, 4), draw.integer(5, 6)  # different, so that the shape identifies the axes
    ids = draw.integers(0, world.vocab - 1, shape)
    ids[0] = draw.random.permutation(world.vocab)[: shape[1]] if world.vocab >= shape[1] else ids[0]
    ids[0, 0], ids[0, 1] = 3, 1  # not the positions 0, 1, 2, ...
    labels = draw.integers(0, world.classes - 1, shape[0])
    harness = world.harness
    losses = [0.1] if steps == 1 else [0.0, 0.1]

    def run() -> Any:
        with embgrad.capture(world.model, at, keep=keep) as tap:
            for rate in losses:
                harness.step(world.model, ids, labels, rate)
        for rate in losses:
            harness.step(twin, ids, labels, rate)
        return tap

    def judge(tap: embgrad.results.Tap) -> None:
        expect_equal((tap.count, tap.passes), (steps, steps), "steps and passes")
        expect_equal(len(tap.steps), steps if keep == "all" else 0, "the number of steps kept")
        right = Oracle(Question(world.architecture, world.weights, ids, None, _cross_entropy(labels))).at(at)
        for step in tap.steps:
            expect_close(step.values, right.summed / len(ids), 10 * world.tolerance, "values", FLOOR)
            expect_close(step.activations, right.value, 10 * world.tolerance, "activations", FLOOR)
        total, mean = tap.sum(), tap.mean()
        expected = right.summed / len(ids)
        if at.startswith("word"):
            dense = np.zeros((world.vocab, world.dim))
            np.add.at(dense, ids, expected)
            total, mean, expected = total.to_dense(), mean.to_dense(), dense
        expect_close(total, steps * expected, 20 * world.tolerance, "sum()", FLOOR)
        expect_close(mean, expected, 20 * world.tolerance, "mean()", FLOOR)
        backend = backend_named(framework)
        for mine, theirs in zip(backend.weights(world.model), backend.weights(twin), strict=True):
            name = f"the weight {mine.name} after the loop, against one not captured"
            if (framework, world.architecture) in IN_ANOTHER_ORDER:
                expect_close(mine.get(), theirs.get(), 4 * float(np.finfo(world.dtype).eps), name, 1.0)
            else:
                expect_equal(mine.get(), theirs.get(), name)

    text = f"model: {world}\nids={ids.tolist()}\nlabels={labels.tolist()}\nat={at!r}, keep={keep!r}, {steps} steps"
    return Case("capture", text, run, judge, (), [], [ids, labels], False, True, framework, UNUSED)


def _cross_entropy(labels: np.ndarray) -> Any:
    def formula(outputs: Any) -> np.ndarray:
        rows = outputs["logits"]
        shifted = rows - rows.real.max(-1, keepdims=True)
        return np.log(np.exp(shifted).sum(-1)) - (shifted * np.eye(rows.shape[-1])[labels]).sum(-1)

    return formula


def _broken_capture(draw: Draw, world: Any, at: str) -> Case:
    kinds = {
        "no step": lambda: _entered(world.model, at, "mean"),
        "an unknown point": lambda: _entered(
            world.model, draw.choice(["wrod", "", None, 3, ["word"], "layer.x"]), "sum"
        ),
        "keep": lambda: _entered(world.model, at, "sum", keep=draw.choice(["some", "", None, 3, []])),
        "nonsense": lambda: _entered(nonsense(draw), at, "sum"),
        "parts": lambda: _entered([world.model], at, "sum"),
    }
    kind = draw.choice(list(kinds))
    text = f"model: {world}\nat={at!r}\nbroken: {kind}"
    return Case("capture", text, kinds[kind], None, REFUSAL, [world], framework=world.framework)


def _entered(model: Any, at: Any, then: str, **options: Any) -> Any:
    with embgrad.capture(model, at, **options) as tap:
        pass
    return getattr(tap, then)()


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
