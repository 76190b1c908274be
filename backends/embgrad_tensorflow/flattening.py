"""Writes a compiled function's graph out flat: the functions that it calls in place of their calls, with short names."""

from __future__ import annotations

import inspect
import itertools
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

import tensorflow as tf
from tensorflow.python.framework import op_def_registry, ops
from tensorflow.python.saved_model import function_deserialization

from embgrad.errors import UnsupportedError
from embgrad_tensorflow.walk import is_saved

__all__ = ["CALLS", "ClosedGraphError", "FlatGraph", "definition_of", "flattened"]

#: Operations that call a function, which is written out in their place.
CALLS: Final = ("PartitionedCall", "StatefulPartitionedCall")

#: Operations of TensorFlow 1's control flow and variables, which a gradient in TensorFlow 2 does not know.
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

#: The name under which the gradients that a model's author gave to operations are registered, and the attribute that tells them
#: apart.
OWN_GRADIENT: Final = "EmbgradOwnGradient"
OWN_NUMBER: Final = "_embgrad_own_gradient"


class ClosedGraphError(Exception):
    """A graph cannot be cut; says which operation stands in the way."""


@dataclass(frozen=True, eq=False)
class FlatGraph:
    """A graph without calls of functions.

    Attributes:
        arguments: the names of the tensors that stand for the arguments, those that the function captured last.
        nodes: the operations, each after those that it needs; an input is the whole name of a tensor, `node:0`.
        results: the names of the tensors that are returned.
        library: the functions that branches and loops run, by name.
        gradients: the gradients of the author, which the graph keeps alive.
    """

    arguments: tuple[str, ...]
    nodes: tuple[Any, ...]
    results: tuple[str, ...]
    library: Mapping[str, Any]
    gradients: tuple[OwnGradient, ...]


def flattened(function: Any) -> FlatGraph:
    """Return the flat graph of a ConcreteFunction.

    Raises:
        ClosedGraphError: it holds an operation that cannot be cut out.
    """
    graph = function.graph
    definition = graph.as_graph_def()
    count = len(graph.outputs) if function.function_type is None else len(function.function_type.flat_outputs)
    body = _Body(
        definition.node,
        [tensor.op.name for tensor in graph.inputs],
        [tensor.name for tensor in graph.outputs[:count]],  # a gradient that was taken has appended what it needs
    )
    library = {entry.signature.name: entry for entry in definition.library.function}
    return _Writer(library, is_saved(function)).graph(body)


def definition_of(op: str) -> Any:
    """Return the definition of a type of operation."""
    return op_def_registry.get(op)


@dataclass(frozen=True)
class _Body:
    """The operations of a function, the names of its arguments and of its results."""

    nodes: Sequence[Any]
    arguments: Sequence[str]
    results: Sequence[str]


def _body(definition: Any) -> _Body:
    signature = definition.signature
    results = [definition.ret[result.name] for result in signature.output_arg]
    return _Body(definition.node_def, [argument.name for argument in signature.input_arg], results)


class _Frame:
    """The meaning of the names in one function: the tensors that each operation gives."""

    def __init__(self, prefix: str, depth: int = 0, caller: _Frame | None = None) -> None:
        self.prefix = prefix
        self.depth = depth
        self._caller = caller
        self._tensors: dict[str, tuple[str, ...]] = {}
        self._offsets: dict[str, Mapping[str, int]] = {}

    def put(self, node: str, tensors: Sequence[str], offsets: Mapping[str, int]) -> None:
        self._tensors[node] = tuple(tensors)
        self._offsets[node] = offsets

    def tensor(self, name: str) -> str:
        """Return that of `node`, `node:number` (in a graph) or `node:result:number` (in a function)."""
        node, *rest = name.split(":")
        if len(rest) == 2:
            return self._tensors[node][self._offsets[node][rest[0]] + int(rest[1])]
        return self._tensors[node][int(rest[0]) if rest else 0]

    def find(self, node: str, number: int) -> str | None:
        """Return that of a node here, or where the function was called."""
        if node in self._tensors:
            return self._tensors[node][number]
        return None if self._caller is None else self._caller.find(node, number)


class _Writer:
    """Writes functions that call each other into one graph."""

    def __init__(self, library: Mapping[str, Any], restored: bool) -> None:
        self._library = library
        self._restored = restored
        self._names: Counter[str] = Counter()
        self._nodes: list[Any] = []
        self._gradients: list[OwnGradient] = []

    def graph(self, body: _Body) -> FlatGraph:
        arguments = [f"embgrad_argument_{number}:0" for number in range(len(body.arguments))]
        results = self._write(body, arguments, _Frame(""))
        nodes = _last_checks(_alive(self._nodes, results), results)
        gradients = tuple(self._gradients)
        return FlatGraph(tuple(arguments), tuple(nodes), tuple(results), self._library, gradients)

    def _write(self, body: _Body, inputs: Sequence[str], frame: _Frame) -> list[str]:
        """Append a function's operations, and return its results."""
        if frame.depth > DEEPEST:
            raise ClosedGraphError(f"the function at {frame.prefix!r} calls itself")
        for name, tensor in zip(body.arguments, inputs, strict=True):
            frame.put(name, (tensor,), {})
        for node in _in_order(body.nodes):
            if node.name not in body.arguments and node.op != "NoOp":
                self._write_node(node, frame)
        return [frame.tensor(name) for name in body.results]

    def _write_node(self, node: Any, frame: _Frame) -> None:
        inputs = [frame.tensor(name) for name in node.input if not name.startswith("^")]
        called = node.attr["f"].func.name if node.op in CALLS else node.op
        if called in self._library:
            definition = self._library[called]
            inner = _Frame(f"{frame.prefix}{node.name}/", frame.depth + 1, frame)
            results = self._write(_body(definition), inputs, inner)
            names = ["output"] if node.op in CALLS else [result.name for result in definition.signature.output_arg]
            frame.put(node.name, results, {name: number for number, name in enumerate(names)})
            return
        types, offsets = _results(_known(node), node)
        has_own = "_gradient_op_type" in node.attr
        if node.op == "Identity" and not has_own:
            frame.put(node.name, inputs, offsets)
            return
        written = type(node)()
        written.CopyFrom(node)
        written.name = self._name(f"{frame.prefix}{node.name}")
        written.ClearField("experimental_debug_info")
        for attribute in [name for name in node.attr if name.startswith("_") and name != "_lower_using_switch_merge"]:
            del written.attr[attribute]
        if has_own:
            gradient = OwnGradient.find(node, written.name, types, frame.find, self._restored)
            self._gradients.append(gradient)
            inputs += gradient.mark(written)
        written.ClearField("input")
        written.input.extend(inputs)
        self._nodes.append(written)
        frame.put(node.name, [f"{written.name}:{number}" for number in range(len(types))], offsets)

    def _name(self, whole: str) -> str:
        """Return a name without the scopes that only say that a function was called, where no other node has it."""
        short = "/".join(part for part in whole.split("/") if not CALL_SCOPE.fullmatch(part)) or whole
        name = whole if self._names[short] else short
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}.{self._names[name] - 1}"


def _in_order(nodes: Sequence[Any]) -> list[Any]:
    """Return each node after those that it needs, by control dependencies too, else as they come."""
    named = {node.name: node for node in nodes}
    written: dict[str, Any] = {}
    waiting = [(node.name, False) for node in reversed(nodes)]
    begun: set[str] = set()
    while waiting:
        name, is_ready = waiting.pop()
        if is_ready:
            written[name] = named[name]
        elif name not in begun:
            begun.add(name)
            waiting.append((name, True))
            needed = [whole.lstrip("^").split(":")[0] for whole in named[name].input]
            waiting += [(source, False) for source in reversed(needed) if source in named and source not in written]
        elif name not in written:
            raise ClosedGraphError("its operations go in a circle, as TensorFlow 1's loops do")
    return list(written.values())


def _known(node: Any) -> Any:
    """Return what TensorFlow knows of a node's type."""
    definition = definition_of(node.op)
    if definition is None:
        raise ClosedGraphError(
            f"the operation {node.op} {node.name!r} is unknown here; import the library that brings it"
        )
    if node.op in GRAPH_ONLY:
        raise ClosedGraphError(f"the operation {node.op} {node.name!r} is of TensorFlow 1's graphs")
    return definition


def _results(definition: Any, node: Any) -> tuple[list[Any], dict[str, int]]:
    """Return the dtypes of an operation's results, and where among them those of each name begin."""
    types: list[Any] = []
    offsets = {}
    defaults = {attribute.name: attribute.default_value for attribute in definition.attr}
    for result in definition.output_arg:
        offsets[result.name] = len(types)
        values = {name: node.attr.get(name, value) for name, value in defaults.items()}
        if result.type_list_attr:
            types += [tf.as_dtype(entry) for entry in values[result.type_list_attr].list.type]
            continue
        dtype = values[result.type_attr].type if result.type_attr else result.type
        types += [tf.as_dtype(dtype)] * (values[result.number_attr].i if result.number_attr else 1)
    return types, offsets


def _alive(nodes: Sequence[Any], results: Sequence[str]) -> list[Any]:
    """Return the nodes that the results need, and those that change something."""
    needed = {name.split(":")[0] for name in results}
    kept = []
    for node in reversed(nodes):
        if node.name in needed or (definition_of(node.op).is_stateful and node.op not in READS):
            needed.update(name.split(":")[0] for name in node.input)
            kept.append(node)
    return kept[::-1]


def _last_checks(nodes: Sequence[Any], results: Sequence[str]) -> list[Any]:
    """Return the nodes with assertions last, so that a lookup outside its table is seen before they fail."""
    used = {name.split(":")[0] for node in nodes for name in node.input} | {name.split(":")[0] for name in results}
    checks = [node for node in nodes if node.op in ("Assert", "If", "StatelessIf") and node.name not in used]
    names = {node.name for node in checks}
    return [*(node for node in nodes if node.name not in names), *checks]


# Gradients of the author

_numbers = itertools.count()
_own: WeakValueDictionary[int, OwnGradient] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class OwnGradient:
    """A gradient that the author of a model gave to an operation (`tf.custom_gradient`), in place of the operation's own.

    The values of the forward pass that it reads become further inputs of the operation, an IdentityN.

    Attributes:
        number: that under which it is found.
        where: the operation's name.
        function: a ConcreteFunction of the results' gradients and of the values that it captured; None where it is not at hand.
        types: the dtypes of the results.
        captured: the tensors of the forward pass that the function reads.
        constants: for each input that the function captured its value, or None for the next of `captured`.
        why: why the function is not at hand.
    """

    number: int
    where: str
    function: Any
    types: tuple[Any, ...]
    captured: tuple[str, ...] = ()
    constants: tuple[Any, ...] = ()
    why: str = ""

    @classmethod
    def find(
        cls, node: Any, where: str, types: Sequence[Any], find: Callable[[str, int], str | None], restored: bool
    ) -> OwnGradient:
        """Return the gradient that an operation names.

        Args:
            node: the operation's definition.
            where: its name.
            types: the dtypes of its results.
            find: takes a node's name and the number of its result, and returns the tensor in the flat graph.
            restored: whether the operation is of a saved model.
        """
        number = next(_numbers)
        own = _own[number] = cls._found(number, node, where, tuple(types), find, restored)
        return own

    @classmethod
    def _found(
        cls, number: int, node: Any, where: str, types: tuple[Any, ...], find: Callable[..., str | None], restored: bool
    ) -> OwnGradient:
        try:
            registered = ops.gradient_registry.lookup(node.attr["_gradient_op_type"].s.decode())
            if not _is_meant(registered, node, restored):
                raise LookupError
            function = _traced(registered, types)
        except LookupError:
            return cls(number, where, None, types, why="was not saved with the model")
        except Exception as error:  # it is the author's own code, and may never be needed
            why = f"cannot be run by itself ({str(error).strip().splitlines()[0]})"
            return cls(number, where, None, types, why=why)
        captured, constants = [], []
        for value in function.captured_inputs:
            is_eager = isinstance(value, ops.EagerTensor)
            found = None if is_eager else find(value.op.name, value.value_index)
            if found is None and not is_eager:
                why = f"reads {value.name!r}, which is not of the forward pass"
                return cls(number, where, None, types, why=why)
            constants.append(value if found is None else None)
            captured += [] if found is None else [found]
        return cls(number, where, function, types, tuple(captured), tuple(constants))

    def mark(self, node: Any) -> list[str]:
        """Give the operation in the flat graph this gradient, and return its further inputs."""
        if node.op != "IdentityN" and self.function is not None and self.captured:
            raise ClosedGraphError(f"the operation {node.op} {node.name!r} has a gradient that reads other values")
        node.attr["_gradient_op_type"].s = OWN_GRADIENT.encode()
        node.attr[OWN_NUMBER].i = self.number
        if self.captured:
            captures = self.function.captured_inputs
            known = zip(captures, self.constants, strict=True)
            types = [value.dtype.as_datatype_enum for value, constant in known if constant is None]
            node.attr["T"].list.type.extend(types)
        return list(self.captured)

    def pull_back(self, operation: Any, gradients: Sequence[Any]) -> list[Any]:
        """Return the gradients of an operation's inputs."""
        if self.function is None:
            raise UnsupportedError(
                f"the operation {self.where!r} of the saved model has a gradient of its author's own (tf.custom_gradient), and "
                f"it {self.why}: expected tf.saved_model.SaveOptions(experimental_custom_gradients=True) when the model was "
                "saved, and no variables inside; give the model as Python code"
            )
        graph = self.function.graph
        count = len(self.types)
        upstream = [
            tf.zeros_like(operation.outputs[number]) if gradient is None else gradient
            for number, gradient in enumerate(gradients[:count])
            if self.types[number].is_floating
        ]
        rest = iter(operation.inputs[count:])
        capture = tf.compat.v1.get_default_graph().capture
        captures = [next(rest) if constant is None else capture(constant) for constant in self.constants]
        given = dict(zip([tensor.name for tensor in graph.inputs], [*upstream, *captures], strict=True))
        inner = [tensor.name for tensor in graph.outputs if tensor.name not in given]
        definition = _without(graph.as_graph_def(), {tensor.op.name for tensor in graph.inputs})
        used = {name.split(":")[0] for node in definition.node for name in node.input}
        mapped = {
            name: value if value.dtype == tf.resource else tf.identity(value)
            for name, value in given.items()
            if name.split(":")[0] in used
        }
        found = tf.graph_util.import_graph_def(
            definition, input_map=mapped, return_elements=inner, name=f"{self.where}/own_gradient"
        )
        given |= dict(zip(inner, found or (), strict=True))
        made = iter(given[tensor.name] for tensor in graph.outputs)
        pulled = [
            None if result is None else next(made) for result in tf.nest.flatten(self.function.structured_outputs)
        ]
        return [*pulled, *[None] * (len(operation.inputs) - len(pulled))]


def _without(definition: Any, arguments: set[str]) -> Any:
    """Return a graph without the placeholders of its arguments, and without the order that control dependencies on them make."""
    nodes = [node for node in definition.node if node.name not in arguments]
    for node in nodes:
        kept = [name for name in node.input if name.removeprefix("^") not in arguments or not name.startswith("^")]
        node.ClearField("input")
        node.input.extend(kept)
    return tf.compat.v1.GraphDef(node=nodes, library=definition.library, versions=definition.versions)


def _pull_back(operation: Any, *gradients: Any) -> list[Any]:
    return _own[operation.get_attr(OWN_NUMBER)].pull_back(operation, gradients)


tf.RegisterGradient(OWN_GRADIENT)(_pull_back)


def _is_meant(gradient: Any, node: Any, restored: bool) -> bool:
    """Return whether a registered gradient is the operation's own, and not one that happens to have the same name here.

    The names are numbers that each process gives out anew. Those that come with a saved model are renamed when it is loaded.
    """
    if gradient.__module__ == function_deserialization.__name__:
        return True
    if restored:
        return False
    inner = inspect.getclosurevars(gradient).nonlocals.get("tape_grad_fn")
    results = inspect.getclosurevars(inner).nonlocals.get("result") if inner is not None else None
    names = [tensor.op.name for tensor in tf.nest.flatten(results) if isinstance(tensor, tf.Tensor)]
    return bool(names) and names == [name.split(":")[0] for name in node.input[: len(names)]]


def _traced(gradient: Any, types: Sequence[Any]) -> Any:
    """Return a registered gradient function as a ConcreteFunction of the gradients that are of floating point."""

    def pull_back(*given: Any) -> Any:
        floating = iter(given)
        return gradient(None, *[next(floating) if dtype.is_floating else None for dtype in types])

    specs = [tf.TensorSpec(None, dtype) for dtype in types if dtype.is_floating]
    return tf.function(pull_back, autograph=False).get_concrete_function(*specs)
