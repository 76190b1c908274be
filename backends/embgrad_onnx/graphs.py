"""A graph's nodes and weights, and its modules: the scopes in the nodes' names, or else the nodes that read a weight."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile
from typing import Any, Final

from embgrad_onnx.importing import import_onnx
from embgrad_onnx.walk import FLOATING, Source, location_of, named_tensors

__all__ = ["PARTS", "Graph", "Module", "Node", "graph_of", "size_of"]

#: The metadata in which PyTorch's newer exporter writes the paths of the modules that a node is in.
NAME_SCOPES: Final = "pkg.torch.onnx.name_scopes"

#: Operators that keep a weight's shape, and those that compute its values in another form.
KEEPING: Final = frozenset({"Cast", "DequantizeLinear", "Identity"})
FORMS: Final = KEEPING | {"Reshape", "Squeeze", "Transpose", "Unsqueeze"}

#: Operators that norms consist of beside their scales, those of them that reduce, and the most steps that there may be.
REDUCING: Final = frozenset({"ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare"})
NORMALISING: Final = REDUCING | {"Add", "Cast", "Div", "Mul", "Pow", "Reciprocal", "Sqrt", "Sub"}
MOST_STEPS: Final = 16

#: Operators that ask for a tensor's shape alone.
OF_SHAPES: Final = frozenset({"Shape", "Size"})

#: The types of tensors that hold whole numbers.
WHOLE: Final = frozenset({6, 7})

#: The number that PyTorch's older exporter adds to the name of a module that is called again.
AGAIN: Final = re.compile(r"_\d+$")

#: The ends of weights' names behind the paths of their modules.
PARTS: Final = re.compile(
    r"[._/](weight|kernel|bias|gamma|beta|scale|embeddings?|weight_quantized|(\w+/)?ReadVariableOp)(:\d+)?$"
)

#: Names that an exporter gave to weights that it changed, such as transposed ones.
MADE: Final = re.compile(r"onnx::|_?const|val_|/|\d+$|.*__\d+$", re.I)

#: Initialisers of more bytes than this hold no shapes, and are left out where types are inferred.
SMALL: Final = 4096


@dataclass(frozen=True, eq=False)
class Node:
    """One step of a graph.

    Attributes:
        number: its number in the order in which the steps are run.
        op: the operator.
        inputs: the names of the tensors that it takes, those that its inner graphs read included.
        outputs: the names of the tensors that it computes.
        proto: the node of the `onnx.GraphProto`.
    """

    number: int
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    proto: Any


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


class Graph:
    """The graph of a model, as far as it can be known without running it.

    Args:
        source: the model's graph and the folder of its weights.

    Attributes:
        nodes: its steps, in an order in which they can be run.
        inputs: the names of what it takes, without the weights.
        outputs: the names of what it returns.
        tensors: the `onnx.TensorProto` of each initialiser and constant, by name.
        scopes: for each step the paths of the modules that it is in, by its name, the outermost first.
    """

    def __init__(self, source: Source) -> None:
        onnx, _ = import_onnx()
        proto = source.proto
        if proto.functions:
            from onnx import inliner

            proto = inliner.inline_local_functions(proto)
        self.proto = proto
        self.tensors = named_tensors(proto)
        self.inputs = [value.name for value in proto.graph.input if value.name not in self.tensors]
        self.outputs = [value.name for value in proto.graph.output]
        self.nodes: list[Node] = []
        for node in proto.graph.node:
            inner = [name for each in node.attribute for name in _taken_inside(each, onnx)]
            taken = tuple(dict.fromkeys([*filter(None, node.input), *inner]))
            made = tuple(filter(None, node.output))
            self.nodes.append(Node(len(self.nodes), node.op_type, taken, made, node))
        self.makers = {name: node for node in self.nodes for name in node.outputs}
        self.users: Mapping[str, list[Node]] = _users(self.nodes)
        self.fixed = self._find_fixed()
        self._types = _types(proto, onnx)
        for node in self.nodes:  # what an operator of another domain returns has real numbers where it takes some
            kinds = [self._types[name] for name in node.inputs if name in self._types]
            kind = next((kind for kind in kinds if kind in FLOATING), None)
            self._types |= {name: kind for name in node.outputs if name not in self._types and kind is not None}
        self.scopes = self._find_scopes()
        if proto.producer_name == "pytorch":
            self.scopes = self._rename_calls()

    def _find_scopes(self) -> list[tuple[str, ...]]:
        """Return by step the paths of the modules that it is in, which PyTorch wrote down, or of which its name is.

        Where an exporter left out those of a step, they are those that the steps before and behind it are in. Where the name of a
        product with a weight does not have the modules that it leads to, it is not known what these take: they are left out.
        """
        written = [_written_scope(node.proto) for node in self.nodes]
        is_spelled = all(scope is None for scope in written)
        if is_spelled:
            names = [node.proto.name for node in self.nodes]
            written = [_spelled_scope(name) for name in _without_numbers(names)]
        unknown: set[str] = set()
        behind, scopes = list(written), list(written)
        for node in reversed(self.nodes):
            if written[node.number] is None:
                users = [user for name in node.outputs for user in self.users.get(name, ())]
                returned = [()] * (not set(self.outputs).isdisjoint(node.outputs))
                behind[node.number] = _common([*returned, *(behind[user.number] or () for user in users)])
        for node in self.nodes:
            if written[node.number] is None:
                makers = [self.makers[name] for name in node.inputs if name in self.makers and name not in self.fixed]
                before = [scopes[maker.number] or () for maker in makers]
                given = [()] * (not set(self.inputs).isdisjoint(node.inputs))
                scopes[node.number] = _common([*given, *before, behind[node.number] or ()])
                matrices = [name for name in self.weights_of(node) if len(self.shape_of(name)) > 1]
                if is_spelled and matrices and scopes[node.number]:
                    unknown.update(scopes[node.number] or (), behind[node.number] or ())
        return [tuple(path for path in scope or () if path not in unknown) for scope in scopes]

    def _rename_calls(self) -> list[tuple[str, ...]]:
        """Return the scopes with the path of a module's first call at its others, to which PyTorch adds a number.

        A path that ends in a number is another module's where it reads other weights.
        """
        read: dict[str, set[str]] = defaultdict(set)
        for node in self.nodes:
            for path in self.scopes[node.number]:
                read[path].update(self.weights_of(node))
        names = {"": ""}
        for outer, path in sorted(
            {pair for scope in self.scopes for pair in pairwise(("", *scope))}, key=lambda pair: len(pair[1])
        ):
            own = path.removeprefix(f"{outer}.")
            known, first = (".".join(filter(None, (names[outer], name))) for name in (own, AGAIN.sub("", own)))
            names[path] = first if first != known and first in read and read[path] <= read[first] else known
        return [tuple(names[path] for path in scope) for scope in self.scopes]

    # Tensors

    def _find_fixed(self) -> frozenset[str]:
        """Return the names of the tensors that do not depend on what the graph takes."""
        fixed = set(self.tensors)
        for node in self.nodes:
            if all(name in fixed for name in node.inputs) and not node.op.startswith("Random"):
                fixed.update(node.outputs)
        return frozenset(fixed)

    def is_floating(self, name: str) -> bool:
        """Return whether a tensor holds real numbers."""
        return self._types.get(name) in FLOATING

    @cached_property
    def _hidden(self) -> frozenset[str]:
        """The tensors that are computed by way of a weight, which masks and positions are not."""
        hidden: set[str] = set()
        for node in self.nodes:
            if not hidden.isdisjoint(node.inputs) or self.weights_of(node):
                hidden.update(node.outputs)
        return frozenset(hidden)

    def carries(self, name: str) -> bool:
        """Return whether a tensor holds real numbers that depend on what the graph takes."""
        return name not in self.fixed and self.is_floating(name)

    def weight(self, name: str, forms: Collection[str] = FORMS) -> str | None:
        """Return the name of the weight whose values a tensor holds, in their form or another; None for another tensor."""
        while name in self.fixed and name not in self.tensors:
            node = self.makers[name]
            if node.op not in forms or not node.inputs:
                return None
            name = node.inputs[0]
        return name if name in self.tensors else None

    def weights_of(self, node: Node) -> list[str]:
        """Return the names of the weights of several real numbers that a step uses beside what depends on the graph's inputs."""
        if not any(name not in self.fixed for name in node.inputs):
            return []
        weights = [self.weight(name) for name in node.inputs if self.is_floating(name)]
        return [name for name in weights if name is not None and size_of(self.tensors[name]) > 1]

    def shape_of(self, weight: str) -> tuple[int, ...]:
        """Return the shape of a weight."""
        return tuple(self.tensors[weight].dims)

    def steps_for(self, names: Iterable[str]) -> list[Node]:
        """Return the steps that compute these tensors, in order."""
        waiting, numbers = list(names), set[int]()
        while waiting:
            node = self.makers.get(waiting.pop())
            if node is not None and node.number not in numbers:
                numbers.add(node.number)
                waiting.extend(node.inputs)
        return [self.nodes[number] for number in sorted(numbers)]

    # Lookups

    @cached_property
    def lookups(self) -> dict[Node, str]:
        """The steps that select rows of a weight by indices that depend on what the graph takes, with the weights' names."""
        gathers = [node for node in self.nodes if node.op == "Gather" and node.inputs[-1] not in self.fixed]
        tables = {node: self.weight(node.inputs[0], KEEPING) for node in gathers}
        return {node: name for node, name in tables.items() if name is not None}

    @cached_property
    def functions(self) -> dict[Node, tuple[str, str]]:
        """The steps that use whole numbers and a matrix otherwise, with the first of both, such as a fused embedding block."""
        uses: dict[Node, tuple[str, str]] = {}
        for node in self.nodes:
            numbers = [name for name in node.inputs if name not in self.fixed and self._types.get(name) in WHOLE]
            matrices = [name for name in self.weights_of(node) if len(self.shape_of(name)) > 1]
            if numbers and matrices and node not in self.lookups:
                uses[node] = numbers[0], matrices[0]
        return uses

    def table(self, lookup: Node) -> str:
        """Return the path of the module that holds the table of a lookup."""
        around = self._around.get(lookup.number, ())
        return min(reversed(around), key=_length).path if around else _owner([self.lookups[lookup]], "")

    @cached_property
    def owners(self) -> Mapping[str, list[str]]:
        """By the weights' names, the paths of the modules that read them, in order."""
        owners: dict[str, dict[str, None]] = defaultdict(dict)
        for node in self.nodes:
            around = self._around.get(node.number, ())
            for weight in self.weights_of(node) if around else ():
                owners[weight][min(reversed(around), key=_length).path] = None
        return {weight: [*paths] for weight, paths in owners.items()}

    # Modules

    @property
    def paths(self) -> list[str]:
        """The paths of the modules and of the tables."""
        tables = [self.table(node) for node in self.lookups]
        return list(dict.fromkeys([*tables, *(module.path for module in self.modules)]))

    @cached_property
    def modules(self) -> list[Module]:
        """The calls of modules, the outer ones before those inside of them."""
        members: dict[tuple[str, ...], list[Node]] = defaultdict(list)
        for node in self.nodes:
            if not self.fixed.issuperset(node.outputs):
                scope = self.scopes[node.number]
                for depth in range(len(scope)):
                    members[scope[: depth + 1]].append(node)
        calls: dict[tuple[str, ...], list[list[Node]]] = {(): [self.nodes]}
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
                found.append((len(self.scopes[nodes[0].number]), module))
        return [module for _, module in sorted(found, key=lambda entry: (-len(entry[1].nodes), entry[0]))]

    @cached_property
    def _around(self) -> Mapping[int, list[Module]]:
        """By a step's number the modules that it is in, the outer ones first."""
        around: dict[int, list[Module]] = defaultdict(list)
        for module in self.modules:
            for number in module.nodes:
                around[number].append(module)
        return around

    @cached_property
    def inside(self) -> Mapping[Module | None, list[Module | Node]]:
        """The calls and lookups that each call makes itself, in order; those outside of all calls by None."""
        inside: dict[Module | None, list[Module | Node]] = defaultdict(list)
        items: list[Module | Node] = [*self.modules, *self.lookups]
        for item in sorted(items, key=self._end):
            around = self._around.get(item.number if isinstance(item, Node) else min(item.nodes), [])
            if isinstance(item, Module):
                around = [outer for outer in around[: around.index(item)] if outer.nodes >= item.nodes]
            inside[min(reversed(around), key=_length, default=None)].append(item)
        return inside

    def _end(self, item: Module | Node) -> int:
        """Return the number of the step that makes the output of a module or a lookup."""
        return item.number if isinstance(item, Node) else self.makers[item.leaving].number

    def _module(self, path: str, nodes: Sequence[Node]) -> Module | None:
        """Return the module of these steps; None where nothing leaves it that could be a point."""
        numbers = frozenset(node.number for node in nodes)
        inside = {name for node in nodes for name in node.outputs}
        taken = [name for node in nodes if node.op not in OF_SHAPES for name in node.inputs]
        entering = [name for name in taken if name not in inside and self.carries(name)]
        enters = next((name for name in entering if name in self._hidden), next(iter(entering), None))
        made = [name for node in nodes for name in node.outputs if self.carries(name)]
        leaves = self._output_of([name for name in made if self._is_used_outside(name, numbers)], nodes)
        if leaves is None:
            return None
        return Module(path, " ".join(node.op for node in nodes), numbers, enters, leaves)

    def _output_of(self, leaving: Sequence[str], nodes: Sequence[Node]) -> str | None:
        """Return the first of the tensors that a module returns: of those that leave it, one from which no other is computed.

        Where the graph returns all of them, they are in the order of its outputs.
        """
        if leaving and all(name in self.outputs for name in leaving):
            return min(leaving, key=self.outputs.index)
        before: set[str] = set()
        for name in reversed(leaving):  # those of which others are computed come before these
            if name not in before and len(leaving) > 1:
                before |= self._find_before(name, nodes[0].number)
        return next((name for name in leaving if name not in before), None)

    def _find_before(self, name: str, first: int) -> set[str]:
        """Return the tensors from which another one is computed, by the steps from one on, in the module or outside."""
        before, waiting = set[str](), [name]
        while waiting:
            node = self.makers.get(waiting.pop())
            if node is not None and node.number >= first:
                new = {*node.inputs} - before
                before |= new
                waiting.extend(new)
        return before

    def _is_used_outside(self, name: str, numbers: frozenset[int]) -> bool:
        users = self.users.get(name, ())
        return name in self.outputs or any(user.number not in numbers and user.op not in OF_SHAPES for user in users)

    def _calls(self, nodes: list[Node]) -> list[list[Node]]:
        """Return the steps of each call of a module that is called several times: each call reads the same weights.

        The calls follow each other, and end with as many steps after the last weight that they read as the last of them does.
        """
        read: dict[str, list[int]] = defaultdict(list)
        for place, node in enumerate(nodes):
            for weight in self.weights_of(node):
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
        for node in self.nodes:
            weights = self.weights_of(node)
            others = [name for name in node.inputs if name not in self.fixed and self.is_floating(name)]
            only = others[0] if len(others) == 1 and len(self.users[others[0]]) == 1 else ""
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
        scopes = ["".join(self.scopes[nodes[0].number][-1:]) for nodes, _ in chains]
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
        outside = {name for name in nodes[0].inputs if self.carries(name)}
        while nodes[0].op == "Mul" and len(steps) < MOST_STEPS:
            made = [node for name in outside if (node := self.makers.get(name)) is not None and self._normalises(node)]
            last = max(made, key=lambda node: node.number, default=None)
            if last is None or any(user.number not in inside for user in self.users[last.outputs[0]]):
                break
            inside.add(last.number)
            steps.insert(0, last)
            outside = (outside - {*last.outputs}) | {name for name in last.inputs if self.carries(name)}
            if len(outside) == 1 and _means(steps) > _means(norm):  # of the centred values, then of those before
                norm = [*steps]
        return norm

    def _normalises(self, node: Node) -> bool:
        return node.op in NORMALISING and not self.weights_of(node)

    def _are_added(self, node: Node, weights: Sequence[str]) -> bool:
        """Return whether a step adds a bias, or scales, so that it ends the module of the step before it."""
        return node.op in ("Add", "Mul") and all(
            size_of(self.tensors[name]) == max(self.shape_of(name)) for name in weights
        )


def graph_of(source: Source) -> Graph:
    """Return the graph of a model, which is read once."""
    return source.graph(lambda: Graph(source))


def _means(steps: Iterable[Node]) -> int:
    return sum(node.op in REDUCING for node in steps)


def _length(module: Module) -> int:
    return len(module.nodes)


def _users(nodes: Iterable[Node]) -> dict[str, list[Node]]:
    users: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        for name in node.inputs:
            users[name].append(node)
    return users


def size_of(tensor: Any) -> int:
    """Return the number of a tensor's entries."""
    size = 1
    for dim in tensor.dims:
        size *= dim
    return size


def _owner(weights: Sequence[str], otherwise: str) -> str:
    """Return the path of the module that holds these weights, by the first name that is not an exporter's own."""
    named = next((name for name in weights if not MADE.match(name)), None)
    return otherwise if named is None else PARTS.sub("", named).replace("/", ".")


def _common(scopes: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the modules that all scopes begin with."""
    same = takewhile(lambda paths: len(set(paths)) == 1, zip(*scopes, strict=False))
    return tuple(paths[0] for paths in same)


def _written_scope(node: Any) -> tuple[str, ...] | None:
    for entry in getattr(node, "metadata_props", ()):
        if entry.key == NAME_SCOPES:
            return tuple(dict.fromkeys(filter(None, ast.literal_eval(entry.value)[:-1])))
    return None


def _without_numbers(names: Sequence[str]) -> Sequence[str]:
    """Return the nodes' names without the number that Keras adds to each layer's name where a model is called again.

    It stands at the outermost one, too. Otherwise a number at the end of a name is that of a layer among others.
    """
    roots = {name.partition("/")[0] for name in names if "/" in name}
    again = AGAIN.search(*roots) if len(roots) == 1 else None
    if again is None:
        return names
    scopes = {name.rpartition("/")[0] for name in names}
    plain = {scope: "/".join(part.removesuffix(again[0]) for part in scope.split("/")) for scope in scopes}
    if len(set(plain.values())) < len(plain):
        return names
    return [f"{plain[name.rpartition('/')[0]]}/{name.rpartition('/')[2]}".lstrip("/") for name in names]


def _spelled_scope(name: str) -> tuple[str, ...] | None:
    if "/" not in name:
        return None
    parts = name.strip("/").split("/")[:-1]
    return tuple(".".join(parts[:length]) for length in range(1, len(parts) + 1))


def _taken_inside(attribute: Any, onnx: Any) -> Iterator[str]:
    """Yield the names of the tensors that the graphs in an attribute take from the graph around them."""
    for graph in (*attribute.graphs, *([attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else ())):
        own = {value.name for value in (*graph.input, *graph.initializer)}
        own.update(name for node in graph.node for name in node.output)
        for node in graph.node:
            yield from (name for name in node.input if name and name not in own)
            for inner in node.attribute:
                yield from (name for name in _taken_inside(inner, onnx) if name not in own)
        yield from (value.name for value in graph.output if value.name not in own)


def _types(proto: Any, onnx: Any) -> dict[str, int]:
    """Return the types of the tensors whose types can be inferred, by name, from the graph without its large weights."""
    light = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    light.graph.name = proto.graph.name
    light.graph.node.extend(proto.graph.node)
    light.graph.output.extend(proto.graph.output)
    heavy = [tensor for tensor in proto.graph.initializer if _is_heavy(tensor)]
    light.graph.initializer.extend(tensor for tensor in proto.graph.initializer if not _is_heavy(tensor))
    named = {tensor.name for tensor in proto.graph.initializer}
    light.graph.input.extend(value for value in proto.graph.input if value.name not in named)
    for tensor in heavy:
        light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    try:
        inferred = onnx.shape_inference.infer_shapes(light).graph
    except Exception:  # an operator of another domain: the operands' types then decide
        inferred = light.graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {name: tensor.data_type for name, tensor in named_tensors(proto).items()}
    return {name: kind for name, kind in types.items() if kind}


def _is_heavy(tensor: Any) -> bool:
    return location_of(tensor) is not None or tensor.ByteSize() > SMALL
