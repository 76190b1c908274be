"""The model of a call: a small model of the conformance suite with random weights in one framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Final

import numpy as np

from embgrad.backend.registry import backend_named
from tests.fuzz.drawing import Draw
from tests.fuzz.exporting import exported
from tests.fuzz.oracle import POINTS

#: The relative tolerance of a result by the dtype of the model.
TOLERANCE: Final[Mapping[str, float]] = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 0.15, "float16": 0.03}

#: The smallest scale of an error: tiny entries may be rounding errors of larger ones.
FLOOR: Final = 1e-2

#: The smallest number of rows of a table, for lookups by position.
FEWEST_ROWS: Final = 7


@cache
def harness_of(framework: str) -> Any:
    return import_module(f"tests.contract.conformance.harness_{framework}").Harness()


def abilities(framework: str) -> frozenset[str]:
    return backend_named(framework).supports


@dataclass
class World:
    """A model and its construction.

    Attributes:
        weights: the weights that the model holds, as float64.
        graph: True if the model is exported or compiled.
    """

    framework: str
    architecture: str
    weights: dict[str, np.ndarray]
    dtype: str
    frozen: bool = False
    disturbed: bool = False
    graph: bool = False
    model: Any = field(default=None, repr=False)

    @property
    def harness(self) -> Any:
        return harness_of(self.framework)

    @property
    def vocab(self) -> int:
        return len(self.weights["E"])

    @property
    def dim(self) -> int:
        return int(self.weights["E"].shape[1])

    @property
    def classes(self) -> int:
        return {"tied": self.vocab, "named": self.dim}.get(self.architecture, len(self.weights["b"]))

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.dtype]

    def built(self) -> Any:
        model = self.harness.build(self.architecture, self.weights, dtype=self.dtype, frozen=self.frozen)
        if self.disturbed:
            self.harness.disturb(model)
        return exported(self.framework, model) if self.graph else model

    def as_graph(self) -> None:
        self.graph, self.disturbed = True, False
        self.model = self.built()

    def __str__(self) -> str:
        shapes = ", ".join(f"{name} {value.shape}" for name, value in self.weights.items())
        more = "".join(f", {name}" for name in ("frozen", "disturbed", "graph") if getattr(self, name))
        return f"{self.framework}'s harness, architecture {self.architecture!r}, {self.dtype}{more}; weights {shapes}"


def drawn_world(
    draw: Draw,
    framework: str,
    architectures: tuple[str, ...] = tuple(POINTS),
    *,
    exact: bool = False,
    like: Any = None,
    least: int = 1,
) -> World:
    """Return a model.

    Args:
        exact: True for float64.
        least: the smallest number of classes.
        like: a world with the same architecture, weights and dtype.
    """
    harness = harness_of(framework)
    wanted = {"float64": 3.0, "float32": 2.0, "float16": 0.3, "bfloat16": 0.3}
    dtype = draw.weighted({name: wanted[name] for name in harness.precisions})
    dtype = "float64" if exact else dtype if like is None else like.dtype
    architecture = draw.choice(architectures) if like is None else like.architecture
    weights = _weights(draw, max(least, 2 if architecture == "probabilities" else 1)) if like is None else like.weights
    world = World(framework, architecture, _rounded(weights, dtype), dtype, draw.chance(0.15), draw.chance(0.15))
    if world.framework == "tensorflow" and architecture in ("flat", "scaled", "no_lookup"):
        world.disturbed = False  # a plain tf.Module has nothing to disturb
    world.model = world.built()
    return world


def _weights(draw: Draw, least: int) -> dict[str, np.ndarray]:
    vocab, dim, classes = draw.integer(FEWEST_ROWS, 12), draw.integer(2, 5), draw.integer(least, 4)
    shapes = {
        "E": (vocab, dim),
        "E2": (vocab, dim),
        "W": (dim, classes),
        "b": (classes,),
        "W1": (dim, dim),
        "b1": (dim,),
    }
    return {name: draw.normal(*shape, scale=0.7) for name, shape in shapes.items()}


def _rounded(weights: Mapping[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    if dtype == "bfloat16":
        kept = {name: value.astype(np.float32).view(np.uint32) & 0xFFFF0000 for name, value in weights.items()}
        return {name: value.astype(np.uint32).view(np.float32).astype(np.float64) for name, value in kept.items()}
    return {name: value.astype(dtype).astype(np.float64) for name, value in weights.items()}
