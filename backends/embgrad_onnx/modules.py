"""A graph's modules: the scopes in the names of its steps, or else the steps that read a weight."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from embgrad_onnx.graphs import FORMS, Graph, Node, size_of
from embgrad_onnx.scopes import scopes_of
from embgrad_onnx.walk import Source

__all__ = ["PARTS", "Module", "Modules", "modules_of"]

#: Operators that norms consist of beside their scales, those of them that reduce, and the most steps that there may be.
REDUCING: Final = frozenset({"ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare"})
NORMALISING: Final = REDUCING | {"Add", "Cast", "Div", "Mul", "Pow", "Reciprocal", "Sqrt", "Sub"}
MOST_STEPS: Final = 16

#: Operators that ask for a tensor's shape alone.
OF_SHAPES: Final = frozenset({"Shape", "Size"})

#: The ends of weights' names behind the paths of their modules.
PARTS: Final = re.compile(
    r"[._/](weight|kernel|bias|gamma|beta|scale|embeddings?|weight_quantized|(\w+/)?ReadVariableOp)(:\d+)?$"
)

#: Names that an exporter gave to weights that it changed, such as transposed ones.
MADE: Final = re.compile(r"onnx::|_?const|val_|/|\d+$|.*__\d+$", re.I)


@dataclass(frozen=True, eq=False)
class Module:
    """One call of a module, as a set of steps.

    Attributes:
        path: its path.
        kind: the operators in it, which the layers of a stack share.
        nodes: the numbers of its steps.
        entering: the first tensor of real numbers that it takes from outside, other than a mask; None for none.
        leaving: the last of its tensors of real numbers that are used outside.
    """

    path: str
    kind: str
    nodes: frozenset[int]
    entering: str | None
    leaving: str


class Modules:
    """The modules of a graph, and what they hold.

    Args:
        graph: the graph.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._scopes = scopes_of(graph)

    @cached_property
    def _hidden(self) -> frozenset[str]:
        """The tensors that are computed by way of a weight, which masks and positions are not."""
        hidden: set[str] = set()
        for node in self.graph.nodes:
            if not hidden.isdisjoint(node.inputs) or self.graph.weights_of(node):
                hidden.update(node.outputs)
        return frozenset(hidden)

    def table(self, lookup: Node) -> str:
        """Return the path of the module that holds the table of a lookup."""
        around = self._around.get(lookup.number, ())
        return min(reversed(around), key=_length).path if around else _owner([self.graph.lookups[lookup]], "")

    @cached_property
    def owners(self) -> Mapping[str, list[str]]:
        """The paths of the modules that read each weight, in order, by the weights' names."""
        owners: dict[str, dict[str, None]] = defaultdict(dict)
        for node in self.graph.nodes:
            around = self._around.get(node.number, ())
            for weight in self.graph.weights_of(node) if around else ():
                owners[weight][min(reversed(around), key=_length).path] = None
        return {weight: [*paths] for weight, paths in owners.items()}

    @property
    def paths(self) -> list[str]:
        """The paths of the modules and of the tables."""
        tables = [self.table(node) for node in self.graph.lookups]
        return list(dict.fromkeys([*tables, *(module.path for module in self.all)]))

    @cached_property
    def all(self) -> list[Module]:
        """The calls of modules, the outer ones before those inside of them."""
        members: dict[tuple[str, ...], list[Node]] = defaultdict(list)
        for node in self.graph.nodes:
            if not self.graph.fixed.issuperset(node.outputs):
                scope = self._scopes[node.number]
                for depth in range(len(scope)):
                    members[scope[: depth + 1]].append(node)
        calls: dict[tuple[str, ...], list[list[Node]]] = {(): [self.graph.nodes]}
        found: list[tuple[int, Module]] = []
        for around in sorted(members):  # outer modules come first
            outer = [{node.number for node in call} for call in calls[around[:-1]]]
            parts = [[node for node in members[around] if node.number in call] for call in outer]
            calls[around] = [call for part in parts if part for call in self._calls(part)]
            made = (self._module(around[-1], call) for call in calls[around])
            found += [(len(around), module) for module in made if module is not None]
        whole = {module.nodes for _, module in found}
        for path, nodes in self._readers():
            module = self._module(path, nodes)
            if module is not None and module.nodes not in whole:
                found.append((len(self._scopes[nodes[0].number]), module))
        return [module for _, module in sorted(found, key=lambda entry: (-len(entry[1].nodes), entry[0]))]

    @cached_property
    def _around(self) -> Mapping[int, list[Module]]:
        """The modules that contain each step, the outer ones first, by the step's number."""
        around: dict[int, list[Module]] = defaultdict(list)
        for module in self.all:
            for number in module.nodes:
                around[number].append(module)
        return around

    @cached_property
    def inside(self) -> Mapping[Module | None, list[Module | Node]]:
        """The calls and lookups that each call makes itself, in order; those outside of all calls by None."""
        inside: dict[Module | None, list[Module | Node]] = defaultdict(list)
        items: list[Module | Node] = [*self.all, *self.graph.lookups]
        for item in sorted(items, key=self._end):
            around = self._around.get(item.number if isinstance(item, Node) else min(item.nodes), [])
            if isinstance(item, Module):
                around = [outer for outer in around[: around.index(item)] if outer.nodes >= item.nodes]
            inside[min(reversed(around), key=_length, default=None)].append(item)
        return inside

    def _end(self, item: Module | Node) -> int:
        """Return the number of the step that makes the output of a module or a lookup."""
        return item.number if isinstance(item, Node) else self.graph.makers[item.leaving].number

    def _module(self, path: str, nodes: Sequence[Node]) -> Module | None:
        """Return the module of these steps; None where nothing leaves it that could be a point."""
        numbers = frozenset(node.number for node in nodes)
        inside = {name for node in nodes for name in node.outputs}
        taken = [name for node in nodes if node.op not in OF_SHAPES for name in node.inputs]
        entering = [name for name in taken if name not in inside and self.graph.carries(name)]
        enters = next((name for name in entering if name in self._hidden), next(iter(entering), None))
        made = [name for node in nodes for name in node.outputs if self.graph.carries(name)]
        leaves = self._output_of([name for name in made if self._is_used_outside(name, numbers)], nodes)
        if leaves is None:
            return None
        return Module(path, " ".join(node.op for node in nodes), numbers, enters, leaves)

    def _output_of(self, leaving: Sequence[str], nodes: Sequence[Node]) -> str | None:
        """Return the first of the tensors that a module returns: of those that leave it, one from which no other is computed.

        Where the graph returns all of them, they are in the order of its outputs.
        """
        if leaving and all(name in self.graph.outputs for name in leaving):
            return min(leaving, key=self.graph.outputs.index)
        before: set[str] = set()
        for name in reversed(leaving):  # those of which others are computed come before these
            if name not in before:
                before |= self._find_before(name, nodes[0].number)
        return next((name for name in leaving if name not in before), None)

    def _find_before(self, name: str, first: int) -> set[str]:
        """Return the tensors from which another one is computed, by the steps from one on, in the module or outside."""
        before, waiting = set[str](), [name]
        while waiting:
            node = self.graph.makers.get(waiting.pop())
            if node is not None and node.number >= first:
                new = {*node.inputs} - before
                before |= new
                waiting.extend(new)
        return before

    def _is_used_outside(self, name: str, numbers: frozenset[int]) -> bool:
        users = self.graph.users.get(name, ())
        return name in self.graph.outputs or any(
            user.number not in numbers and user.op not in OF_SHAPES for user in users
        )

    def _calls(self, nodes: list[Node]) -> list[list[Node]]:
        """Return the steps of each call of a module that is called several times: each call reads the same weights.

        The calls follow each other, and end with as many steps after the last weight that they read as the last of them does.
        """
        read: dict[str, list[int]] = defaultdict(list)
        for place, node in enumerate(nodes):
            for weight in self.graph.weights_of(node):
                read[weight].append(place)
        count = min(map(len, read.values()), default=1)
        places = [each for each in read.values() if len(each) == count]
        tail = len(nodes) - max((each[-1] for each in places), default=0)
        ends = [max(each[call] for each in places) + tail for call in range(count)] if places else [len(nodes)]
        starts = [min(each[call] for each in places) for call in range(1, count)]
        if any(end > start for end, start in zip(ends, starts, strict=False)):
            return [nodes]
        return [nodes[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def _readers(self) -> Iterator[tuple[str, list[Node]]]:
        """Yield the path and the steps of the modules that no scope shows: steps that read weights, with their biases."""
        chains: list[tuple[list[Node], list[str]]] = []
        ends: dict[str, tuple[int, list[Node]]] = {}  # with the steps after the chain that change the form alone
        for node in self.graph.nodes:
            weights = self.graph.weights_of(node)
            others = [name for name in node.inputs if name not in self.graph.fixed and self.graph.is_floating(name)]
            only = others[0] if len(others) == 1 and len(self.graph.users[others[0]]) == 1 else ""
            if not weights and node.op in FORMS and only in ends:
                number, between = ends.pop(only)
                ends[node.outputs[0]] = number, [*between, node]
            elif weights and only in ends and self._are_added(node, weights):
                number, between = ends.pop(only)
                chains[number][0].extend([*between, node])
                chains[number][1].extend(weights)
                ends[node.outputs[0]] = number, []
            elif weights:
                ends[node.outputs[0]] = len(chains), []
                chains.append(([node], weights))
        scopes = ["".join(self._scopes[nodes[0].number][-1:]) for nodes, _ in chains]
        count = Counter(scopes)
        for (nodes, weights), scope in zip(chains, scopes, strict=True):
            if scope and count[scope] == 1:
                continue
            name = _owner(weights, nodes[-1].proto.name or nodes[-1].outputs[0])
            path = name if name.startswith(scope) else f"{scope}.{name}"
            yield path, [*self._norm_before(nodes), *nodes]

    def _norm_before(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the steps before a scale that make it a norm: they take one tensor, and means of it; none for another module."""
        inside, steps, norm = {node.number for node in nodes}, list[Node](), list[Node]()
        outside = {name for name in nodes[0].inputs if self.graph.carries(name)}
        while nodes[0].op == "Mul" and len(steps) < MOST_STEPS:
            made = [
                node for name in outside if (node := self.graph.makers.get(name)) is not None and self._normalises(node)
            ]
            last = max(made, key=lambda node: node.number, default=None)
            if last is None or any(user.number not in inside for user in self.graph.users[last.outputs[0]]):
                break
            inside.add(last.number)
            steps.insert(0, last)
            outside = (outside - {*last.outputs}) | {name for name in last.inputs if self.graph.carries(name)}
            if len(outside) == 1 and _means(steps) > _means(norm):  # of the centred values, then of those before
                norm = [*steps]
        return norm

    def _normalises(self, node: Node) -> bool:
        return node.op in NORMALISING and not self.graph.weights_of(node)

    def _are_added(self, node: Node, weights: Sequence[str]) -> bool:
        """Return whether a step adds a bias, or scales, so that it ends the module of the step before it."""
        return node.op in ("Add", "Mul") and all(
            size_of(self.graph.tensors[name]) == max(self.graph.shape_of(name)) for name in weights
        )


def modules_of(source: Source) -> Modules:
    """Return the modules of a model's graph, which is read once."""
    return source.outline(lambda: Modules(Graph(source)))


def _means(steps: Iterable[Node]) -> int:
    return sum(node.op in REDUCING for node in steps)


def _length(module: Module) -> int:
    return len(module.nodes)


def _owner(weights: Sequence[str], otherwise: str) -> str:
    """Return the path of the module that holds these weights, by the first name that is not an exporter's own."""
    named = next((name for name in weights if not MADE.match(name)), None)
    return otherwise if named is None else PARTS.sub("", named).replace("/", ".")
