"""Change values at points: the graph is run in stretches, each up to the next tensor that is changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad_onnx.graphs import Graph, Node
from embgrad_onnx.importing import import_onnx
from embgrad_onnx.lookup import Place
from embgrad_onnx.sessions import make_session, run_session
from embgrad_onnx.walk import Source

__all__ = ["Stretches"]

#: The number of a user of a tensor that is in no module, such as the caller.
OUTSIDE: Final = -1


class Stretches:
    """One run of a graph in which values are changed at places.

    A tensor may be at several places, at the output of a module and at the inputs of others. Each changes the version that it
    sees. As at a module, an input that was changed is seen by the module alone, and an output by all steps outside.

    Args:
        source: the model.
        graph: its graph.
        places: the places by the points' keys.
        change: takes a point's key and the value there, and returns that with which the graph continues.
        names: the tensors to return.

    Attributes:
        values: the values at the places by key, after the changes.
    """

    def __init__(
        self,
        source: Source,
        graph: Graph,
        places: Mapping[str, Place],
        change: Callable[[str, Any], Any],
        names: Sequence[str],
    ) -> None:
        self._source = source
        self._graph = graph
        self._change = change
        self._names = tuple(names)
        self._places: dict[str, list[tuple[str, Place]]] = defaultdict(list)
        for key, place in sorted(places.items(), key=_in_order):
            self._places[place.tensor].append((key, place))
        self._sessions: dict[int, Any] = source.session(("changed", tuple(sorted(places)), self._names), dict)
        self._versions: dict[str, Any] = {}
        self.values: dict[str, Any] = {}

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Return the requested tensors by name, as the caller of the graph gets them."""
        self._versions = {**feeds}
        for name in feeds:
            self._change_at(name)
        needed = self._graph.steps_for([*self._names, *self._places])
        steps = [node for node in needed if not self._graph.fixed.issuperset(node.outputs)]
        for number, stretch in enumerate(stretches := self._cut(steps)):
            self._run_stretch(number, stretch, [node for later in stretches[number + 1 :] for node in later])
        fixed = set(self._names) & self._graph.tensors.keys()
        onnx, _ = import_onnx()
        constants = {name: onnx.numpy_helper.to_array(self._graph.tensors[name]) for name in fixed}
        return {name: constants[name] if name in fixed else self._read(OUTSIDE, name) for name in self._names}

    def _cut(self, steps: Sequence[Node]) -> list[list[Node]]:
        """Return the steps in stretches, which end where a tensor is changed. A step with an inner graph is one by itself."""
        stretches: list[list[Node]] = [[]]
        for node in steps:
            if self._reads_inside(node):
                stretches.append([])
            stretches[-1].append(node)
            if self._reads_inside(node) or not self._places.keys().isdisjoint(node.outputs):
                stretches.append([])
        return [stretch for stretch in stretches if stretch]

    def _reads_inside(self, node: Node) -> bool:
        """Return whether a graph inside a step takes a tensor that is changed, whose name there stays as it is."""
        return not self._places.keys().isdisjoint(set(node.inputs) - set(node.proto.input))

    def _run_stretch(self, number: int, stretch: Sequence[Node], later: Sequence[Node]) -> None:
        made = {name for node in stretch for name in node.outputs}
        wanted = {*self._names, *self._places, *(name for node in later for name in node.inputs)}
        names = [name for node in stretch for name in node.outputs if name in wanted]
        taken = {
            self._spell_input(name, node): self._versions[self._version(name, node.number)]
            for node in stretch
            for name in node.inputs
            if name not in made and name not in self._graph.fixed
        }
        if number not in self._sessions:
            self._sessions[number] = self._session(stretch, names, taken)
        self._versions.update(run_session(self._sessions[number], taken))
        for name in names:
            self._change_at(name)

    def _session(self, stretch: Sequence[Node], names: Sequence[str], taken: Mapping[str, np.ndarray]) -> Any:
        """Return a session of a stretch, whose steps take the versions that they see by these versions' names."""
        onnx, _ = import_onnx()
        steps = []
        for node in stretch:
            proto = onnx.NodeProto()
            proto.CopyFrom(node.proto)
            proto.input[:] = [self._spell_input(name, node) for name in node.proto.input]
            steps.append(
                replace(node, proto=proto, inputs=tuple(self._spell_input(name, node) for name in node.inputs))
            )
        constants = {name for node in stretch for name in node.inputs if name in self._graph.fixed}
        types = {name: onnx.helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype) for name, value in taken.items()}
        nodes = [*self._graph.steps_for(constants), *steps]
        return make_session(self._source, self._graph, nodes, names, taken=types)

    def _spell_input(self, name: str, node: Node) -> str:
        """Return the name by which a step of a stretch takes the version of a tensor that it sees."""
        return name if name not in self._places or self._reads_inside(node) else self._version(name, node.number)

    def _change_at(self, name: str) -> None:
        """Compute the versions of a tensor."""
        for count, (key, place) in enumerate(self._places.get(name, ())):
            user = min(place.module.nodes) if place.inside and place.module is not None else OUTSIDE
            seen = self._versions[self._version(name, user, count)]
            self.values[key] = self._versions[_spell(name, count + 1)] = self._change(key, seen)

    def _read(self, user: int, name: str) -> Any:
        return self._versions[self._version(name, user)]

    def _version(self, name: str, user: int, count: int | None = None) -> str:
        """Return the name of the version of a tensor that a step sees.

        Args:
            user: the step's number; `OUTSIDE` for the caller.
            count: the number of places at which it has been changed so far; None for all.
        """
        places = self._places.get(name, [])[:count]
        seen = [
            number
            for number, (_, place) in enumerate(places, 1)
            if place.module is None or (user in place.module.nodes) == place.inside
        ]
        return _spell(name, max(seen, default=0))


def _spell(name: str, version: int) -> str:
    return f"{name}:embgrad_{version}" if version else name


def _in_order(item: tuple[str, Place]) -> tuple[bool, int]:
    """Return the order in which a tensor is at places: a lookup, outputs of inner modules first, inputs of outer ones first."""
    place = item[1]
    length = 0 if place.module is None else len(place.module.nodes)
    return place.inside, -length if place.inside else length


def changed_places(places: Mapping[str, Place], changed: Iterable[str]) -> dict[str, Place]:
    """Return the places whose tensors are changed at one of them."""
    tensors = {places[key].tensor for key in changed if key in places}
    return {key: place for key, place in places.items() if place.tensor in tensors}
