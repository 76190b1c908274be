"""The price of a point beside the same gradients by hand, in each framework: see the modules `points_*`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any, Final

import numpy as np

import embgrad
from tests.benchmarks.cases import drawn_bert
from tests.benchmarks.measuring import MOST_DISTANCE, distance, in_turns
from tests.benchmarks.way import followed

#: The points of each call, in the order in which a model reaches them.
POINTS: Final = (("word",), ("embeddings",), ("layer.0",), ("layer.-1",), ("word", "layer.0", "layer.-1"))

#: The rows of the word tables.
VOCAB: Final = 3000

#: The objective of an encoder, the sum of its pooled output.
POOLED: Final = embgrad.Sum(output="pooled")

#: By name what is priced: the framework, the module that builds it, and Keras's backend.
PRICED: Final[Mapping[str, tuple[str, str, str | None]]] = {
    "PyTorch": ("torch", "points_torch", None),
    "PyTorch, GPT-2": ("torch", "points_torch", None),
    "PyTorch, T5": ("torch", "points_torch", None),
    "TensorFlow, Keras 2": ("tensorflow", "points_tensorflow", None),
    "Gluon": ("gluon", "points_gluon", None),
    "JAX": ("jax", "points_jax", None),
    "JAX, compile=True": ("jax", "points_jax", None),
    "Keras 3 on PyTorch": ("torch", "points_keras", "torch"),
    "Keras 3 on TensorFlow": ("tensorflow", "points_keras", "tensorflow"),
    "Keras 3 on JAX": ("jax", "points_keras", "jax"),
}

#: Those that are no encoders.
LANGUAGE_MODELS: Final = ("PyTorch, GPT-2", "PyTorch, T5")

Gradients = Callable[[], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Priced:
    """A model whose points are priced.

    Attributes:
        batch: returns a batch of examples and positions.
        by_hand: returns code by hand for a batch and points, which returns the gradients by point.
        forward: the code of the model's own forward pass.
        options: further arguments of `gradients`.
    """

    model: Any
    batch: Callable[[int, int], embgrad.TokenBatch]
    objective: embgrad.Objective
    by_hand: Callable[[embgrad.TokenBatch, Sequence[str]], Gradients]
    forward: CodeType
    options: Mapping[str, Any] = field(default_factory=dict)


def prices(
    mode: str, layers: int, dim: int, sizes: Sequence[tuple[int, int]], seconds: float, *, points: Any = POINTS
) -> list[dict[str, Any]]:
    """Return the times of `gradients` and of code by hand for each size and each call's points, in seconds."""
    module = importlib.import_module(f"tests.benchmarks.{PRICED[mode][1]}")
    priced: Priced = module.MODES[mode](layers, dim)
    rows = []
    for (examples, positions), at in [(size, at) for size in sizes for at in points]:
        batch = priced.batch(examples, positions)
        functions = {"by hand": priced.by_hand(batch, at), "gradients": _gradients(priced, batch, at)}
        expected, actual = functions["by hand"](), functions["gradients"]()
        for point in at:
            if (apart := distance(actual[point].values, expected[point])) > MOST_DISTANCE:
                raise RuntimeError(f"embgrad.gradients at {point!r} is {apart:.1e} from code by hand")
        passes = len(followed(functions["gradients"], priced.model, priced.forward, lambda _: False).stacks)
        about = {"mode": f"{mode}, {layers} × {dim}", "what": ", ".join(at)}
        about |= {"examples": examples, "positions": positions, "passes": passes}
        rows.append({**about, **in_turns(functions, seconds)})
    return rows


def _gradients(priced: Priced, batch: embgrad.TokenBatch, points: Sequence[str]) -> Callable[[], Mapping[str, Any]]:
    return lambda: embgrad.gradients(priced.model, batch, priced.objective, at=list(points), **priced.options)


def loaded_bert(framework: str, layers: int, dim: int) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return embgrad.zoo.load_bert(drawn_bert(Path(folder) / "bert", layers=layers, dim=dim, vocab=VOCAB), framework)


def texts(examples: int, positions: int) -> embgrad.TokenBatch:
    """Return a batch with a mask and types."""
    ids = drawn_ids(examples, positions)
    return embgrad.TokenBatch(ids, np.ones(ids.shape), np.zeros(ids.shape))


def drawn_ids(examples: int, positions: int) -> np.ndarray:
    return np.random.default_rng(0).integers(1, VOCAB, (examples, positions))


def code_of(function: Any) -> CodeType:
    """Return the code of a method that may be wrapped."""
    code: CodeType = inspect.unwrap(function).__code__
    return code


@contextlib.contextmanager
def replaced(layers: Mapping[str, Any], change: Callable[[str, Any], Any]) -> Iterator[None]:
    """Let a function of the point change the first output of each of Keras's layers, while the context is open."""

    def changed(point: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def own(*args: Any, **kwargs: Any) -> Any:
            output = call(*args, **kwargs)
            if isinstance(output, tuple):
                return (change(point, output[0]), *output[1:])
            return change(point, output)

        return own

    for point, layer in layers.items():
        layer.call = changed(point, layer.call)
    try:
        yield
    finally:
        for layer in layers.values():
            del layer.call
