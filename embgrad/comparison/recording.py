"""Recordings of a forward pass: values and gradients at its points, the weights and the layers of a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Final, Protocol

import numpy as np

from embgrad.comparison.settings import Declared
from embgrad.errors import EmbgradError
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.points import INPUT, OUTPUT, Point
from embgrad.model_points.roles import LAYER

__all__ = [
    "FINAL",
    "HeldWeight",
    "Recording",
    "Running",
    "Tensor",
    "caller_of",
    "contains",
    "ends_of",
    "layer_at",
    "layer_spans",
    "read_once",
]

#: The key of the model's own output.
FINAL: Final = "output"

#: The most entries of a weight that is read once.
READ_ONCE: Final = 65536

#: The marks between the path of a module and that of a module inside it.
MARKS: Final = (".", "/")


class Running(Protocol):
    """A model that can be run again, see `embgrad.comparison.live_side`."""

    bound: Any
    batch: TokenBatch
    points: Mapping[str, Point]
    outputs: tuple[str | None, ...]

    @property
    def can_be_led(self) -> bool:
        """Return whether values can be put in at the points of a pass."""

    def record_in_order(self) -> Recording | None:
        """Return a recording in the batch's order, whichever ids are looked up; None where any recording is."""

    def read_output(self) -> Tensor | None:
        """Return the output of the first of the names `outputs`; None where there is none."""

    def led(
        self,
        values: Mapping[str, Callable[[np.ndarray], np.ndarray]],
        gradients: Mapping[str, Callable[[np.ndarray], np.ndarray]],
    ) -> dict[str, np.ndarray]:
        """Return the values of the output of a pass with changed values and gradients."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """The values that a pass had at a point.

    Attributes:
        key: the point's key in the model.
        path: the path of the module or table.
        side: "input" or "output" of a module; None at a lookup.
        number: how many calls of the same module came before.
        roles: the point's roles, such as "layer.0".
        time: when its tensor existed; infinite for the model's output.
        values: float32 or float64, (example, position, feature); of (example, 1, feature) where it has no positions.
        gradient: the objective's gradient, of the same shape; None where there is none.
        ids: the indices that a lookup took, (example, position); None at a module.
    """

    key: str
    path: str
    side: str | None
    number: int
    roles: tuple[str, ...]
    time: float
    values: np.ndarray
    gradient: np.ndarray | None = None
    ids: np.ndarray | None = None

    @property
    def features(self) -> int:
        """The number of features at each position."""
        return int(self.values.shape[-1])

    @property
    def whole_gradient(self) -> np.ndarray | None:
        """The gradient by every use of the tensor; None at a module's input, where only the module's own use counts.

        That is another one where a model has a fused projection in place of several.
        """
        return None if self.side == INPUT else self.gradient


@dataclass(frozen=True, eq=False)
class HeldWeight:
    """A weight, with its place in the forward pass.

    Attributes:
        name: its name in the framework's spelling.
        module: the path of the innermost module that the pass called and that contains it; "" for the model itself.
        shape: its shape.
        get: returns its values, float32 or float64.
        time: when its module ended first, as a share of the whole pass; 1 where the pass did not call it.
        layer: the index of the layer that contains it; None outside of the layers.
    """

    name: str
    module: str
    shape: tuple[int, ...]
    get: Callable[[], np.ndarray]
    time: float = 1.0
    layer: int | None = None


def read_once(get: Callable[[], np.ndarray], shape: Sequence[int]) -> Callable[[], np.ndarray]:
    """Return a function that reads a weight's values, once if they are few.

    Vectors are compared with many others, and to read a weight of a model takes longer than to compare it: no other thread may
    run the model meanwhile, so that all of its parts are visited.
    """
    if math.prod(shape) > READ_ONCE:
        return get

    @cache
    def kept() -> np.ndarray:
        values: np.ndarray = get().view()
        values.setflags(write=False)
        return values

    return kept


@dataclass(frozen=True, eq=False)
class Recording:
    """The record of one side of a comparison.

    Attributes:
        label: a description, such as "torch LlamaForCausalLM".
        tensors: the values at its points, by key, in the order of the pass.
        weights: its weights.
        batch: the batch that it ran on.
        dtype: the name of the dtype in which it computed.
        objective: the objective's values, (example,); None without an objective.
        size: the magnitude of the terms whose sums these values are, see `embgrad.backend.Response`; 0 where it is not known.
        live: the model, which can be run again; None for a folder.
        failure: the reason why there are no gradients although an objective was passed; None where there is none.
        settings: the settings that its configuration declares.
        notes: what is not known of it.
    """

    label: str
    tensors: Mapping[str, Tensor]
    weights: tuple[HeldWeight, ...]
    batch: TokenBatch
    dtype: str
    objective: np.ndarray | None = None
    size: float = 0.0
    live: Running | None = None
    failure: EmbgradError | None = None
    settings: Mapping[str, Declared] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def by_role(self, role: str) -> Tensor | None:
        """Return the tensor with a role; None where there is none."""
        return next((tensor for tensor in self.tensors.values() if role in tensor.roles), None)

    def of_module(self, path: str, side: str | None, number: int = 0) -> Tensor | None:
        """Return the tensor at a side of a call of a module, or for no side that of a lookup; None where there is none."""
        return self._by_call.get((path, side, number))

    @cached_property
    def _by_call(self) -> Mapping[tuple[str, str | None, int], Tensor]:
        calls = (tensor for tensor in self.tensors.values() if tensor.key != FINAL)
        return {(tensor.path, tensor.side, tensor.number): tensor for tensor in calls}


def ends_of(points: Iterable[Point | Tensor]) -> dict[str, float]:
    """Return when each module ended first, and each table was read first, by its path."""
    ended: dict[str, float] = {}
    for point in points:
        if point.side != INPUT and point.key != FINAL:
            ended.setdefault(point.path, float(point.time))
    return ended


def contains(path: str, inner: str) -> bool:
    """Return whether a module is the other one, or contains it."""
    return not path or inner == path or any(inner.startswith(path + mark) for mark in MARKS)


def caller_of(path: str, ended: Mapping[str, float]) -> str:
    """Return the path of the innermost called module that contains a path; "" for the model itself.

    A saved model's scopes have a prefix before the paths that its weights' names contain.
    """
    scopes = [] if path in ended else [scope for scope in ended if path and scope.endswith(f"/{path}")]
    if scopes:
        return min(scopes, key=len)
    while path and path not in ended:
        path = path[: max(path.rfind(mark) for mark in MARKS)] if any(mark in path for mark in MARKS) else ""
    return path


def layer_spans(points: Mapping[str, Point | Tensor]) -> dict[int, tuple[float, float]]:
    """Return the times at which each layer starts and ends, by the roles of points, which are given by key.

    A layer without an input starts where the one before it ends, and never where there is none.
    """
    spans: dict[int, tuple[float, float]] = {}
    for key, point in points.items():
        for role in point.roles:
            number = role.removeprefix(f"{LAYER}.")
            if role != number and number.isdigit():
                entry = points.get(key.replace(f":{OUTPUT}", f":{INPUT}"))
                _, before = spans.get(int(number) - 1, (None, float("inf")))
                start = float(entry.time) if entry is not None and entry is not point else before
                spans[int(number)] = (start, float(point.time))
    return spans


def layer_at(spans: Mapping[int, tuple[float, float]], time: float) -> int | None:
    """Return the layer in which a time lies; None outside of the layers."""
    return next((number for number, (start, end) in spans.items() if start <= time <= end), None)
