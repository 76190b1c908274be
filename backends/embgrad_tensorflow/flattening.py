"""Write a compiled function's graph out flat, by TensorFlow's own inliner: without calls of functions, with short names."""

from __future__ import annotations

import inspect
import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

import tensorflow as tf
from tensorflow.python.framework import op_def_registry, ops
from tensorflow.python.grappler import tf_optimizer
from tensorflow.python.saved_model import function_deserialization

from embgrad.errors import UnsupportedError
from embgrad_tensorflow.operations import CALLS
from embgrad_tensorflow.tracing import MARK
from embgrad_tensorflow.walk import is_saved

__all__ = ["ClosedGraphError", "FlatGraph", "definition_of", "flatten"]

#: Operations of TensorFlow 1's control flow and variables, which a gradient in TensorFlow 2 does not know.
GRAPH_ONLY: Final = frozenset(
    {
        *("Enter", "Exit", "LoopCond", "Merge", "NextIteration", "Switch"),
        *("RefEnter", "RefExit", "RefMerge", "RefNextIteration", "RefSwitch", "Variable", "VariableV2"),
    }
)

#: Operations that count as stateful and change nothing.
READS: Final = frozenset({"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarHandleOp", "VarIsInitializedOp"})

#: Operations that return their operands.
PASS_THROUGH: Final = ("Identity", "IdentityN")

#: A name scope that says only that a function was called.
CALL_SCOPE: Final = re.compile(r"(Stateful)?PartitionedCall(_\d+)?")

#: The name under which custom gradients are registered, and the attribute that identifies each.
GRADIENT_NAME: Final = "EmbgradOwnGradient"
GRADIENT_NUMBER: Final = "_embgrad_own_gradient"

#: The private attributes of operations that are kept.
KEPT_ATTRIBUTES: Final = ("_gradient_op_type", GRADIENT_NUMBER)


class ClosedGraphError(Exception):
    """A graph cannot be cut; the message names the operation that prevents it."""


@dataclass(frozen=True, eq=False)
class FlatGraph:
    """A graph without calls of functions.

    Attributes:
        arguments: the names of the tensors that stand for the arguments, those that the function captured last.
        nodes: the operations, each after those that it needs; an input is the whole name of a tensor, `node:0`.
        library: the functions that branches and loops run, by name.
        gradients: the gradients of the author, which the graph keeps alive.
    """

    arguments: tuple[str, ...]
    nodes: tuple[Any, ...]
    results: tuple[str, ...]
    library: Mapping[str, Any]
    gradients: tuple[CustomGradient, ...]


def flatten(function: Any) -> FlatGraph:
    """Return the flat graph of a ConcreteFunction.

    Raises:
        ClosedGraphError: it holds an operation that cannot be cut out.
    """
    graph = function.graph
    definition = graph.as_graph_def()
    count = len(graph.outputs) if function.function_type is None else len(function.function_type.flat_outputs)
    results = [tensor.name for tensor in graph.outputs[:count]]  # taking a gradient appends outputs
    functions = {entry.signature.name: entry for entry in definition.library.function}
    gradients = _prepare(definition.node, functions, is_saved(function))
    order = {name: number for number, name in enumerate(_inlined_names(definition.node, functions))}
    arguments = [tensor.op.name for tensor in graph.inputs]
    inlined = _inline(definition, [*arguments, *results, *(operation.name for operation in graph.control_outputs)])
    tensors = {name: f"embgrad_argument_{number}:0" for number, name in enumerate(arguments)}
    ordered = _in_order(sorted(inlined.node, key=lambda node: order.get(node.name, len(order))))
    written, result_names = _write(ordered, tensors, results)
    nodes = _last_checks(_find_needed(written, result_names), result_names)
    library = {entry.signature.name: entry for entry in inlined.library.function}
    return FlatGraph(tuple(tensors.values()), tuple(nodes), tuple(result_names), library, tuple(gradients))


def definition_of(op: str) -> Any:
    """Return the definition of a type of operation."""
    return op_def_registry.get(op)


def _prepare(nodes: Sequence[Any], functions: Mapping[str, Any], restored: bool) -> list[CustomGradient]:
    """Make a graph and the functions that it calls ready for the inliner, and return the gradients of the author in them.

    Raises:
        ClosedGraphError: one of the operations cannot be cut out.
    """
    waiting: list[str | None] = [None]
    reached: set[str | None] = {None}
    gradients = []
    while waiting:
        name = waiting.pop()
        function = None if name is None else functions[name]
        arguments = [] if function is None else function.signature.input_arg
        operations = nodes if function is None else function.node_def
        names = {entry.name for entry in (*operations, *arguments)}
        for node in operations:
            called = _find_called(node)
            if called in functions:
                waiting += [called] if called not in reached else []
                reached.add(called)
            else:
                _expect_known(node)
                if "_gradient_op_type" in node.attr:
                    gradients.append(CustomGradient.put(node, function, names, restored))
            _strip(node)
        if function is not None:
            function.attr.clear()
    return gradients


def _strip(node: Any) -> None:
    """Delete the attributes that say how an operation is to run: on its own, by XLA, on the device of another."""
    for attribute in [name for name in node.attr if name.startswith("_") and name not in KEPT_ATTRIBUTES]:
        del node.attr[attribute]


def _expect_known(node: Any) -> None:
    if definition_of(node.op) is None:
        raise ClosedGraphError(
            f"the operation {node.op} {node.name!r} is not registered. Import the library that defines it"
        )
    if node.op in GRAPH_ONLY:
        raise ClosedGraphError(f"the operation {node.op} {node.name!r} belongs to TensorFlow 1's graphs")


def _inline(definition: Any, fetched: Sequence[str]) -> Any:
    """Return a graph with the functions that it calls written out by TensorFlow's optimizer, which changes nothing else."""
    meta = tf.compat.v1.train.export_meta_graph(graph_def=definition, graph=tf.Graph())
    meta.collection_def["train_op"].node_list.value.extend(fetched)
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.optimizers.append("function")
    options.function_optimization = options.AGGRESSIVE
    return tf_optimizer.OptimizeGraph(config, meta)


def _write(nodes: Sequence[Any], arguments: Mapping[str, str], results: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return an inlined graph's operations with short names, without those that only hand on, and the names of its results.

    Args:
        arguments: by a placeholder's name the tensor that stands for the argument.
    """
    shorts: dict[str, str] = {}
    handed_on = {f"{name}:0": tensor for name, tensor in arguments.items()}
    names: Counter[str] = Counter()
    written = []

    def tensor(name: str) -> str:
        node, _, number = name.partition(":")
        full = f"{node}:{number or 0}"
        return handed_on.get(full) or f"{shorts[node]}:{number or 0}"

    for node in nodes:
        if node.op in CALLS:
            raise ClosedGraphError(f"TensorFlow does not inline the function that {node.name!r} calls")
        if node.op == "NoOp" or node.name in arguments:
            continue
        inputs = [tensor(name) for name in node.input if not name.startswith("^")]
        if node.op in PASS_THROUGH and GRADIENT_NUMBER not in node.attr and not MARK.search(node.name):
            handed_on |= {f"{node.name}:{number}": name for number, name in enumerate(inputs)}
            continue
        shorts[node.name] = node.name = _short(node.name, names)
        _strip(node)
        node.ClearField("input")
        node.ClearField("experimental_debug_info")
        node.input.extend(inputs)
        written.append(node)
    return written, [tensor(name) for name in results]


def _short(full: str, names: Counter[str]) -> str:
    """Return a name without the scopes that only say that a function was called, where no other node has it."""
    short = "/".join(part for part in full.split("/") if not CALL_SCOPE.fullmatch(part)) or full
    name = full if names[short] else short
    names[name] += 1
    return name if names[name] == 1 else f"{name}.{names[name] - 1}"


def _inlined_names(
    nodes: Sequence[Any], functions: Mapping[str, Any], prefix: str = "", inside: tuple[str, ...] = ()
) -> list[str]:
    """Return the names that the inliner gives to operations, in the order in which they were made."""
    names = []
    for node in _in_order(nodes):
        name, called = f"{prefix}{node.name}", _find_called(node)
        if called in inside:
            raise ClosedGraphError(f"the function at {name!r} calls itself")
        if called in functions:
            names += _inlined_names(functions[called].node_def, functions, f"{name}/", (*inside, called))
        names.append(name)
    return names


def _find_called(node: Any) -> str:
    """Return the name of the function that an operation calls; its type, which is no function's name, where it calls none."""
    return str(node.attr["f"].func.name if node.op in CALLS else node.op)


def _in_order(nodes: Sequence[Any]) -> list[Any]:
    """Return each node after those that it needs, by control dependencies too, else as they come."""
    named = {node.name: node for node in nodes}
    ordered: dict[str, Any] = {}
    waiting = [(name, False) for name in reversed(named)]
    while waiting:
        name, is_ready = waiting.pop()
        if is_ready:
            ordered[name] = named[name]
        elif name not in ordered:
            needed = [source.lstrip("^").partition(":")[0] for source in named[name].input]
            waiting += [(name, True), *((source, False) for source in reversed(needed) if source in named)]
    return list(ordered.values())


def _find_needed(nodes: Sequence[Any], results: Sequence[str]) -> list[Any]:
    """Return the nodes that the results need, those that change something, and the marks of calls."""
    needed = {name.partition(":")[0] for name in results}
    kept = []
    for node in reversed(nodes):
        changes = definition_of(node.op).is_stateful and node.op not in READS
        if node.name in needed or changes or MARK.search(node.name):
            needed.update(name.partition(":")[0] for name in node.input)
            kept.append(node)
    return kept[::-1]


def _last_checks(nodes: Sequence[Any], results: Sequence[str]) -> list[Any]:
    """Return the nodes with assertions last, so that a lookup outside its table is seen before they fail."""
    used = {name.split(":")[0] for node in nodes for name in node.input} | {name.split(":")[0] for name in results}
    checks = [node for node in nodes if node.op in ("Assert", "If", "StatelessIf") and node.name not in used]
    names = {node.name for node in checks}
    return [*(node for node in nodes if node.name not in names), *checks]


# Custom gradients

_numbers = itertools.count()
_custom_gradients: WeakValueDictionary[int, CustomGradient] = WeakValueDictionary()


@dataclass(frozen=True, eq=False)
class CustomGradient:
    """A custom gradient of an operation (`tf.custom_gradient`).

    The values of the forward pass that it reads become further inputs of the operation, an IdentityN.

    Attributes:
        function: a ConcreteFunction of the results' gradients and of the values that it captured; None where it is not at hand.
        constants: for each value that the function captured the value itself, or None for the next further input.
        why: why the function is not at hand.
    """

    where: str
    function: Any
    types: tuple[Any, ...]
    constants: tuple[Any, ...] = ()
    why: str = ""

    @classmethod
    def put(cls, node: Any, function: Any, names: Collection[str], restored: bool) -> CustomGradient:
        """Give an operation the gradient that it names, in a way that the inliner keeps.

        Args:
            function: the function that it is in; None for the graph itself.
            names: the names of the operations and arguments there.
            restored: whether the graph is of a saved model.
        """
        if node.op != "IdentityN":
            raise ClosedGraphError(
                f"the operation {node.op} {node.name!r} overrides its gradient, which is not supported"
            )
        types = tuple(tf.as_dtype(number) for number in node.attr["T"].list.type)
        gradient, why = _gradient_of(node, types, restored)
        captures = [] if gradient is None else gradient.captured_inputs
        constants = tuple(value if isinstance(value, ops.EagerTensor) else None for value in captures)
        read = [value for value, constant in zip(captures, constants, strict=True) if constant is None]
        foreign = next((value.name for value in read if value.op.name not in names), None)
        if foreign is not None:
            gradient, constants, read = None, (), []
            why = f"reads {foreign!r}, which lies outside of its function"
        inputs = [name for name in node.input if not name.startswith("^")]
        inputs += [_spell(value, function) for value in read]
        orders = [name for name in node.input if name.startswith("^")]
        number = next(_numbers)
        custom = _custom_gradients[number] = cls(node.name, gradient, types, constants, why)
        node.ClearField("input")
        node.input.extend([*inputs, *orders])
        node.attr["T"].list.type.extend(value.dtype.as_datatype_enum for value in read)
        node.attr["_gradient_op_type"].s = GRADIENT_NAME.encode()
        node.attr[GRADIENT_NUMBER].i = number
        return custom

    def pull_back(self, operation: Any, gradients: Sequence[Any]) -> list[Any]:
        """Return the gradients of an operation's inputs."""
        if self.function is None:
            raise UnsupportedError(
                f"the operation {self.where!r} of the saved model has a custom gradient (tf.custom_gradient), which {self.why}. "
                "Save the model with tf.saved_model.SaveOptions(experimental_custom_gradients=True) and without variables inside "
                "the gradient, or pass the model as Python code"
            )
        count = len(self.types)
        upstream = [
            tf.zeros_like(operation.outputs[number]) if gradient is None else gradient
            for number, gradient in enumerate(gradients[:count])
            if self.types[number].is_floating
        ]
        extra = iter(operation.inputs[count:])
        captures = [next(extra) if constant is None else constant for constant in self.constants]
        pulled = tf.nest.flatten(self.function._call_flat(upstream, captures))
        return [*pulled, *[None] * (len(operation.inputs) - len(pulled))]


def _pull_back(operation: Any, *gradients: Any) -> list[Any]:
    return _custom_gradients[operation.get_attr(GRADIENT_NUMBER)].pull_back(operation, gradients)


tf.RegisterGradient(GRADIENT_NAME)(_pull_back)


def _spell(tensor: Any, function: Any) -> str:
    """Return the name by which operations take a tensor in a graph, or in a function."""
    if function is None or tensor.op.name in {argument.name for argument in function.signature.input_arg}:
        return str(tensor.name if function is None else tensor.op.name)
    results = [result.name for result in tensor.op.op_def.output_arg]
    result, number = (results[0], tensor.value_index) if len(results) == 1 else (results[tensor.value_index], 0)
    return f"{tensor.op.name}:{result}:{number}"


def _gradient_of(node: Any, types: Sequence[Any], restored: bool) -> tuple[Any, str]:
    """Return the gradient that an operation names as a ConcreteFunction of the floating-point gradients, or why there is none."""
    try:
        registered = ops.gradient_registry.lookup(node.attr["_gradient_op_type"].s.decode())
    except LookupError:
        return None, "was not saved with the model"
    if not _is_of_operation(registered, node, restored):
        return None, "was not saved with the model"

    def pull_back(*upstream: Any) -> Any:
        floating = iter(upstream)
        return registered(None, *[next(floating) if dtype.is_floating else None for dtype in types])

    specs = [tf.TensorSpec(None, dtype) for dtype in types if dtype.is_floating]
    try:
        return tf.function(pull_back, autograph=False).get_concrete_function(*specs), ""
    except Exception as error:  # the author's code may raise anything, and may never be needed
        return None, f"cannot be run by itself ({str(error).strip().splitlines()[0]})"


def _is_of_operation(gradient: Any, node: Any, restored: bool) -> bool:
    """Return whether a registered gradient is the operation's own, and not one that happens to have the same name here.

    Each process numbers these names anew. TensorFlow renames those of a saved model when it loads the model.
    """
    if gradient.__module__ == function_deserialization.__name__:
        return True
    if restored:
        return False
    inner = inspect.getclosurevars(gradient).nonlocals.get("tape_grad_fn")
    results = inspect.getclosurevars(inner).nonlocals.get("result") if inner is not None else None
    names = [tensor.op.name for tensor in tf.nest.flatten(results) if isinstance(tensor, tf.Tensor)]
    return bool(names) and names == [name.split(":")[0] for name in node.input[: len(names)]]
