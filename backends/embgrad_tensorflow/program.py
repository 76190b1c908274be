"""Turns a compiled function's graph into a list of operations that can be run one by one, calls written out."""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import execute
from tensorflow.python.framework import op_def_registry

from embgrad_tensorflow.customgradient import CustomGradient
from embgrad_tensorflow.walk import is_saved

__all__ = ["ClosedGraphError", "Program", "Step", "build", "tensor_name"]

#: Operations that call a function; it is written out in their place.
CALLS: Final = ("PartitionedCall", "StatefulPartitionedCall")

#: Operations that choose between functions or repeat them, with the attributes that name those.
CONTROL: Final[Mapping[str, tuple[str, ...]]] = {
    "If": ("then_branch", "else_branch"),
    "StatelessIf": ("then_branch", "else_branch"),
    "Case": ("branches",),
    "StatelessCase": ("branches",),
    "While": ("cond", "body"),
    "StatelessWhile": ("cond", "body"),
}

#: Operations that mean something only where a graph is run as a whole: TensorFlow 1's control flow and variables.
GRAPH_ONLY: Final = frozenset(
    {
        *("Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch"),
        *("RefEnter", "RefExit", "RefMerge", "RefNextIteration", "RefSwitch", "Variable", "VariableV2"),
    }
)

#: Operations that count as stateful and change nothing.
READS: Final = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp", "VarIsInitializedOp"})

#: A name scope that says only that a function was called.
CALL_SCOPE: Final = re.compile(r"(Stateful)?PartitionedCall(_\d+)?")

#: Functions that call each other more deeply than this call themselves.
DEEPEST: Final = 200


class ClosedGraphError(Exception):
    """A graph cannot be run operation by operation; says which operation stands in the way."""


@dataclass(frozen=True)
class Step:
    """One operation. Tensors go by numbers, its slots.

    Attributes:
        name: its name in the graph, by which its tensors are called.
        op: its type.
        attrs: names and values in turn, as TensorFlow's `execute` takes them.
        inputs: the slots of its operands.
        outputs: the slots of its results.
        floating: for each result whether it is of floating point.
        branches: the functions that it chooses between or repeats.
        gradient: the gradient that the model's author gave it.
        done: the slots that no later step needs.
        protos: the attributes as the graph has them.
    """

    name: str
    op: str
    attrs: tuple[Any, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    floating: tuple[bool, ...]
    branches: tuple[Program, ...] = ()
    gradient: CustomGradient | None = None
    done: tuple[int, ...] = ()
    protos: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs(self) -> tuple[int, ...]:
        """The slots that it reads, those of its gradient included."""
        return self.inputs if self.gradient is None else (*self.inputs, *self.gradient.captured)


@dataclass(frozen=True, eq=False)
class Program:
    """Operations in an order in which they can be run.

    Attributes:
        inputs: the slots that its arguments go to.
        constants: the slots whose values are known.
        steps: the operations.
        outputs: the slots of what it returns.
    """

    inputs: tuple[int, ...]
    constants: Mapping[int, Any]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


def tensor_name(step: Step, number: int) -> str:
    """The name of a step's result."""
    return f"{step.name}:{number}"


def build(function: Any) -> Program:
    """The program of a ConcreteFunction: it takes its inputs, captured ones last, and gives its flat outputs.

    Raises:
        ClosedGraphError: it holds an operation that runs in a graph only.
    """
    graph = function.graph
    definition = graph.as_graph_def()
    writer = _Writer({one.signature.name: one for one in definition.library.function}, is_saved(function))
    body = _Body(
        definition.node,
        [tensor.op.name for tensor in graph.inputs],
        [tensor.name for tensor in graph.outputs],
        [operation.name for operation in graph.control_outputs],
    )
    return writer.program(body, "", 0)


@dataclass(frozen=True)
class _Body:
    """A function's operations, the names of its arguments, results, and of what must run all the same."""

    nodes: Sequence[Any]
    arguments: Sequence[str]
    results: Sequence[str]
    control: Sequence[str]


def _body(definition: Any) -> _Body:
    signature = definition.signature
    return _Body(
        definition.node_def,
        [one.name for one in signature.input_arg],
        [definition.ret[one.name] for one in signature.output_arg],
        list(definition.control_ret.values()),
    )


class _Frame:
    """What the names in one function mean: the slots of each operation's results."""

    def __init__(self, prefix: str, depth: int = 0, caller: _Frame | None = None) -> None:
        self.prefix = prefix
        self.depth = depth
        self._caller = caller
        self._slots: dict[str, tuple[int, ...]] = {}
        self._offsets: dict[str, Mapping[str, int]] = {}

    def put(self, node: str, slots: Sequence[int], offsets: Mapping[str, int]) -> None:
        self._slots[node] = tuple(slots)
        self._offsets[node] = offsets

    def slot(self, name: str) -> int:
        """That of `node`, `node:number` (in a graph) or `node:result:number` (in a function)."""
        node, *rest = name.split(":")
        if len(rest) == 2:
            return self._slots[node][self._offsets[node][rest[0]] + int(rest[1])]
        return self._slots[node][int(rest[0]) if rest else 0]

    def find(self, node: str, number: int) -> int | None:
        """The slot of a node's result, here or where the function was called in the same program."""
        if node in self._slots:
            return self._slots[node][number]
        return None if self._caller is None else self._caller.find(node, number)


class _Writer:
    """Writes programs out of functions that call each other."""

    def __init__(self, library: Mapping[str, Any], restored: bool) -> None:
        self._library = library
        self._restored = restored
        self._next = 0
        self._constants: dict[int, Any] = {}
        self._names: Counter[str] = Counter()

    def program(self, body: _Body, prefix: str, depth: int) -> Program:
        """A program of its own."""
        frame = _Frame(prefix, depth)
        inputs = self._slots(len(body.arguments))
        steps: list[Step] = []
        outputs = self._write(body, inputs, frame, steps)
        kept = _alive(steps, outputs)
        needed = {slot for step in kept for slot in step.needs} | set(outputs)
        constants = {slot: tf.constant(_array(self._constants[slot])) for slot in needed & self._constants.keys()}
        return Program(tuple(inputs), constants, _released(kept, {*outputs, *constants}), tuple(outputs))

    def _slots(self, count: int) -> list[int]:
        self._next += count
        return list(range(self._next - count, self._next))

    def _write(self, body: _Body, inputs: Sequence[int], frame: _Frame, steps: list[Step]) -> list[int]:
        """Append a function's operations; gives the slots of its results."""
        if frame.depth > DEEPEST:
            raise ClosedGraphError(f"the function at {frame.prefix!r} calls itself")
        for name, slot in zip(body.arguments, inputs, strict=True):
            frame.put(name, (slot,), {})
        for node in _in_order(body.nodes):
            if node.name not in body.arguments:
                self._write_node(node, frame, steps)
        return [frame.slot(name) for name in body.results]

    def _write_node(self, node: Any, frame: _Frame, steps: list[Step]) -> None:
        if node.op == "NoOp":
            return
        inputs = [frame.slot(name) for name in node.input if not name.startswith("^")]
        called = node.attr["f"].func.name if node.op in CALLS else node.op
        if called in self._library:
            definition = self._library[called]
            inner = _Frame(f"{frame.prefix}{node.name}/", frame.depth + 1, frame)
            results = self._write(_body(definition), inputs, inner, steps)
            names = ["output"] if node.op in CALLS else [one.name for one in definition.signature.output_arg]
            frame.put(node.name, results, {name: number for number, name in enumerate(names)})
            return
        kind = _kind(node)
        dtypes, offsets = _results(kind, node)
        if node.op == "Identity" and "_gradient_op_type" not in node.attr:
            frame.put(node.name, inputs, offsets)
            return
        slots = self._slots(len(dtypes))
        frame.put(node.name, slots, offsets)
        if node.op == "Const":
            self._constants[slots[0]] = node.attr["value"].tensor
            return
        name = self._name(f"{frame.prefix}{node.name}")
        floating = tuple(dtype.is_floating for dtype in dtypes)
        protos = {key: value for key, value in node.attr.items() if not key.startswith("_")}
        step = Step(name, node.op, (), tuple(inputs), tuple(slots), floating, protos=protos)
        if node.op in CONTROL:
            steps.append(replace(step, branches=tuple(self._branches(node, frame))))
            return
        gradient = None
        if "_gradient_op_type" in node.attr:
            gradient = CustomGradient.find(node, name, dtypes, frame.find, self._restored)
        steps.append(replace(step, attrs=tuple(_attributes(kind, node)), gradient=gradient))

    def _branches(self, node: Any, frame: _Frame) -> Iterator[Program]:
        for attribute in CONTROL[node.op]:
            value = node.attr[attribute]
            functions = [value.func] if value.WhichOneof("value") == "func" else list(value.list.func)
            for number, function in enumerate(functions):
                prefix = f"{frame.prefix}{node.name}/{attribute}{number if len(functions) > 1 else ''}/"
                if function.name not in self._library:
                    raise ClosedGraphError(f"the function {function.name!r} of {node.op} {node.name!r} is not at hand")
                yield self.program(_body(self._library[function.name]), prefix, frame.depth + 1)

    def _name(self, whole: str) -> str:
        """Without the scopes that only say that a function was called, where that leaves it unlike the others."""
        short = "/".join(part for part in whole.split("/") if not CALL_SCOPE.fullmatch(part)) or whole
        name = whole if self._names[short] else short
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}~{self._names[name] - 1}"


def _array(value: Any) -> Any:
    return tf.make_ndarray(value)


def _in_order(nodes: Sequence[Any]) -> Iterator[Any]:
    """Each node after those that it needs, by control dependencies too, else as they come."""
    place = {node.name: number for number, node in enumerate(nodes)}
    followers: dict[int, list[int]] = {}
    missing = []
    for number, node in enumerate(nodes):
        before = {place[one] for name in node.input if (one := name.lstrip("^").split(":")[0]) in place}
        missing.append(len(before))
        for one in before:
            followers.setdefault(one, []).append(number)
    ready = [number for number, count in enumerate(missing) if not count]
    written = 0
    while ready:
        number = heapq.heappop(ready)
        written += 1
        yield nodes[number]
        for one in followers.get(number, ()):
            missing[one] -= 1
            if not missing[one]:
                heapq.heappush(ready, one)
    if written < len(nodes):
        raise ClosedGraphError("its operations go in a circle, as TensorFlow 1's loops do")


def _kind(node: Any) -> Any:
    """What TensorFlow knows of a type of operation."""
    kind = op_def_registry.get(node.op)
    if kind is None:
        raise ClosedGraphError(
            f"the operation {node.op} {node.name!r} is unknown here; import the library that brings it"
        )
    if node.op in GRAPH_ONLY:
        raise ClosedGraphError(f"the operation {node.op} {node.name!r} is of TensorFlow 1's graphs")
    return kind


def _results(kind: Any, node: Any) -> tuple[list[Any], dict[str, int]]:
    """The dtypes of an operation's results, and where in their row each named one begins."""
    dtypes: list[Any] = []
    offsets = {}
    for result in kind.output_arg:
        offsets[result.name] = len(dtypes)
        if result.type_list_attr:
            dtypes += [tf.as_dtype(one) for one in _value(kind, node, result.type_list_attr).list.type]
            continue
        one = _value(kind, node, result.type_attr).type if result.type_attr else result.type
        count = _value(kind, node, result.number_attr).i if result.number_attr else 1
        dtypes += [tf.as_dtype(one)] * count
    return dtypes, offsets


def _value(kind: Any, node: Any, name: str) -> Any:
    """An attribute's value: the node's, else the default."""
    if name in node.attr:
        return node.attr[name]
    return next(one.default_value for one in kind.attr if one.name == name)


#: How a value of each type of attribute is told to `execute`.
DECODED: Final[Mapping[str, Callable[[Any], Any]]] = {
    "string": lambda value: value.s,
    "int": lambda value: value.i,
    "float": lambda value: value.f,
    "bool": lambda value: value.b,
    "type": lambda value: value.type,
    "shape": lambda value: execute.make_shape(value.shape, "shape"),
    "list(string)": lambda value: list(value.list.s),
    "list(int)": lambda value: list(value.list.i),
    "list(float)": lambda value: list(value.list.f),
    "list(bool)": lambda value: list(value.list.b),
    "list(type)": lambda value: list(value.list.type),
    "list(shape)": lambda value: [execute.make_shape(one, "shape") for one in value.list.shape],
}


def _attributes(kind: Any, node: Any) -> Iterator[Any]:
    for attribute in kind.attr:
        if attribute.type not in DECODED:
            raise ClosedGraphError(
                f"the operation {node.op} {node.name!r} runs a function of its own (or holds a {attribute.type})"
            )
        yield attribute.name
        yield DECODED[attribute.type](_value(kind, node, attribute.name))


def _alive(steps: Sequence[Step], outputs: Sequence[int]) -> list[Step]:
    """The steps that the outputs need, and those that change something."""
    needed = set(outputs)
    kept = []
    for step in reversed(steps):
        stateful = op_def_registry.get(step.op).is_stateful and step.op not in READS
        if stateful or not needed.isdisjoint(step.outputs):
            needed.update(step.needs)
            kept.append(step)
    return kept[::-1]


def _released(steps: Sequence[Step], held: set[int]) -> tuple[Step, ...]:
    """The steps, each with the slots that are not needed after it."""
    seen = set(held)
    written = []
    for step in reversed(steps):
        done = tuple({*step.needs, *step.outputs} - seen)
        seen.update(done)
        written.append(replace(step, done=done))
    return tuple(written[::-1])
