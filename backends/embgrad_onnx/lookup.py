"""Report a pass to its recorder: the lookups by their computed indices, the calls of modules as the graph has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embgrad.backend import PassRecorder
from embgrad_onnx.graphs import Graph, Node
from embgrad_onnx.modules import Module, Modules

__all__ = ["Place", "Record", "indices_of", "tensors_of"]


@dataclass(eq=False)
class _Tensor:
    """A tensor of the graph, which the recorder knows by its identity.

    Attributes:
        shape: its shape; () where it was not computed.
    """

    shape: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """The place of a point in the graph.

    Attributes:
        tensor: the name of its tensor.
        module: the module at whose input or output it is; None at a lookup.
        inside: whether it is the module's input, which the module alone takes.
    """

    tensor: str
    module: Module | None = None
    inside: bool = False


@dataclass
class Record:
    """The places of the points that a recorder requested.

    Attributes:
        places: the places by the points' keys.
    """

    modules: Modules
    recorder: PassRecorder
    places: dict[str, Place] = field(default_factory=dict)

    def replay(self, indices: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Report the pass to the recorder: its lookups, and the calls of modules around them.

        Args:
            indices: the indices of the lookups, by their tensors' names.
            shapes: the shapes of the tensors at points, by name, as far as they are known.

        Raises:
            BatchError: an index is outside its table.
        """
        graph = self.modules.graph
        known: dict[str, _Tensor] = {}

        def tensor(name: str) -> _Tensor:
            return known.setdefault(name, _Tensor(shapes.get(name, ())))

        def report(item: Module | Node) -> None:
            if isinstance(item, Node):
                self._see(item, indices[item.inputs[-1]], tensor)
                return
            entering = None if item.entering is None else tensor(item.entering)
            key = self.recorder.enter(item.path, item.kind, entering, () if entering is None else entering.shape)
            self._keep(key, item.entering, item, inside=True)
            for inner in self.modules.inside[item]:
                report(inner)
            leaving = tensor(item.leaving)
            self._keep(self.recorder.leave(leaving, leaving.shape), item.leaving, item)

        for item in self.modules.inside[None]:
            report(item)
        for node, (numbers, weight) in graph.functions.items():
            shape = graph.shape_of(weight)
            path = next(iter(self.modules.owners.get(weight, ())), weight)
            self.recorder.see_other(node.op, path, indices[numbers], shape, "float32", way="function")

    def _see(self, node: Node, indices: np.ndarray, tensor: Callable[[str], _Tensor]) -> None:
        graph = self.modules.graph
        weight, path = graph.lookups[node], self.modules.table(node)
        shape = graph.shape_of(weight)
        axis = next((each.i for each in node.proto.attribute if each.name == "axis"), 0)
        if len(shape) != 2 or axis or not graph.is_floating(node.outputs[0]):
            dtype = "float32" if graph.is_floating(weight) else "int8"
            self.recorder.see_other(node.op, path, indices, shape, dtype, axis=axis)
            return
        key = self.recorder.see(path, indices, *shape)
        self.recorder.record_output(tensor(node.outputs[0]))
        self._keep(key, node.outputs[0])

    def _keep(self, key: str | None, name: str | None, module: Module | None = None, *, inside: bool = False) -> None:
        if key is not None and name is not None:
            self.places[key] = Place(name, module, inside)


def indices_of(graph: Graph) -> tuple[str, ...]:
    """Return the names of the tensors that are the indices of lookups, or are used as such otherwise."""
    return tuple(
        dict.fromkeys([*(node.inputs[-1] for node in graph.lookups), *(n for n, _ in graph.functions.values())])
    )


def tensors_of(modules: Modules) -> tuple[str, ...]:
    """Return the names of the tensors at the points of modules."""
    borders: list[Any] = [name for module in modules.all for name in (module.entering, module.leaving)]
    return tuple(dict.fromkeys(name for name in borders if name is not None))
