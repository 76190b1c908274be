"""Models that reverse or pad their ids, read a second text or lengths, score positions, or let examples meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

import numpy as np

import embgrad
from embgrad.testing.reference import Tensor
from tests.fuzz.cases import REFUSAL, Case, expect, expect_close
from tests.fuzz.drawing import Draw
from tests.fuzz.objectives import drawn_objective
from tests.fuzz.oracle import Changes, Oracle, Question
from tests.fuzz.worlds import FLOOR, World, drawn_world

#: The architectures of one output that take ids alone, of which the last depends on the order of the positions.
PLAIN: Final = ("mean", "hidden", "positional")

#: The frameworks in which models that read lengths are searched; each length of a text takes a compilation in JAX.
LENGTHS: Final = ("reference", "torch", "tensorflow")


def kinds(draw: Draw, framework: str) -> Case:
    """Return a call whose result is right, or which is refused."""
    drawn = [_reversed_positions, _reversed_examples, _windowed, _two_texts, _scores_of_positions, _occluded]
    return draw.choice(drawn if framework not in LENGTHS else [*drawn, _longer])(draw, framework)


def _reversed_positions(draw: Draw, framework: str) -> Case:
    world, ids = _drawn(draw, framework, PLAIN)
    argument, formula, text = _objective(draw, world, ids)

    def call(model: Any, inputs: Any) -> Any:
        return model(_flipped(framework, _ids(inputs), 1))

    question = Question(world.architecture, world.weights, ids[:, ::-1], None, formula)
    return _case("positions reversed", world, ids, argument, text, call, question, lambda each: each[:, ::-1])


def _reversed_examples(draw: Draw, framework: str) -> Case:
    world, ids = _drawn(draw, framework, PLAIN)
    argument, formula, text = _objective(draw, world, ids)

    def call(model: Any, inputs: Any) -> Any:
        return _flipped(framework, model(_flipped(framework, _ids(inputs), 0)), 0)

    question = Question(world.architecture, world.weights, ids, None, formula)
    return _case("examples reversed, and back", world, ids, argument, text, call, question, lambda each: each)


def _windowed(draw: Draw, framework: str) -> Case:
    world, ids = _drawn(draw, framework, PLAIN)
    argument, formula, text = _objective(draw, world, ids)

    def call(model: Any, inputs: Any) -> Any:
        own = _ids(inputs)
        return model(_joined(framework, own, own * 0))

    wide = np.concatenate([ids, np.zeros_like(ids)], 1)
    question = Question(world.architecture, world.weights, wide, None, formula)
    return _case("padded inside", world, ids, argument, text, call, question, lambda each: each[:, : ids.shape[1]])


def _two_texts(draw: Draw, framework: str) -> Case:
    world, ids = _drawn(draw, framework, PLAIN)
    argument, formula, text = _objective(draw, world, ids)
    second = draw.integers(0, world.vocab - 1, (len(ids), draw.integer(1, 5)))
    other = Oracle(Question(world.architecture, world.weights, second, None, formula)).outputs()["logits"]

    def call(model: Any, inputs: Any) -> Any:
        return model(_ids(inputs)) + model(inputs["doc_ids"])

    question = Question(
        world.architecture, world.weights, ids, None, lambda outputs: formula({"logits": outputs["logits"] + other})
    )
    batch = embgrad.TokenBatch(ids, extras={"doc_ids": second})
    return _case(
        "two texts", world, batch, argument, f"{text}, doc_ids={second.tolist()}", call, question, lambda each: each
    )


def _scores_of_positions(draw: Draw, framework: str) -> Case:
    world, ids = _drawn(draw, framework, ("positions",))
    mask = (np.arange(ids.shape[1]) < draw.integers(1, ids.shape[1], len(ids))[:, None]).astype(int)

    def call(model: Any, inputs: Any) -> Any:
        return _first_class(model(_ids(inputs)))

    question = Question(
        world.architecture, world.weights, ids, mask, lambda outputs: (outputs["logits"][..., 0] * mask).sum(-1)
    )
    batch = embgrad.TokenBatch(ids, mask)
    return _case("scores of positions", world, batch, embgrad.Sum(), "Sum()", call, question, lambda each: each)


def _occluded(draw: Draw, framework: str) -> Case:
    """Return a call of `attribute` on a model whose examples may meet: each token alone is occluded."""
    world, ids = _drawn(draw, framework, ("mixing", *PLAIN))
    argument, formula, text = _objective(draw, world, ids)
    question = Question(world.architecture, world.weights, ids, None, formula)

    def judge(actual: Any) -> None:
        rows, whole = Oracle(question).at("word").value, Oracle(question).values()
        expected = np.zeros(ids.shape)
        for index in np.ndindex(*ids.shape):
            changed = rows.copy()
            changed[index] = 0
            occluded = replace(question, changes=Changes(override={"word": changed}))
            expected[index] = whole[index[0]] - Oracle(occluded).values()[index[0]]
        expect_close(actual.scores, expected, world.tolerance, "scores", 1.0)

    return _made(
        "attribute",
        f"occluded: {world}\nids={ids.tolist()}\nobjective: {text}",
        lambda: embgrad.attribute(world.model, ids, argument, embgrad.methods.Occlusion("zero")),
        judge,
        world,
    )


def _longer(draw: Draw, framework: str) -> Case:
    """Return a call of `search` that inserts and deletes tokens in texts of a model that reads their lengths."""
    world, ids = _drawn(draw, framework, ("masked",))
    lengths = draw.integers(1, ids.shape[1], len(ids))
    mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(int)
    index = draw.integer(0, world.classes - 1)
    method = embgrad.methods.HotFlip(steps=1, candidates=4, insert=draw.chance(0.7), delete=draw.chance(0.5))

    def call(model: Any, inputs: Any) -> Any:
        counts, width = np.asarray(inputs["lengths"]), int(inputs["input_ids"].shape[1])
        return model(inputs["input_ids"], _native(framework, (np.arange(width) < counts[:, None]).astype(np.int64)))

    def judge(found: Any) -> None:
        real = found.batch.real
        expect_close(found.batch.extras["lengths"], real.sum(1), 0, "lengths")
        for example, own in enumerate(real):
            text = found.batch.ids[example : example + 1, own]
            alone = Question("masked", world.weights, text, None, lambda outputs: outputs["logits"][..., index])
            expect_close(found.objective[example], Oracle(alone).values()[0], world.tolerance, "objective", 1.0)
            expect(found.objective[example] >= found.objective_before[example], "the objective fell")

    batch = embgrad.TokenBatch(ids, mask, extras={"lengths": lengths})
    return _made(
        "search",
        f"lengths: {world}\nids={ids.tolist()}, lengths={lengths.tolist()}\nobjective: Logit({index}), {method}",
        lambda: embgrad.search(world.model, batch, embgrad.Logit(index), method, call=call),
        judge,
        world,
    )


def _drawn(draw: Draw, framework: str, architectures: tuple[str, ...]) -> tuple[World, np.ndarray]:
    """Return a model, and ids that differ enough for their order to show."""
    world = drawn_world(draw, framework, architectures, exact=True)
    return world, draw.integers(0, world.vocab - 1, (draw.integer(1, 4), draw.integer(2, 3)))


def _objective(
    draw: Draw, world: World, ids: np.ndarray
) -> tuple[Any, Callable[[Mapping[str, np.ndarray]], np.ndarray], str]:
    drawn = drawn_objective(draw, world.architecture, world.classes, embgrad.TokenBatch(ids), None, True)
    return drawn.argument, drawn.formula, drawn.text


def _case(
    kind: str,
    world: World,
    batch: Any,
    objective: Any,
    text: str,
    call: Callable[[Any, Any], Any],
    question: Question,
    of_batch: Callable[[np.ndarray], np.ndarray],
) -> Case:
    def judge(actual: Any) -> None:
        right = Oracle(question).at("word")
        expect_close(actual.values, of_batch(right.summed), world.tolerance, "values", FLOOR)
        expect_close(actual.activations, of_batch(right.value), world.tolerance, "activations", FLOOR)
        expect_close(actual.objective, Oracle(question).values(), world.tolerance, "objective", 1.0)
        ids = batch.ids if isinstance(batch, embgrad.TokenBatch) else batch
        expect_close(actual.ids, ids, 0, "ids")

    return _made(
        "gradients",
        f"{kind}: {world}\nids={getattr(batch, 'ids', batch).tolist()}\nobjective: {text}",
        lambda: embgrad.gradients(world.model, batch, objective, call=call),
        judge,
        world,
    )


def _made(function: str, text: str, run: Callable[[], Any], judge: Callable[[Any], None], world: World) -> Case:
    return Case(function, text, run, judge, refused=REFUSAL, worlds=[world], warns=True, framework=world.framework)


def _ids(inputs: Any) -> Any:
    return inputs["input_ids"] if isinstance(inputs, Mapping) else inputs


def _native(framework: str, array: np.ndarray) -> Any:
    if framework == "torch":
        return import_module("torch").from_numpy(array)
    return import_module("tensorflow").constant(array) if framework == "tensorflow" else array


def _flipped(framework: str, tensor: Any, axis: int) -> Any:
    """Return a tensor of a framework in reverse along an axis."""
    if framework == "torch":
        return tensor.flip(axis)
    if framework == "tensorflow":
        return import_module("tensorflow").reverse(tensor, [axis])
    if framework == "gluon":
        return import_module("mxnet").nd.reverse(tensor, axis=axis)
    if framework == "jax":
        return import_module("jax.numpy").flip(tensor, axis)
    if isinstance(tensor, np.ndarray):
        return np.flip(tensor, axis)
    return Tensor(np.flip(tensor.value, axis), [(tensor, lambda gradient: np.flip(gradient, axis))])


def _first_class(logits: Any) -> Any:
    """Return the logits of the first class, (example, position)."""
    if not isinstance(logits, Tensor):
        return logits[:, :, 0]
    only = np.eye(logits.shape[-1])[0]
    return Tensor(logits.value[:, :, 0], [(logits, lambda gradient: gradient[..., None] * only)])


def _joined(framework: str, first: Any, second: Any) -> Any:
    """Return two tensors of ids beside each other."""
    if framework == "torch":
        return import_module("torch").cat([first, second], 1)
    if framework == "tensorflow":
        return import_module("tensorflow").concat([first, second], 1)
    if framework == "gluon":
        return import_module("mxnet").nd.concat(first, second, dim=1)
    if framework == "jax":
        return import_module("jax.numpy").concatenate([first, second], 1)
    return np.concatenate([first, second], 1)
