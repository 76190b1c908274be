"""Run the compiled functions that a model calls, and the traces of models, as graphs in stretches between the points."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from embgrad.backend import Crossings
from embgrad.toolkit import Interception
from embgrad_tensorflow.flattening import definition_of
from embgrad_tensorflow.graphs import CutGraph, cut_graph
from embgrad_tensorflow.stretches import GraphGradients, GraphObjective, PullbackGraph, Stretch

__all__ = ["CutFunctions", "function_calls", "open_functions", "saved_functions_called"]

#: Every compiled call reaches this: signatures, restored functions, `hub.KerasLayer` and concrete functions.
function_calls = Interception(lambda: ConcreteFunction, "_call_flat")
#: TensorFlow traces a restored function again for each new shape; its cache must stay unchanged.
_dispatch = Interception(lambda: type(tf.function(tf.constant)), "__call__")


class CutFunctions:
    """A way to run this thread's compiled functions, and the traces of models, in segments.

    Args:
        replace: takes the key of a point and its tensor, and returns the tensor that goes on.
        perform: takes the type of a single operation, its operands and what runs it, and returns the tensor that goes on.
        record: takes each graph that runs.
        learns: whether a gradient is to reach the variables.
        is_reached: returns whether points were reached, to which a pullback can lead.
        answering: the objective, where it is to be asked in the graph of the only function that the model runs.

    Attributes:
        closed: why functions could not be cut, which then ran as compiled.
    """

    def __init__(
        self,
        watch: Any,
        replace: Callable[[str, Any], Any],
        perform: Callable[[str, Sequence[Any], Callable[[], Any]], Any],
        record: Callable[[CutGraph], None],
        unwatched: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
        *,
        learns: bool = False,
        is_reached: Callable[[], bool] = bool,
        answering: GraphObjective | None = None,
    ) -> None:
        self.closed: list[str] = []
        self.learns = learns
        self.is_reached = is_reached
        self.answering = answering
        self._watch = watch
        self._replace = replace
        self._perform = perform
        self._record = record
        self._unwatched = unwatched
        self._busy = False

    def call(self, original: Callable[..., Any], function: Any, tensors: Sequence[Any], captured_inputs: Any) -> Any:
        """Run a function's graph in place of `ConcreteFunction._call_flat`."""
        passing = self._busy or not tf.executing_eagerly() or "__backward_" in str(function.name)
        if passing or not _has_gradient(function):
            return original(function, tensors, captured_inputs)
        graph = cut_graph(function)
        if isinstance(graph, str):
            self.closed.append(graph)
            return original(function, tensors, captured_inputs)
        arguments = [getattr(value, "handle", value) for value in tensors]
        return self.run(graph, arguments, function.function_type.pack_output)

    def run(self, graph: CutGraph, arguments: Sequence[Any], packed: Callable[[Sequence[Any]], Any]) -> Any:
        """Return what a graph gives, or the gradients of the objective that it asks.

        Args:
            packed: returns its results in the structure in which they are returned.
        """
        self._record(graph)
        crossings = Crossings(self._watch, self._replace, graph.scopes if self._watch.needs_modules else ())
        if self.answering is not None:
            self.answering.pack = packed
        results = _GraphRun(graph, arguments, crossings, self).results()
        return results if isinstance(results, GraphGradients) else packed(results)

    def stretch(self, stretch: Callable[[Sequence[Any]], Any], inputs: Sequence[Any]) -> Any:
        """Return a stretch's outputs."""
        self._busy = True
        try:
            with self._unwatched():
                return stretch(inputs)
        finally:
            self._busy = False

    def alone(self, node: Any, inputs: Sequence[Any]) -> Any:
        """Return the result of an operation, which op callbacks see."""
        function = getattr(tf.raw_ops, node.op)
        remaining, named = list(inputs), {}
        for argument in definition_of(node.op).input_arg:
            named[argument.name] = remaining if argument.number_attr else remaining.pop(0)
        for name in inspect.signature(function).parameters:
            if name in node.attr:
                value = node.attr[name]
                named[name] = getattr(value, value.WhichOneof("value"))
        return self._perform(node.op, inputs, lambda: function(**named))


class _GraphRun:
    """One run of a graph, in stretches."""

    def __init__(self, graph: CutGraph, tensors: Sequence[Any], crossings: Crossings, running: CutFunctions) -> None:
        self._graph = graph
        self._crossings = crossings
        self._running = running
        self._values: dict[str, list[Any]] = {
            name: [tensor] for name, tensor in zip(graph.flat.arguments, tensors, strict=False)
        }
        self._values |= {name: [value] for name, value in graph.captured.items()}

    def results(self) -> list[Any] | GraphGradients:
        """Return the graph's results, or the pullback from behind the points."""
        flat, seen, crossings, done = self._graph.flat, self._graph.seen, self._crossings, 0
        cuts = {number for number, _ in crossings.entries} if crossings.replaces else set()
        for number in sorted(seen | cuts):
            if number in seen:
                self._run_stretch(done, number)
                self._run_alone(number)
            else:
                self._run_stretch(done, number + 1)
            done = number + 1
        if self._running.answering is not None and self._running.is_reached():
            answered = self._answer(done, self._running.answering)
            if answered is not None:
                return answered
        self._run_stretch(done, len(flat.nodes))
        results = [self._value_for(name, len(flat.nodes)) for name in flat.results]
        crossings.report_calls()
        return results

    def _value_for(self, name: str, user: int) -> Any:
        return self._values[name][self._graph.version(name, user, self._crossings)]

    def _put(self, name: str, value: Any) -> None:
        entry = self._graph.entry(name)
        assert entry is not None, "an operation has given it"
        self._values[name] = self._crossings.versions(entry, value)

    def _run_alone(self, number: int) -> None:
        node = self._graph.flat.nodes[number]
        inputs = [self._value_for(name, number) for name in node.input]
        self._put(f"{node.name}:0", self._running.alone(node, inputs))

    def _run_stretch(self, start: int, end: int) -> None:
        if start >= end:
            return
        stretch = self._graph.stretch(start, end, self._crossings, learns=self._running.learns)
        outputs = self._running.stretch(stretch, self._inputs_of(stretch))
        for name, value in zip(stretch.outputs, outputs, strict=True):
            self._put(name, value)

    def _inputs_of(self, stretch: Stretch) -> list[Any]:
        return [self._values[name][version] for name, version in stretch.inputs]

    def _answer(self, start: int, answering: GraphObjective) -> GraphGradients | None:
        """Return the gradients at what the last stretch takes from the points: one graph, with the objective in its midst.

        TensorFlow leaves out of such a graph what the objective does not need. None is for results that other stretches give.
        """
        flat = self._graph.flat
        stretch = self._graph.stretch(start, len(flat.nodes), self._crossings, learns=self._running.learns)
        if not set(flat.results) <= set(stretch.outputs):
            return None
        split = {name for name, versions in self._values.items() if len(versions) > 1}
        behind = self._graph.find_behind_points(start, split, self._values)
        sources = tuple(index for index, (name, _) in enumerate(stretch.inputs) if name in behind)
        key = (start, self._crossings.key, sources, answering.key)

        def make() -> PullbackGraph:
            order = [stretch.outputs.index(name) for name in flat.results]
            return PullbackGraph(stretch, order, sources, answering)

        answers: PullbackGraph = self._graph.make_once(key, make)
        answered: GraphGradients = self._running.stretch(
            lambda tensors: answers(tensors, answering), self._inputs_of(stretch)
        )
        return answered


@contextlib.contextmanager
def open_functions(opening: CutFunctions) -> Iterator[None]:
    """Run the compiled functions of this thread in that way while inside."""
    with function_calls.by(opening.call), saved_functions_called():
        yield


@contextlib.contextmanager
def saved_functions_called() -> Iterator[None]:
    """Call the saved function that fits in place of a restored function, and trace nothing around it, eagerly or in a trace."""
    eagerly = tf.executing_eagerly()

    def dispatch(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(function, "concrete_functions") or tf.executing_eagerly() != eagerly:
            return original(function, *args, **kwargs)
        bound = inspect.signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        converted = tf.nest.map_structure(_convert, (bound.args, bound.kwargs))
        return function.python_function(*converted[0], **converted[1])

    with _dispatch.by(dispatch):
        yield


def _convert(value: Any) -> Any:
    """Return a NumPy array as a tensor of the same dtype."""
    return tf.constant(value) if isinstance(value, (np.ndarray, np.generic)) else value


def _has_gradient(function: Any) -> bool:
    """Return whether a function has an output through which a gradient can flow."""
    return any(
        tensor.dtype.is_floating or tensor.dtype in (tf.variant, tf.resource) for tensor in function.graph.outputs
    )
