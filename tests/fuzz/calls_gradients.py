"""Valid calls of `embgrad.gradients` with every option, and the expected results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

import embgrad
from tests.fuzz.batches import DrawnBatch, drawn_batch
from tests.fuzz.cases import Case, expect, expect_close, expect_equal
from tests.fuzz.drawing import Draw
from tests.fuzz.exporting import EXPORTED
from tests.fuzz.nonsense import disguised
from tests.fuzz.objectives import DrawnObjective, drawn_objective
from tests.fuzz.oracle import POINTS, Changes, Derivatives, Oracle, Question, canonical
from tests.fuzz.surroundings import surrounded
from tests.fuzz.worlds import FLOOR, World, abilities, drawn_world

#: The architectures in which an example's gradient does not depend on the rest of the batch.
ALONE: Final = tuple(name for name in POINTS if name != "mixing")


@dataclass(frozen=True)
class Problem:
    """A model, a batch and an objective that fit together, with the question for the oracle."""

    world: World
    batch: DrawnBatch
    objective: DrawnObjective
    question: Question

    @property
    def oracle(self) -> Oracle:
        return Oracle(self.question)

    @property
    def text(self) -> str:
        return f"model: {self.world}\nbatch: {self.batch.text}\nobjective: {self.objective.text}"

    @property
    def arguments(self) -> list[Any]:
        return [self.batch.argument, self.objective.argument]

    @property
    def warns(self) -> bool:
        types = self.batch.token_batch.types
        return (
            self.batch.extra
            or (self.batch.token_batch.padded and self.world.architecture != "masked")
            or (types is not None and types.any())
            or self._labels_are_ids
        )

    @property
    def _labels_are_ids(self) -> bool:
        """Return whether the labels for each position are the ids, by chance."""
        labels, ids = np.asarray(getattr(self.objective.argument, "labels", 0)), self.batch.token_batch.ids
        counted = labels != -100
        return labels.shape == ids.shape and bool(counted.any() and (labels == ids)[counted].all())

    def changed(self, changes: Changes) -> Oracle:
        return Oracle(Question(**{**vars(self.question), "changes": changes}))


def drawn_problem(
    draw: Draw, framework: str, architectures: tuple[str, ...] = tuple(POINTS), **options: Any
) -> Problem:
    """Return a valid problem.

    Args:
        options: options of `drawn_world` (exact, like) and `drawn_batch` (mask, examples, positions); `smooth`; `native` is True
            if the objective may be a function of native outputs.
    """
    world = drawn_world(
        draw, framework, architectures, **{name: options.pop(name) for name in ("exact", "like") if name in options}
    )
    smooth, native = options.pop("smooth", False), options.pop("native", True)
    batch = drawn_batch(draw, framework, world.vocab, **options)
    harness = world.harness if native else None
    objective = drawn_objective(draw, world.architecture, world.classes, batch.token_batch, harness, smooth)
    return Problem(
        world,
        batch,
        objective,
        Question(world.architecture, world.weights, batch.token_batch.ids, batch.token_batch.mask, objective.formula),
    )


def gradients(draw: Draw, framework: str) -> Case:
    problem = drawn_problem(draw, framework, examples=draw.choice([1, 2, 3, 4]))
    architecture, supports = problem.world.architecture, abilities(framework)
    names = _reachable_points(problem)
    several = draw.chance(0.25)
    at: Any = draw.subset(names, most=4) if several else draw.choice(names)
    options: dict[str, Any] = {} if at == "word" and draw.chance(0.7) else {"at": tuple(at) if several else at}
    half = problem.world.dtype in ("float16", "bfloat16")
    if draw.chance(0.3) and not half:
        options["pads"] = draw.choice(["keep", "zero"])
    if draw.chance(0.2) and "split" in supports and not problem.objective.scalar:
        options["split"] = True
    if draw.chance(0.3) and architecture in ALONE and not problem.objective.scalar:
        options["batch_size"] = draw.choice([1, 2, 3, 50, np.int64(2)])
    if draw.chance(0.06) and "compile" in supports:
        options["compile"] = True
    if draw.chance(0.1):
        options["progress"] = ProgressRecorder()
    if draw.chance(0.1) and architecture != "dropout":
        options["training"] = True
    if draw.chance(0.1) and architecture != "masked":
        options["call"] = _plain_call
        if draw.chance(0.3):
            options |= {"parts": True, "call": _call_of_parts}
    changes = Changes()
    if draw.chance(0.3) and architecture not in ("mixing",) and {"override", "add", "edit"} <= supports:
        changes, arguments = _drawn_changes(draw, problem, list(at) if several else [at])
        options |= arguments
    if draw.chance(0.08) and not half and not changes.edit and not options.get("training"):
        options["check"] = True
    return _case(draw, problem, at, options, changes)


def graphs(draw: Draw, framework: str) -> Case:
    problem = drawn_problem(draw, framework, EXPORTED)
    problem.world.as_graph()
    at = draw.choice(_reachable_points(problem))
    options: dict[str, Any] = {} if at == "word" else {"at": at}
    if draw.chance(0.3):
        options["pads"] = draw.choice(["keep", "zero"])
    if draw.chance(0.2) and "split" in abilities(framework) and not problem.objective.scalar:
        options["split"] = True
    if draw.chance(0.3) and not problem.objective.scalar:
        options["batch_size"] = draw.choice([1, 2, 50])
    changes = Changes()
    if draw.chance(0.3):
        changes, arguments = _drawn_changes(draw, problem, [at])
        options |= arguments
    return _case(draw, problem, at, options, changes)


def plain(problem: Problem) -> Case:
    return _case(None, problem, "word", {}, Changes())


def _reachable_points(problem: Problem) -> tuple[str, ...]:
    """Return the points that a pass on this batch reaches: a single position cannot be recognised."""
    names = POINTS[problem.world.architecture]
    return names if problem.batch.token_batch.shape[1] > 1 else tuple(name for name in names if name != "position")


def _case(draw: Draw | None, problem: Problem, at: Any, options: dict[str, Any], changes: Changes) -> Case:
    inside, around = ("nothing", nullcontext) if draw is None else surrounded(draw, problem.world.framework)

    def run() -> Any:
        arguments = dict(options)
        model = [problem.world.model, problem.world.model] if arguments.pop("parts", False) else problem.world.model
        try:
            with around():
                return embgrad.gradients(model, problem.batch.argument, problem.objective.argument, **arguments)
        except embgrad.errors.CertificationError as error:
            expect("could not be tested" in str(error), f"the certificate says that a right gradient is wrong: {error}")
            raise

    def judge(actual: Any) -> None:
        if isinstance(at, str):
            expect(isinstance(actual, embgrad.results.EmbeddingGradients), f"at={at!r} gives a {type(actual).__name__}")
            actual = {at: actual}
        else:
            expect_equal(list(actual), list(at), "the names")
        oracle = problem.changed(changes)
        for name, result in actual.items():
            expect_result(problem, name, result, oracle, options)
        progress = options.get("progress")
        if progress is not None:
            expect_equal(progress.calls[-1], (len(problem.batch.token_batch),) * 2, "the last call of progress")

    said = {name: value for name, value in options.items() if name not in ("override", "add", "edit")}
    text = f"{problem.text}\noptions: {said}\nchanges: {changes}\ninside: {inside}"
    refused: tuple[type[BaseException], ...] = ()
    if _scalar_is_refused(problem, at, options):
        refused += (embgrad.errors.UnsupportedError,)
    if options.get("check"):  # a gradient of nearly zero cannot be distinguished from rounding
        refused += (embgrad.errors.CertificationError,)
        if options.get("pads") == "zero" and "position" in ([at] if isinstance(at, str) else at):
            refused += (embgrad.errors.UnsupportedError,)
    return Case(
        "gradients",
        text,
        run,
        judge,
        refused=refused,
        worlds=[problem.world],
        arguments=[*problem.arguments, *(options.get(name, {}) for name in ("override", "add", "edit"))],
        warns=problem.warns or "compile" in options or _is_warned_of_company(problem, options),
        random_moves=bool(options.get("training")),
        framework=problem.world.framework,
    )


def _is_warned_of_company(problem: Problem, options: Mapping[str, Any]) -> bool:
    """Return whether the check of a model in which examples interact warns that they do."""
    return bool(options.get("check")) and problem.world.architecture == "mixing"


def _scalar_is_refused(problem: Problem, at: Any, options: Mapping[str, Any]) -> bool:
    """Return whether a Scalar objective meets a point that all examples share, which needs a pullback per example."""
    return problem.objective.scalar and "position" in ([at] if isinstance(at, str) else at)


def expect_result(problem: Problem, name: str, result: Any, oracle: Oracle, options: Mapping[str, Any]) -> None:
    right, world, batch = oracle.at(name), problem.world, problem.batch.token_batch
    values = right.own if options.get("split") else right.summed
    zeroed = values.copy()
    if options.get("pads") == "zero":
        zeroed[~batch.real] = 0
    tolerance = world.tolerance * (10 if world.architecture in ("layers", "repeated") else 1)
    # Where examples interact, their gradients may cancel to less than the rounding of each.
    scale = max(FLOOR, float(np.abs(right.each).max()))
    expect_close(result.values, zeroed, tolerance, f"values at {name!r}", scale)
    expect_close(result.activations, right.value, tolerance, f"activations at {name!r}", FLOOR)
    total = oracle.values()
    expect_close(result.objective, total.sum() if problem.objective.scalar else total, tolerance, "objective", 1.0)
    expect_equal(str(result.values.dtype), "float64" if world.dtype == "float64" else "float32", "the dtype")
    expect_equal(result.provenance["compute_dtype"], world.dtype, "compute_dtype")
    padding = ~batch.real
    pullbacks = (
        right.each if options.get("split") else right.summed[None]
    )  # each example's gradient reaches the others' padding
    leak = float(np.abs(pullbacks[:, padding]).max()) if padding.any() else 0.0
    expect_close(result.pad_leak, leak, tolerance, "pad_leak", scale)
    if name == "position":
        expect_equal(result.ids, np.tile(np.arange(batch.shape[1]), (len(batch), 1)), "ids at 'position'")
    else:
        expect_equal(result.ids, batch.ids, "ids")
    expect_equal(result.mask, None if batch.mask is None else np.asarray(batch.mask), "mask")
    edited = canonical(name) in options.get("edit", {})
    expect((result.before is not None) == edited, f"before is {type(result.before).__name__}, and edited is {edited}")
    if edited:
        before = right.own_before if options.get("split") else right.before.sum(0)
        if options.get("pads") == "zero":
            before = np.where(batch.real[..., None], before, 0)
        expect_close(result.before, before, tolerance, "before", scale)
    _expect_tables(problem, name, result, right, options, tolerance, scale)
    _expect_saliency(result)


def _expect_tables(
    problem: Problem,
    name: str,
    result: Any,
    right: Derivatives,
    options: Mapping[str, Any],
    tolerance: float,
    scale: float,
) -> None:
    """Expect the table's gradient to be the sum over the positions of each row."""
    looked_up = name in ("word", "position", "word#0", "word#1") and name not in options.get("override", {})
    if not looked_up:
        expect(result.vocab is None, f"vocab at {name!r} is {result.vocab}")
        return
    ids, vocab = result.ids, problem.world.vocab
    expect_equal(result.vocab, vocab, "vocab")
    each = right.each.copy()
    if options.get("pads") == "zero":
        each[:, ~problem.batch.token_batch.real] = 0
    tables = np.zeros((len(ids), vocab, problem.world.dim))
    for example in range(len(ids)):
        np.add.at(tables[example], ids, each[example])
    if not options.get(
        "split"
    ):  # the gradient at an example's positions, which is its own where examples do not interact
        tables[...] = 0
        for example in range(len(ids)):
            np.add.at(tables[example], ids[example], each.sum(0)[example])
    expect_close(
        result.table().to_dense(), tables.sum(0), 4 * tolerance, "table()", max(FLOOR, float(np.abs(right.each).max()))
    )
    actual = result.per_example()
    expect_equal(len(actual), len(ids), "the number of per_example()")
    for example, table in enumerate(actual):
        expect_close(table.to_dense(), tables[example], 4 * tolerance, f"per_example()[{example}]", scale)
        expect_equal(table.rows, np.unique(table.rows), "the rows, ascending and each once")


def _expect_saliency(result: Any) -> None:
    norms, dots = result.saliency(), result.saliency("dot")
    wide = result.values.astype(np.float64)
    expect_close(norms, np.sqrt((wide**2).sum(-1)), 1e-6, "saliency()", 1e-12)
    expect_close(dots, (wide * result.activations).sum(-1), 1e-5, "saliency('dot')", float(np.abs(wide).max()))


class ProgressRecorder:
    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, done: int, of: int) -> None:
        self.calls.append((done, of))

    def __repr__(self) -> str:
        return "a function"


def _call_of_parts(parts: Any, inputs: Any) -> Any:
    return _plain_call(parts[1], inputs)


def _plain_call(model: Any, inputs: Any) -> Any:
    """Call a model of the suite, which takes ids alone, as embgrad does."""
    if isinstance(inputs, Mapping):
        return model(next(inputs[key] for key in ("input_ids", "input_word_ids", "token_ids") if key in inputs))
    return model(inputs[0] if isinstance(inputs, tuple) else inputs)


def _drawn_changes(draw: Draw, problem: Problem, at: list[str]) -> tuple[Changes, dict[str, Any]]:
    """Return changes at some of the points, so that each requested point still reaches the objective."""
    changeable = [
        name for name in POINTS[problem.world.architecture] if name != "position" and not name.startswith("layer.-")
    ]
    order = {name: number for number, name in enumerate(["word", "embeddings", "layer.0", "layer.1", "layer.2"])}
    shape = (*problem.batch.token_batch.shape, problem.world.dim)
    changes: dict[str, dict[str, Any]] = {"override": {}, "add": {}, "edit": {}}
    arguments: dict[str, dict[str, Any]] = {"override": {}, "add": {}, "edit": {}}
    for name in draw.subset(changeable, most=2):
        option = draw.choice(["override", "add", "edit"])
        # Below an override nothing reaches the objective, so that all requested points must come after it.
        lowest = min([order.get(canonical(asked_for), 0) for asked_for in at], default=0)
        if option == "override" and ("position" in at or order.get(name, 0) > lowest):
            option = "add"
        changes[option][name], arguments[option][name] = _change(draw, option, shape)
    return Changes(**changes), {name: value for name, value in arguments.items() if value}


def _change(draw: Draw, option: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the change for the oracle, and as it is passed to embgrad."""
    if option == "edit":
        factor = draw.choice([0.0, -1.0, 2.0, 0.5])
        forms: list[Callable[[Any], Any]] = [
            lambda grad: grad * factor,
            lambda grad: grad.__imul__(factor) is None or None,
        ]
        return factor, draw.choice(forms)
    kept = draw.choice([shape, shape[-1:], (1, *shape[1:]), (1,), ()])
    array = draw.normal(*kept).astype(np.float32).astype(np.float64)
    form = draw.choice(["array", "list", "function", "in place"])
    if form == "function":
        spread = array[:1] if array.ndim == len(shape) else array
        return spread, lambda value: np.broadcast_to(spread, value.shape)
    if form == "in place" and option == "override":
        spread = array[:1] if array.ndim == len(shape) else array  # a function also sees micro-batches
        return spread, lambda value: value.__setitem__(..., spread)
    return array, array.tolist() if form == "list" else disguised(draw, array)
