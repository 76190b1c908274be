"""Models that nobody foresaw: at every point that can be named the gradient is that of finite differences."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend.registry import backend_named
from embgrad.testing.reference import ReferenceModel, Tensor, lookup, pull_back

DIM, CLASSES = 3, 2
IDS = np.array([[3, 5], [2, 6], [3, 1]])
OBJECTIVE = embgrad.Projection(np.random.default_rng(9).normal(size=CLASSES))
WEIGHTS = {
    name: np.random.default_rng(seed).normal(size=shape)
    for seed, (name, shape) in enumerate(
        {"E": (9, DIM), "F": (9, DIM), "W": (DIM, DIM), "V": (DIM, DIM), "H": (DIM, CLASSES)}.items()
    )
}
Pair = namedtuple("Pair", ["left", "right"])  # as frameworks give


@dataclass
class Output:
    ids: Any
    hidden: Tensor
    all_hidden: tuple[Tensor, ...] = ()


def linear(model: Any, name: str) -> Callable[[Tensor], Tensor]:
    def layer(x: Tensor) -> Tensor:
        return (x @ model[name]).tanh()

    return layer


def head(model: Any, x: Tensor) -> Tensor:
    return x.mean(1) @ model["H"]


def nested(model: Any, input_ids: np.ndarray) -> Tensor:
    """Nest modules that share tensors."""

    def inner(x: Tensor) -> Tensor:
        return model.module("outer.middle.inner", linear(model, "W"), x) + x

    def middle(x: Tensor) -> tuple[Tensor, Tensor]:
        y = model.module("outer.middle.again", inner, x)
        return y, x

    def outer(ids: np.ndarray) -> list[Any]:
        x = model.module("outer.embedding", lambda ids: lookup(model["E"], ids), ids)
        y, same = model.module("outer.middle", middle, x)
        return [None, {"y": y, "x": same}]

    actual = model.module("outer", outer, input_ids)[1]
    return head(model, actual["y"] + actual["x"] * actual["x"])


def recursive(model: Any, input_ids: np.ndarray) -> Tensor:
    """Call a module that calls itself, so that calls of one path are nested."""

    def body(x: Tensor, depth: int) -> Tensor:
        y = (x @ model["W"]).tanh()
        return y if depth == 0 else model.module("tree", body, y, depth - 1) + x

    return head(model, model.module("tree", body, lookup(model["E"], input_ids), 3))


def interleaved(model: Any, input_ids: np.ndarray) -> Tensor:
    """Call two modules in turns."""
    x = lookup(model["E"], input_ids)
    for path in ("b.1", "a.0", "b.1", "b.1", "a.0"):
        x = model.module(path, linear(model, "W" if path == "a.0" else "V"), x) + x
    return head(model, x)


def structured(model: Any, input_ids: np.ndarray) -> Tensor:
    """Pass and return named tuples, data classes and dicts."""

    def embed(ids: np.ndarray) -> Pair:
        return Pair({"ids": ids}, lookup(model["E"], ids))

    def encode(given: Pair) -> Output:
        x = given.right
        return Output(given.left, (x @ model["W"]).tanh(), (x, x * 2.0))

    def merge(output: Output, scale: float) -> dict[str, Any]:
        return {"none": None, "deep": ([output.hidden * scale], output.all_hidden)}

    merged = model.module("merge", merge, model.module("encode", encode, model.module("embed", embed, input_ids)), 3.0)
    (hidden,), (x, double) = merged["deep"]
    return head(model, hidden + x * double)


def unchanged(model: Any, input_ids: np.ndarray) -> Tensor:
    """Call modules that return their argument, one without an argument, and one that returns None."""
    x = lookup(model["E"], input_ids)
    x = model.module("drop", lambda x: x, model.module("drop", lambda x: x, x))
    y = model.module("make", lambda: lookup(model["F"], np.arange(2)))
    model.module("log", lambda x: None, x)
    return head(model, (x + y).tanh())


def recovering(model: Any, input_ids: np.ndarray) -> Tensor:
    """Call a module that fails, and another in its place."""

    def fails(x: Tensor) -> Tensor:
        model.module("fast.inner", linear(model, "V"), x)
        raise NotImplementedError

    x = lookup(model["E"], input_ids)
    try:
        x = model.module("fast", fails, x)
    except NotImplementedError:
        x = model.module("slow", linear(model, "W"), x)
    return head(model, model.module("last", linear(model, "V"), x))


def reshaping(model: Any, input_ids: np.ndarray) -> Tensor:
    """Pass tensors with any number of axes."""
    flat = model.module("flat", linear(model, "W"), lookup(model["E"], input_ids.reshape(-1)))
    heads = model.module("heads", lambda x: x.reshape(*input_ids.shape, DIM, 1) * 2.0, flat)
    turned = model.module("turned", lambda x: x.swap(0, 1).tanh(), heads.reshape(*input_ids.shape, DIM))
    total = model.module("total", lambda x: (x * x).sum(0).sum(0).sum(0), turned)
    pooled = model.module("pooled", lambda x: x.sum(0), turned)
    return (pooled * (total * 0.1).tanh()) @ model["H"]


def several(model: Any, input_ids: np.ndarray) -> Tensor:
    """Look up the ids, their neighbours, constant rows and no rows."""
    x = lookup(model["E"], input_ids) * lookup(model["F"], (input_ids + 1) % 9)
    own = lookup(model["F"], np.array([[4], [0], [8]])) + lookup(model["F"], np.array(7))
    none = lookup(model["F"], np.zeros((0, 3), int))
    assert none.shape == (0, 3, DIM)
    return head(model, x + own)


MODELS = [nested, recursive, interleaved, structured, unchanged, recovering, reshaping, several]


def cases() -> Iterator[tuple[Any, str]]:
    """Yield every point of every model that the objective depends on."""
    for forward in MODELS:
        for point in backend_named("reference").points(build(forward), embgrad.TokenBatch(IDS)):
            if 0 not in point.shape and not point.key.startswith(("fast", "log")):
                yield pytest.param(forward, point.key, id=f"{forward.__name__}-{point.key}")


def build(forward: Any) -> ReferenceModel:
    return ReferenceModel(forward, WEIGHTS)


def gradients(forward: Any, key: str, **options: Any) -> embgrad.results.EmbeddingGradients:
    return embgrad.gradients(build(forward), IDS, OBJECTIVE, at=key, **options)


@pytest.mark.parametrize(("forward", "key"), list(cases()))
def test_every_point(forward: Any, key: str) -> None:
    result = gradients(forward, key)
    assert np.isfinite(result.values).all()
    direction = np.random.default_rng(1).normal(size=result.shape)
    h = 1e-4

    def along(step: float) -> float:
        return float(gradients(forward, key, add={key: step * direction}).objective.sum())

    slope = (8 * (along(h) - along(-h)) - (along(2 * h) - along(-2 * h))) / (12 * h)
    np.testing.assert_allclose((result.values * direction).sum(), slope, atol=1e-8)

    moved = result.activations + 0.1 * direction
    overridden, added = (
        gradients(forward, key, override={key: moved}),
        gradients(forward, key, add={key: 0.1 * direction}),
    )
    np.testing.assert_array_equal(overridden.activations, moved)
    np.testing.assert_allclose(overridden.objective, added.objective, atol=1e-14)
    np.testing.assert_allclose(overridden.values, added.values, atol=1e-14)

    edited = gradients(forward, key, edit={key: lambda grad: -2 * grad})
    np.testing.assert_allclose(edited.before, result.values, atol=1e-15)
    np.testing.assert_allclose(edited.values, -2 * result.values, atol=1e-14)


@pytest.mark.parametrize(("forward", "key"), list(cases()))
def test_every_point_is_certified_and_captured(forward: Any, key: str) -> None:
    result = gradients(forward, key, check=True)
    assert all(slope.holds for slope in result.certificate.slopes)
    built = build(forward)
    built.modules = tuple({point.path for point in embgrad.points(built, IDS)})
    with embgrad.capture(built, at=key) as tap:
        logits = built(IDS)
        _, cotangent = OBJECTIVE.evaluate(logits.value, embgrad.TokenBatch(IDS))
        pull_back([(logits, cotangent)], list(built.parameters.values()))
    np.testing.assert_allclose(tap.steps[0].values, result.values, atol=1e-15)
    np.testing.assert_array_equal(tap.steps[0].activations, result.activations)


@pytest.mark.parametrize("name", ["fast", "fast.inner", "log", "log:input"])
def test_points_on_dead_branches_have_no_gradient(name: str) -> None:
    forward = recovering if name.startswith("fast") else unchanged
    known = embgrad.errors.UnknownPointError if name in ("fast", "log") else embgrad.errors.NoGradientError
    with pytest.raises(known, match=rf"'{name}'"):
        embgrad.gradients(build(forward), IDS, OBJECTIVE, at=name)


def test_the_input_of_a_failed_call_has_no_gradient_and_no_effect() -> None:
    with pytest.raises(embgrad.errors.NoGradientError, match="'fast:input'"):
        gradients(recovering, "fast:input")
    changed = gradients(recovering, "word", add={"fast:input": 7.0})
    np.testing.assert_array_equal(changed.values, gradients(recovering, "word").values)
