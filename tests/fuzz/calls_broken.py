"""Calls of `gradients`, and of functions with the same signature, with one broken argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import embgrad
from tests.fuzz.batches import broken_batch
from tests.fuzz.calls_gradients import Problem, drawn_problem
from tests.fuzz.cases import REFUSAL, Case
from tests.fuzz.drawing import Draw
from tests.fuzz.nonsense import nonsense
from tests.fuzz.objectives import broken_objective
from tests.fuzz.owners import drawn_error
from tests.fuzz.worlds import drawn_world


def broken_gradients(
    draw: Draw, framework: str, call: Callable[..., Any] = embgrad.gradients, name: str = "gradients"
) -> Case:
    plain = ("mean", "hidden", "masked", "scaled", "flat", "time_major", "layers")
    problem = drawn_problem(draw, framework, plain, native=False)
    arguments: dict[str, Any] = {
        "model": problem.world.model,
        "batch": problem.batch.argument,
        "objective": problem.objective.argument,
    }
    options: dict[str, Any] = {}
    part = draw.weighted({"batch": 4.0, "objective": 4.0, "model": 1.0, "options": 4.0 if name == "gradients" else 1.0})
    refused: tuple[type, ...] = REFUSAL
    made: Callable[[], Any]
    if part == "batch":
        kind, made = broken_batch(draw, framework, problem.world.vocab)
    elif part == "objective":
        kind, made, user_errors = broken_objective(draw, problem.world.classes, len(problem.batch.token_batch))
        refused += user_errors
    elif part == "model":
        kind, made, user_errors = _broken_model(draw, problem)
        refused += user_errors
    else:
        kind, options, user_errors = _broken_options(draw, problem, name)
        refused += user_errors
    if part == "model":
        arguments[part] = made()

    def run() -> Any:
        if part in ("batch", "objective"):
            arguments[part] = made()
        return call(arguments["model"], arguments["batch"], arguments["objective"], **options)

    text = f"{problem.text}\nbroken {part}: {kind}\noptions: { {key: _said(value) for key, value in options.items()} }"
    return Case(name, text, run, None, refused, [problem.world], problem.arguments, warns=True, framework=framework)


def _said(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"a {type(value).__name__} without a repr ({error})"


def _broken_model(draw: Draw, problem: Problem) -> tuple[str, Callable[[], Any], tuple[type, ...]]:
    harness, weights = problem.world.harness, problem.world.weights
    kinds: dict[str, Callable[[], Any]] = {
        "nonsense": lambda: nonsense(draw),
        "None": lambda: None,
        "its class": lambda: type(problem.world.model),
        "a sequence without call": lambda: [problem.world.model, problem.world.model],
        "an empty sequence": lambda: [],
        "a sequence with nonsense": lambda: [problem.world.model, nonsense(draw)],
        "a function": lambda: lambda ids: ids,
        "one without a lookup": lambda: harness.build("no_lookup", weights),
        "one that is detached": lambda: harness.build("detached", weights),
        "one that raises": lambda: harness.build("raises", weights),
        "one with NaN in its head": lambda: harness.build("mean", {**weights, "W": np.full_like(weights["W"], np.nan)}),
    }
    kind = draw.choice(list(kinds))
    return kind, kinds[kind], (RuntimeError,) if kind == "one that raises" else ()


def certificates(draw: Draw, framework: str) -> Case:
    """Draw a model whose gradient is twice the right one, which must get no certificate."""
    world = drawn_world(draw, framework, ("broken",), exact=True)
    world.weights |= {name: np.where(value < 0, value - 0.1, value + 0.1) for name, value in world.weights.items()}
    world.model = world.built()
    ids = draw.integers(0, world.vocab - 1, (draw.integer(1, 3), draw.integer(1, 4)))
    objective = embgrad.Logit(draw.integer(0, world.classes - 1))

    def run() -> Any:
        return embgrad.gradients(world.model, ids, objective, check=True)

    text = f"model: {world}\nids={ids.tolist()}\nobjective: {objective!r}\nbroken: its gradient is doubled; check=True"
    return Case("gradients", text, run, None, (embgrad.errors.CertificationError,), [world], [ids], framework=framework)


def _broken_options(draw: Draw, problem: Problem, function: str) -> tuple[str, dict[str, Any], tuple[type, ...]]:
    shape = (*problem.batch.token_batch.shape, problem.world.dim)
    user_errors, raises = drawn_error(draw)
    wide = np.zeros((*shape[:-1], shape[-1] + 1))
    kinds: dict[str, Callable[[], Any]] = {
        "at": lambda: draw.choice(
            ["wrod", "words", "", "word#9", "layer.99", "layer.-99", "layer.x", "#", ":input", "type"]
        ),
        "call": lambda: draw.choice(
            [3, "model", {}, [], raises, lambda model, inputs: nonsense(draw), lambda *_: None]
        ),
        "tokenizer": lambda: draw.choice([lambda text: [1, 2], "bert", 3]),
    }
    if function == "gradients":
        kinds |= {
            "at ": lambda: draw.choice([[], ["word", "word"], 3, ["word", 3], [""], b"word", ["word", "wrod"]]),
            "pads": lambda: draw.choice(["zeros", "Keep", "", 3, None, [], np.array(["keep"])]),
            "batch_size": lambda: draw.choice([0, -1, 1.5, 2.0, "2", True, float("nan"), [1], np.float64(2)]),
            "progress": lambda: draw.choice([3, "yes", [], raises]),
            "override": lambda: draw.choice(
                [
                    3,
                    ["word"],
                    {"wrod": 0.0},
                    {3: 0.0},
                    {"": 0.0},
                    {"word": "loud"},
                    {"word": wide},
                    {"word": raises},
                    {"word": None},
                    {"word": nonsense(draw, numbers=False)},
                    {"word": lambda value: nonsense(draw, numbers=False)},
                ]
            ),
            "add": lambda: draw.choice(
                [
                    3,
                    "word",
                    {"word": wide},
                    {"word": lambda value: None},
                    {"word": raises},
                    {"layer.77": 0.0},
                    {"word": np.full(shape, np.nan)},
                    {"word": lambda value: wide},
                    {"word": nonsense(draw, numbers=False)},
                ]
            ),
            "edit": lambda: draw.choice(
                [
                    3,
                    {"word": 0.0},
                    {"word": "zero"},
                    {"wrod": np.tanh},
                    {"word": raises},
                    {"word": lambda grad: wide},
                    {"word": lambda grad: grad * np.nan},
                    {"word": lambda grad: "loud"},
                ]
            ),
        }
    kind = draw.choice(list(kinds))
    value = kinds[kind]()
    return kind.strip(), {kind.strip(): value}, user_errors
