"""Run the operations between two points of a graph as one, and the last of them with the objective and the pullback."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from embgrad.backend import Respond, Response, choose_output, name_outputs, whole_cotangents

__all__ = [
    "STOP",
    "GraphGradients",
    "GraphObjective",
    "PullbackGraph",
    "Stretch",
    "definition_with",
    "functions_of",
    "stop_at",
]

#: Operations that run a loop, each of whose results takes the place of an operand.
LOOPS: Final = ("While", "StatelessWhile")

#: The suffix of the operations that stop gradients to weights that are not requested.
STOP: Final = "/embgrad_stop"

_numbers = itertools.count()


@dataclass(frozen=True, eq=False)
class Stretch:
    """Some of a graph's operations, which run as one.

    Attributes:
        inputs: the tensors that they take, each with its version.
        outputs: the tensors that they give to others.
        captured: by the place of an input the value that the function has captured.
    """

    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[str, ...]
    definition: Any
    fetched: tuple[str, ...]
    captured: Mapping[int, Any]
    specs: tuple[Any, ...]

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the outputs, computed by a compiled function."""
        return list(self._function(*self.free(tensors)))

    def free(self, entries: Sequence[Any]) -> list[Any]:
        """Return those of the entries, one an input, whose input the function has not captured."""
        return [entry for index, entry in enumerate(entries) if index not in self.captured]

    def write(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the outputs, the operations written into the graph that is being made."""
        mapped = {
            f"embgrad_input_{index}:0": tensor if tensor.dtype == tf.resource else tf.identity(tensor)
            for index, tensor in enumerate(tensors)
        }
        definition = _with_own_functions(self.definition)
        results = tf.graph_util.import_graph_def(
            definition, input_map=mapped, return_elements=list(self.fetched), name=""
        )
        graph = tf.compat.v1.get_default_graph()
        # An import loses the shapes of the variables that a loop reads, which the loop's gradient needs.
        for node in definition.node:
            if node.op in LOOPS:
                loop = graph.get_operation_by_name(node.name)
                for given, returned in zip(loop.inputs, loop.outputs, strict=True):
                    if returned.dtype == tf.resource:
                        handle_data_util.copy_handle_data(given, returned)
        return list(results or ())

    def fill(self, free: Sequence[Any]) -> list[Any]:
        """Return the inputs in the graph that is being made, where those are given that the function has not captured."""
        remaining, capture = iter(free), tf.compat.v1.get_default_graph().capture
        return [
            capture(self.captured[index]) if index in self.captured else next(remaining)
            for index in range(len(self.specs))
        ]

    @cached_property
    def _function(self) -> Any:
        def run(*inputs: Any) -> list[Any]:
            return self.write(self.fill(inputs))

        with tf.init_scope():  # no tape may record the construction of the graph
            return tf.function(run, autograph=False).get_concrete_function(*self.free(self.specs))


@dataclass(frozen=True)
class GraphGradients:
    """The gradients at tensors before the last stretch.

    Attributes:
        sets: the number of sets of cotangents that the objective returned: one or none.
    """

    pairs: tuple[tuple[Any, Any], ...]
    sets: int
    response: Response


class GraphObjective:
    """An objective that one graph asks between its forward pass and the pullback.

    Args:
        objective: the objective, one of embgrad's own, which any thread may run.
        names: the names of the model's outputs, where the backend knows them.
        unrecorded: is entered while the graph runs, which computes the gradients itself.

    Attributes:
        sets: the number of sets of cotangents that it returned.
        pack: takes the function's results, and returns them in the structure in which it returns them.
        key: identifies the graphs that ask it.
    """

    def __init__(
        self, objective: Respond, names: Sequence[str], unrecorded: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self.unrecorded = unrecorded
        self.sets = 0
        self.pack: Callable[[Sequence[Any]], Any] = tuple
        self.failure: Exception | None = None
        self.response: Response | None = None
        self.key = (tuple(objective.outputs), tuple(names))
        self._objective = objective
        self._names = names

    def targets(self, returned: Any) -> list[Any]:
        """Return the outputs that the objective reads."""
        named = name_outputs(returned, lambda value: isinstance(value, tf.Tensor), self._names)
        return [named[choose_output(named, wanted)] for wanted in self._objective.outputs]

    def respond(self, *arrays: np.ndarray) -> list[np.ndarray]:
        """Return the cotangents of the outputs."""
        try:
            cotangents, self.sets, self.response = whole_cotangents(self._objective, arrays)
        except Exception as error:
            self.failure = error
            raise
        return cotangents


class PullbackGraph:
    """The last stretch of a graph, the objective, and the pullback to the inputs that depend on points, as one graph."""

    def __init__(
        self, stretch: Stretch, order: Sequence[int], sources: Sequence[int], answering: GraphObjective
    ) -> None:
        self._stretch = stretch
        self._sources = sources
        self._reached: list[bool] = []
        self._open: dict[int, GraphObjective] = {}

        def run(number: Any, *free: Any) -> list[Any]:
            def respond(request_number: Any, *arrays: Any) -> list[np.ndarray]:
                return self._open[int(request_number)].respond(*arrays)

            tensors = [tensor if tensor.dtype == tf.resource else tf.identity(tensor) for tensor in stretch.fill(free)]
            outputs = stretch.write(tensors)
            targets = answering.targets(answering.pack([outputs[index] for index in order]))
            cotangents = tf.numpy_function(respond, [number, *targets], [target.dtype for target in targets])
            for cotangent, target in zip(cotangents, targets, strict=True):
                cotangent.set_shape(target.shape)
            pulled = tf.gradients(targets, [tensors[index] for index in sources], cotangents)
            self._reached[:] = [gradient is not None for gradient in pulled]
            return [tf.convert_to_tensor(gradient) for gradient in pulled if gradient is not None]

        specs = [tf.TensorSpec([], tf.int64), *stretch.free(stretch.specs)]
        self._function = tf.function(run, autograph=False).get_concrete_function(*specs)

    def __call__(self, tensors: Sequence[Any], answering: GraphObjective) -> GraphGradients:
        """Return the gradients for these inputs and this objective."""
        number = next(_numbers)
        self._open[number] = answering
        try:
            with answering.unrecorded():
                pulled = self._function(tf.constant(number, tf.int64), *self._stretch.free(tensors))
        except Exception:
            if answering.failure is not None:
                raise answering.failure from None
            raise
        finally:
            del self._open[number]
        reached = [tensors[index] for index, is_reached in zip(self._sources, self._reached, strict=True) if is_reached]
        assert answering.response is not None, "the graph has asked the objective"
        return GraphGradients(tuple(zip(reached, pulled, strict=True)), answering.sets, answering.response)


def stop_at(read: Any) -> Any:
    """Return the operation that stops the gradient to a variable that another operation reads."""
    node = type(read)(name=f"{read.name}{STOP}", op="StopGradient", input=[f"{read.name}:0"])
    node.attr["T"].type = read.attr["dtype"].type
    return node


def definition_with(nodes: Sequence[Any], library: Mapping[str, Any]) -> Any:
    """Return operations, with the functions that they run, as TensorFlow imports them."""
    definition = tf.compat.v1.GraphDef(node=nodes)
    definition.versions.producer = tf.compat.v1.get_default_graph().as_graph_def().versions.producer
    needed, added = [*functions_of(nodes)], set[str]()
    while needed:
        name = needed.pop()
        if name in library and name not in added:
            added.add(name)
            definition.library.function.append(library[name])
            needed += functions_of(library[name].node_def)
    return definition


def _with_own_functions(definition: Any) -> Any:
    """Return the definition with names of functions that no other graph's functions have.

    TensorFlow's optimizer rewrites the functions of loops and branches for each graph that runs them, and registers the results
    in the process by names that it makes of theirs: graphs whose functions had the same names would collide.
    """
    if not definition.library.function:
        return definition
    number, renamed = next(_numbers), type(definition)()
    renamed.CopyFrom(definition)
    functions = renamed.library.function
    names = {function.signature.name: f"{function.signature.name}_embgrad_{number}" for function in functions}
    for function in functions:
        function.signature.name = names[function.signature.name]
    for node in (*renamed.node, *(inner for function in functions for inner in function.node_def)):
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            for called in (*([value.func] if value.WhichOneof("value") == "func" else ()), *value.list.func):
                called.name = names.get(called.name, called.name)
    return renamed


def functions_of(nodes: Sequence[Any]) -> Iterator[str]:
    """Yield the names of the functions that operations run."""
    for node in nodes:
        for value in node.attr.values():
            if value.WhichOneof("value") == "func":
                yield value.func.name
            yield from (function.name for function in value.list.func)
