"""Weights of all layers in one array, as loops over layers take them: divided into a weight of each layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embgrad.comparison.recording import HeldWeight, Recording, Tensor, layer_at, layer_spans
from embgrad.model_points.points import OUTPUT

__all__ = ["divide_stacks"]

#: The number of weights that are taken once a layer, from which a stack at the model's root is one of layers.
LEAST_AT_ROOT: Final = 3


@dataclass(frozen=True)
class _Stack:
    """Arrays with an axis of layers.

    Attributes:
        prefix: the beginning of their paths; "" at the model's root.
        length: the number of layers.
        paths: the paths of the arrays.
    """

    prefix: str
    length: int
    paths: frozenset[str]

    def holds(self, path: str) -> bool:
        """Return whether a path is that of a part of each layer."""
        return path in self.paths or (bool(self.prefix) and _is_below(path, self.prefix))

    def name_of(self, path: str, index: int) -> str:
        """Return the path of a part of one layer."""
        return f"{self.prefix}[{index}]{path[len(self.prefix) :]}" if self.prefix else f"{path}[{index}]"


def divide_stacks(recording: Recording) -> Recording:
    """Return a recording in which the weights of each layer, and the points at their products, have names of their own.

    An array is a stack of layers if what it belongs to is called as often as one of its axes is long, and so it is with
    whatever is called as often. In a layer that is called several times a kernel may have as many heads by chance.
    """
    calls: dict[str, list[Tensor]] = defaultdict(list)
    tables = {tensor.path for tensor in recording.tensors.values() if tensor.side is None}
    for tensor in recording.tensors.values():
        if tensor.side == OUTPUT and tensor.path and tensor.path not in tables:
            calls[tensor.path].append(tensor)
    tensors, weights, spans = dict(recording.tensors), list(recording.weights), layer_spans(recording.tensors)
    for stack in _stacks(weights, {path: len(found) for path, found in calls.items()}):
        tensors = {
            key: replace(tensor, path=stack.name_of(tensor.path, tensor.number), number=0)
            if len(calls.get(tensor.path, ())) == stack.length and stack.holds(tensor.path)
            else tensor
            for key, tensor in tensors.items()
        }
        weights = [
            part
            for weight in weights
            for part in (
                _parts(weight, stack, calls.get(weight.module, ()), spans)
                if _path_of(weight) in stack.paths
                else [weight]
            )
        ]
    return replace(recording, tensors=tensors, weights=tuple(weights))


def _stacks(weights: Sequence[HeldWeight], calls: Mapping[str, int]) -> list[_Stack]:
    found: dict[str, _Stack] = {}
    shapes = {_path_of(weight): weight.shape for weight in weights}
    unlike = {calls.get(weight.module, 0) for weight in weights if calls.get(weight.module, 0) not in weight.shape}
    for weight in weights:
        length, path = calls.get(weight.module, 0), _path_of(weight)
        if length < 2 or len(weight.shape) < 3 or length in unlike:
            continue
        below = {
            beginning: [other for other in shapes if _is_below(other, beginning)] for beginning in _beginnings(path)
        }
        prefix = next(beginning for beginning, others in below.items() if all(length in shapes[it] for it in others))
        found.setdefault(prefix, _Stack(prefix, length, frozenset(below[prefix])))
    alone = [stack for stack in found.values() if "." not in stack.prefix and stack.paths == {stack.prefix}]
    if len({stack.length for stack in alone}) == 1 and len(alone) >= LEAST_AT_ROOT:
        length = alone[0].length
        paths = frozenset(path for path, shape in shapes.items() if "." not in path and shape[:1] == (length,))
        return [*(stack for stack in found.values() if stack not in alone), _Stack("", length, paths)]
    return list(found.values())


def _path_of(weight: HeldWeight) -> str:
    """Return a weight's name without what stands before the path of its module, such as "params."."""
    return weight.name[max(weight.name.find(weight.module), 0) :]


def _beginnings(path: str) -> list[str]:
    """Return the paths that contain a weight, the shortest first, and its own."""
    steps = path.split(".")
    return [".".join(steps[:end]) for end in range(1, len(steps) + 1)]


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}.")


def _parts(
    weight: HeldWeight, stack: _Stack, calls: Sequence[Tensor], spans: Mapping[int, tuple[float, float]]
) -> list[HeldWeight]:
    """Return the weights of each layer.

    Args:
        weight: the array of all layers.
        stack: what it belongs to.
        calls: the outputs of what multiplies by it, one for each layer; others where it is no factor of products.
        spans: the times at which each layer starts and ends; none where no layer is a module.
    """
    axis, path = weight.shape.index(stack.length), _path_of(weight)
    head = weight.name.removesuffix(path)
    shape = (*weight.shape[:axis], *weight.shape[axis + 1 :])
    parts = []
    for index in range(stack.length):
        own_call = calls[index] if len(calls) == stack.length else None
        layer = index if weight.layer is None and len(stack.paths) > 1 else weight.layer
        part = HeldWeight(
            head + stack.name_of(path, index),
            stack.name_of(weight.module, index) if stack.holds(weight.module) else weight.module,
            shape,
            _getter(weight, axis, index),
            weight.time if own_call is None else weight.time * own_call.time / calls[0].time,
            layer if own_call is None or not spans else layer_at(spans, own_call.time),
        )
        parts.append(part)
    return parts


def _getter(weight: HeldWeight, axis: int, index: int) -> Callable[[], np.ndarray]:
    return lambda: np.take(weight.get(), index, axis)
