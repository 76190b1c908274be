"""A graph's steps, tensors, weights and lookups, as far as they are known without running it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from embgrad_onnx.importing import import_onnx
from embgrad_onnx.walk import FLOATING, Source, location_of, named_tensors

__all__ = ["FORMS", "Graph", "Node", "Scale", "size_of"]

#: Operators that keep a weight's shape, and those that compute its values in another form.
KEEPING: Final = frozenset({"Cast", "DequantizeLinear", "Identity"})
FORMS: Final = KEEPING | {"Reshape", "Squeeze", "Transpose", "Unsqueeze"}

#: The most steps between a product of whole numbers and that in which it is scaled.
MOST_BEHIND: Final = 3

#: The types of tensors that hold whole numbers.
WHOLE: Final = frozenset({6, 7})

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


@dataclass(frozen=True)
class Scale:
    """The numbers by which a graph scales a weight of whole numbers.

    Attributes:
        steps: the name of the tensor by which they are multiplied: one number, or one for each index along an axis.
        zero: that of what is subtracted first; None for nothing.
        axis: the axis.
    """

    steps: str
    zero: str | None
    axis: int = -1


class Graph:
    """The graph of a model, as far as it can be known without running it.

    Args:
        source: the model's graph and the folder of its weights.

    Attributes:
        nodes: its steps, in an order in which they can be run.
        inputs: the names of what it takes, without the weights.
        outputs: the names of what it returns.
        tensors: the `onnx.TensorProto` of each initialiser and constant, by name.
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

    @cached_property
    def scales(self) -> dict[str, Scale]:
        """The weights of whole numbers that the graph scales, before or behind a lookup in them or a product with them."""
        found = dict(filter(None, map(self._find_scale, self.nodes)))
        held = self.tensors.keys()
        return {name: it for name, it in found.items() if {name, it.steps, it.zero or name} <= held}

    def _find_scale(self, node: Node) -> tuple[str, Scale] | None:
        """Return the name of what a step scales, or multiplies by numbers that are scaled, with the scale; None for neither."""
        given = dict(enumerate(node.proto.input))
        attributes = {each.name: each.i for each in node.proto.attribute}
        if node.op == "MatMulInteger":
            behind = self._steps_behind(node)
            return None if behind is None else (given[1], Scale(behind, given.get(3) or None))
        if node.op != "DequantizeLinear" or attributes.get("block_size"):
            return None
        name, steps = given[0], given[1]
        maker = self.makers.get(name)
        if maker is not None and maker.op == "Gather":
            if (
                steps not in self.tensors or size_of(self.tensors[steps]) > 1
            ):  # along an axis of the rows, not of the table
                return None
            name = maker.proto.input[0]
        return name, Scale(steps, given.get(2) or None, attributes.get("axis", 1))

    def _steps_behind(self, product: Node) -> str | None:
        """Return the weight by which a product of whole numbers is multiplied, with the steps of what depends on the inputs."""
        name = product.outputs[0]
        for _ in range(MOST_BEHIND):
            users = self.users.get(name, [])
            if len(users) != 1:
                return None
            (user,) = users
            makers = [self.makers.get(other) for other in user.inputs if other != name]
            factors = [other for maker in makers if maker is not None and maker.op == "Mul" for other in maker.inputs]
            steps = [other for other in factors if other in self.tensors and self.is_floating(other)]
            if user.op == "Mul" and steps:
                return steps[0]
            name = user.outputs[0]
        return None

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
    light.graph.node.extend(proto.graph.node)
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
    values = (*inferred.input, *inferred.value_info)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    types |= {name: tensor.data_type for name, tensor in named_tensors(proto).items()}
    return {name: kind for name, kind in types.items() if kind}


def _is_heavy(tensor: Any) -> bool:
    return location_of(tensor) is not None or tensor.ByteSize() > SMALL
