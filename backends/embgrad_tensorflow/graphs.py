"""Run saved and compiled functions as graphs that are cut at the points, so that lookups and layers inside are seen."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

from embgrad.backend import (
    INPUT,
    OUTPUT,
    Crossings,
    Entry,
    Scope,
    entering,
    leaving,
    users_of,
)
from embgrad.toolkit import Interception, process_lock
from embgrad_tensorflow.flattening import ClosedGraphError, FlatGraph, definition_of, flatten
from embgrad_tensorflow.operations import (
    CALLS,
    KEEPING,
    LOOKUPS,
    MAKING,
    PRODUCTS,
    READ,
    RESOURCE_LOOKUPS,
    ROWS,
    SAME_TABLE,
    SLICES,
    SPARSE_PRODUCT,
    WRITES,
)
from embgrad_tensorflow.stretches import (
    STOP,
    GraphGradients,
    GraphObjective,
    PullbackGraph,
    Stretch,
    definition_with,
    functions_of,
    stop_at,
)
from embgrad_tensorflow.tracing import MARK, TracedCall

__all__ = [
    *(
        "CutFunctions",
        "CutGraph",
        "cut_graph",
        "cut_trace",
        "function_calls",
        "open_functions",
        "saved_functions_called",
    ),
]

#: Every compiled call reaches this: signatures, restored functions, `hub.KerasLayer` and concrete functions.
function_calls = Interception(lambda: ConcreteFunction, "_call_flat")
#: TensorFlow traces a restored function again for each new shape; its cache must stay unchanged.
_dispatch = Interception(lambda: type(tf.function(tf.constant)), "__call__")

#: Operations that look at a tensor's shape and not at its values.
SHAPES: Final = ("Shape", "ShapeN", "Size", "Rank")

# Graphs

_graphs: WeakKeyDictionary[Any, CutGraph | str] = WeakKeyDictionary()


def cut_graph(function: Any) -> CutGraph | str:
    """Return a ConcreteFunction's graph, kept as long as the function; or the reason why it cannot be cut."""
    with process_lock:
        if function not in _graphs:
            try:
                _graphs[function] = _cut(function)
            except ClosedGraphError as error:
                _graphs[function] = f"{tf.compat.as_str(function.name)}: {error}"
        return _graphs[function]


def cut_trace(function: Any, calls: Sequence[TracedCall], generators: Collection[int]) -> CutGraph:
    """Return the graph of a function into which a model was traced; it refers to no variable's object.

    Args:
        function: a ConcreteFunction.
        calls: the calls of modules that are marked in it.
        generators: the identities of the resources of the model's random generators.

    Raises:
        ClosedGraphError: the graph cannot be cut.
    """
    graph = _cut(function, calls)
    graph.variables = ()
    graph.written = [(handle, is_random or id(handle) in generators) for handle, is_random in graph.written]
    return graph


def _cut(function: Any, calls: Sequence[TracedCall] | None = None) -> CutGraph:
    flat, captures = flatten(function), function.captured_inputs
    names = flat.arguments[len(flat.arguments) - len(captures) :]
    captured = {name: getattr(value, "handle", value) for name, value in zip(names, captures, strict=True)}
    arguments = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in function.graph.inputs]
    return CutGraph(flat, captured, arguments, function.variables, calls)


class CutGraph:
    """A compiled function's graph, which runs in stretches.

    Args:
        flat: its operations.
        captured: by the name of an argument the value that the function has captured.
        arguments: the dtypes and shapes of all arguments.
        variables: the variables among the captured values.
        calls: the marked calls of modules, where a model was traced; the graph's scopes then count as none.

    Attributes:
        flat: its operations.
        variables: see above; a tape does not watch variables that are read by their handles.
        specs: by the name of a tensor its dtype and the part of its shape that is known.
        seen: the numbers of the nodes that run by themselves, so that op callbacks see the lookups.
        casts: the floating-point dtypes that floating-point tensors are turned into.
        written: the captured resources that it writes to, each with whether random numbers are drawn from it.
        foreign: the type of an operation that writes to another resource; None where there is none.
        operations: the types of all operations, those in branches and loops included.
    """

    def __init__(
        self,
        flat: FlatGraph,
        captured: Mapping[str, Any],
        arguments: Sequence[Any],
        variables: Sequence[Any],
        calls: Sequence[TracedCall] | None = None,
    ) -> None:
        self.flat = flat
        self._calls = calls
        self.variables = tuple(variables)
        self._captured = captured
        self._makers = {node.name: number for number, node in enumerate(self.flat.nodes)}
        self._lasts = _last_uses(self.flat)
        self._stretches: dict[Any, Any] = {}
        self.specs = self._infer(arguments)
        self.seen = self._lookups()
        _refuse_lookups_inside(flat, is_trace=calls is not None)
        self.casts = {
            self.specs[f"{node.name}:0"].dtype
            for node in self.flat.nodes
            if node.op == "Cast" and self.specs[node.input[0]].dtype.is_floating
        }
        self.written = self._find_written()

    def entry(self, name: str) -> Entry | None:
        """Return the node and output of a tensor; None for an argument."""
        node, _, output = name.partition(":")
        return (self._makers[node], int(output)) if node in self._makers else None

    @cached_property
    def scopes(self) -> list[Scope]:
        """The scopes that a floating-point tensor leaves; in a trace the calls of modules that are marked."""
        return scopes(self) if self._calls is None else scopes_of_calls(self, self._calls)

    @property
    def operations(self) -> set[str]:
        """See above."""
        library = definition_with(self.flat.nodes, self.flat.library).library
        return {
            node.op for nodes in (self.flat.nodes, *(entry.node_def for entry in library.function)) for node in nodes
        }

    @property
    def foreign(self) -> str | None:
        """See above."""
        return next((node.op for node in self.flat.nodes if _writes(node) and self._is_foreign(node)), None)

    def _is_foreign(self, node: Any) -> bool:
        return any(self.specs[name].dtype == tf.resource and name not in self._captured for name in node.input)

    def run(self, tensors: Sequence[Any], crossings: Crossings, running: CutFunctions) -> list[Any] | GraphGradients:
        """Return the results for these arguments, those that were captured left out; or the pullback from behind the points.

        Args:
            tensors: the arguments.
            crossings: what crosses scopes.
            running: how stretches and single operations are run.
        """
        values: dict[str, list[Any]] = {
            name: [tensor] for name, tensor in zip(self.flat.arguments, tensors, strict=False)
        }
        values |= {name: [value] for name, value in self._captured.items()}
        done = 0
        cuts = {number for number, _ in crossings.entries} if crossings.replaces else set()
        for number in sorted(self.seen | cuts):
            if number in self.seen:
                self._run_stretch(done, number, values, crossings, running)
                self._run_alone(number, values, crossings, running)
            else:
                self._run_stretch(done, number + 1, values, crossings, running)
            done = number + 1
        if running.answering is not None and running.is_reached():
            answered = self._answer(done, values, crossings, running)
            if answered is not None:
                return answered
        self._run_stretch(done, len(self.flat.nodes), values, crossings, running)
        results = [self._value_for(name, len(self.flat.nodes), values, crossings) for name in self.flat.results]
        crossings.report_calls()
        return results

    def _value_for(self, name: str, user: int, values: Mapping[str, list[Any]], crossings: Crossings) -> Any:
        return values[name][self._version(name, user, crossings)]

    def _version(self, name: str, user: int, crossings: Crossings) -> int:
        entry = self.entry(name)
        return 0 if entry is None else crossings.version(entry, user)

    def _run_alone(
        self, number: int, values: dict[str, list[Any]], crossings: Crossings, running: CutFunctions
    ) -> None:
        node = self.flat.nodes[number]
        inputs = [self._value_for(name, number, values, crossings) for name in node.input]
        self._put(f"{node.name}:0", running.alone(node, inputs), values, crossings)

    def _put(self, name: str, value: Any, values: dict[str, list[Any]], crossings: Crossings) -> None:
        entry = self.entry(name)
        assert entry is not None, "an operation has given it"
        values[name] = crossings.versions(entry, value)

    def _run_stretch(
        self, start: int, end: int, values: dict[str, list[Any]], crossings: Crossings, running: CutFunctions
    ) -> None:
        if start >= end:
            return
        stretch = self._known_stretch(start, end, crossings, running)
        inputs = [values[name][version] for name, version in stretch.inputs]
        outputs = running.stretch(stretch, inputs)
        for name, value in zip(stretch.outputs, outputs, strict=True):
            self._put(name, value, values, crossings)

    def _known_stretch(self, start: int, end: int, crossings: Crossings, running: CutFunctions) -> Stretch:
        key = (start, end, running.learns, crossings.key)
        if key not in self._stretches:
            self._stretches[key] = self._stretch(start, end, crossings, learns=running.learns)
        stretch: Stretch = self._stretches[key]
        return stretch

    def _answer(
        self, start: int, values: Mapping[str, list[Any]], crossings: Crossings, running: CutFunctions
    ) -> GraphGradients | None:
        """Return the gradients at what the last stretch takes from the points: one graph, with the objective in its midst.

        TensorFlow leaves out of such a graph what the objective does not need. None is for results that other stretches give.
        """
        stretch = self._known_stretch(start, len(self.flat.nodes), crossings, running)
        answering = running.answering
        assert answering is not None, "there is an objective"
        if not set(self.flat.results) <= set(stretch.outputs):
            return None
        behind = self._behind_points(start, values)
        inputs = [values[name][version] for name, version in stretch.inputs]
        sources = tuple(index for index, (name, _) in enumerate(stretch.inputs) if name in behind)
        key = (start, crossings.key, sources, answering.key)
        if key not in self._stretches:
            order = [stretch.outputs.index(name) for name in self.flat.results]
            self._stretches[key] = PullbackGraph(stretch, order, sources, answering)
        answers: PullbackGraph = self._stretches[key]
        answered: GraphGradients = running.stretch(lambda tensors: answers(tensors, answering), inputs)
        return answered

    def _behind_points(self, start: int, values: Mapping[str, list[Any]]) -> set[str]:
        """Return the floating-point tensors up to a node that depend on lookups, or on values that cross scopes."""
        names = {
            name for name, versions in values.items() if len(versions) > 1 or self.entry(name) in self._row_entries
        }
        for number, node in enumerate(self.flat.nodes[:start]):
            if not names.isdisjoint(node.input):
                names.update(f"{node.name}:{output}" for output in range(self._counts[number]))
        return {name for name in names if self.specs[name].dtype.is_floating}

    @cached_property
    def _row_entries(self) -> set[Entry]:
        """The rows that lookups return, which may be replaced."""
        return {(number, 0) for number in self.seen if self.flat.nodes[number].op in ROWS}

    def _stretch(self, start: int, end: int, crossings: Crossings, *, learns: bool) -> Stretch:
        """Return the nodes from one number up to another as a graph of their own."""
        wanted = {name for name, last in self._lasts.items() if last >= end}
        numbers = self._with_constants(range(start, end))
        inputs: dict[tuple[str, int], str] = {}
        nodes, reads = [], set()
        for number in numbers:
            node = type(self.flat.nodes[number])()
            node.CopyFrom(self.flat.nodes[number])
            for index, name in enumerate(node.input):
                maker = self.entry(name)
                if maker is not None and (maker[0] in numbers):
                    node.input[index] = name.replace(":", f"{STOP}:") if maker[0] in reads else name
                    continue
                source = (name, self._version(name, number, crossings))
                node.input[index] = inputs.setdefault(source, f"embgrad_input_{len(inputs)}:0")
            nodes.append(node)
            if node.op == READ and not learns:
                reads.add(number)
                nodes.append(stop_at(node))
        made = {
            f"{self.flat.nodes[number].name}:{output}": number in reads
            for number in range(start, end)
            for output in range(self._counts[number])
        }
        outputs = [name for name in made if name in wanted or self.entry(name) in crossings.entries]
        fetched = [name.replace(":", f"{STOP}:") if made[name] else name for name in outputs]
        captured = {index: self._captured[name] for index, (name, _) in enumerate(inputs) if name in self._captured}
        specs = [self.specs.get(name) for name, _ in inputs]
        return Stretch(
            tuple(inputs),
            tuple(outputs),
            definition_with(nodes, self.flat.library),
            tuple(fetched),
            captured,
            tuple(specs),
        )

    @cached_property
    def _counts(self) -> list[int]:
        """The number of each node's results."""
        counts = [0] * len(self.flat.nodes)
        for name in self.specs:
            entry = self.entry(name)
            if entry is not None:
                counts[entry[0]] = max(counts[entry[0]], entry[1] + 1)
        return counts

    def _with_constants(self, numbers: range) -> list[int]:
        """Return those numbers and before them those of the constants that they take, since gradients want to know axes."""
        taken = {
            maker[0]
            for number in numbers
            for name in self.flat.nodes[number].input
            if (maker := self.entry(name)) is not None and self.flat.nodes[maker[0]].op == "Const"
        }
        return [*sorted(taken - set(numbers)), *numbers]

    def _infer(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """Return the dtypes and shapes of all tensors, as TensorFlow infers them for the whole graph."""
        captured = {index: self._captured.get(name) for index, name in enumerate(self.flat.arguments)}
        free = [spec for index, spec in enumerate(arguments) if captured[index] is None]

        def import_all(*free_tensors: Any) -> Any:
            remaining = iter(free_tensors)
            graph = tf.compat.v1.get_default_graph()
            tensors = [next(remaining) if value is None else graph.capture(value) for value in captured.values()]
            mapped = dict(zip(self.flat.arguments, tensors, strict=True))
            before = {operation.name for operation in graph.get_operations()}
            definition = definition_with(self.flat.nodes, self.flat.library)
            used = {name for node in self.flat.nodes for name in node.input}
            tf.graph_util.import_graph_def(
                definition, input_map={name: value for name, value in mapped.items() if name in used}, name=""
            )
            created = [operation for operation in graph.get_operations() if operation.name not in before]
            by_name.update({tensor.name: tensor for operation in created for tensor in operation.outputs})
            by_name.update(mapped)

        by_name: dict[str, Any] = {}
        with tf.init_scope():
            tf.function(import_all, autograph=False).get_concrete_function(*free)
        return {name: tf.TensorSpec(tensor.shape, tensor.dtype) for name, tensor in by_name.items()}

    def _find_written(self) -> list[tuple[Any, bool]]:
        writing = [node for node in self.flat.nodes if _writes(node)]
        resources = {
            name: node.op.startswith(("Rng", "Stateful")) and node.op not in CALLS
            for node in writing
            for name in node.input
            if name in self._captured and self.specs[name].dtype == tf.resource
        }
        return [(self._captured[name], is_random) for name, is_random in resources.items()]

    def _lookups(self) -> frozenset[int]:
        """Return the numbers of the operations that look rows of tables up, and of those by which that is seen."""
        inputs = set(self.flat.arguments) - self._captured.keys()
        varying = set(inputs)
        chains: dict[str, frozenset[int]] = {}
        numbers: set[int] = set()

        def table(name: str) -> frozenset[int] | None:
            """Return the operations that read a table; None where the tensor is computed from the batch."""
            steps: list[int] = []
            source = name
            while (entry := self.entry(source)) is not None and self.flat.nodes[entry[0]].op in (*SAME_TABLE, READ):
                steps.append(entry[0])
                source = self.flat.nodes[entry[0]].input[0]
            if source in varying and source not in inputs:
                return None
            return frozenset(steps)

        for number, node in enumerate(self.flat.nodes):
            names = [f"{node.name}:{output}" for output in range(self._counts[number])]
            if any(name in varying for name in node.input):
                varying.update(names)
            if not names or not any(name in varying for name in node.input):
                continue
            operands = list(node.input)
            steps = table(operands[0]) if node.op in LOOKUPS else None
            if steps is not None:  # integer tables too, for the message about a missing lookup
                chains[names[0]] = steps | {number}
                numbers |= chains[names[0]]
            elif node.op in SLICES:
                steps = table(operands[0])
                is_read = steps is not None and any(self.flat.nodes[step].op == READ for step in steps)
                numbers |= steps | {number} if steps is not None and is_read else frozenset()
            elif node.op == SPARSE_PRODUCT:
                numbers.add(number)
            elif node.op in MAKING:
                chains[names[0]] = frozenset({number})
            elif node.op in KEEPING and operands[0] in chains:
                chains[names[0]] = chains[operands[0]] | {number}
            elif node.op in PRODUCTS and len(operands) == 2:
                for rows, other in (operands, operands[::-1]):
                    steps = table(other) if rows in chains else None
                    if steps is not None:
                        numbers |= chains[rows] | steps | {number}
        return frozenset(numbers)


def _last_uses(flat: FlatGraph) -> dict[str, int]:
    """Return for each tensor the index of the last node that takes it; for outputs of the graph the number of nodes."""
    lasts = {name: number for number, node in enumerate(flat.nodes) for name in node.input}
    return lasts | dict.fromkeys(flat.results, len(flat.nodes))


def _refuse_lookups_inside(flat: FlatGraph, *, is_trace: bool) -> None:
    """Refuse a graph that looks rows up in a variable inside of a branch or a loop, which runs as a whole.

    A trace is refused where they are looked up in a value that enters it, too: the model's Python looks up there one by one.

    Raises:
        ClosedGraphError: so it does.
    """
    for node in flat.nodes:
        for function in definition_with([node], flat.library).library.function:
            nodes = {inner.name: inner for inner in function.node_def}
            for inner in function.node_def:
                is_variable = inner.op in RESOURCE_LOOKUPS and tf.as_dtype(inner.attr["dtype"].type).is_floating
                if is_variable or (is_trace and _looks_up_argument(inner, nodes)):
                    raise ClosedGraphError(f"a lookup lies inside {node.op} {node.name!r}, which is a loop or a branch")


def _looks_up_argument(node: Any, nodes: Mapping[str, Any]) -> bool:
    """Return whether an operation in a function looks rows of floating-point numbers up in one of the function's arguments.

    Args:
        node: the operation.
        nodes: the operations of the function, by name.
    """
    if node.op not in LOOKUPS or node.op in RESOURCE_LOOKUPS or node.attr["batch_dims"].i:
        return False
    name = node.input[0].partition(":")[0]
    while name in nodes and nodes[name].op in (*SAME_TABLE, READ):
        name = nodes[name].input[0].partition(":")[0]
    return name not in nodes and bool(tf.as_dtype(node.attr["Tparams"].type).is_floating)


def _writes(node: Any) -> bool:
    definition = definition_of(node.op)
    changes = definition.is_stateful and node.op.startswith(WRITES) and node.op not in LOOKUPS
    return bool(changes or any(functions_of([node])))


def scopes(graph: CutGraph) -> list[Scope]:
    """Return the scopes that a floating-point tensor leaves, in the order in which they are entered.

    Weights do not count among what enters a scope. A tensor goes by the name of the operation that computed it, wherever
    that lies, so that the tensor that leaves one layer is the one that enters the next.
    """
    nodes = graph.flat.nodes
    inputs: list[list[Entry]] = [
        [entry for name in node.input if node.op not in SHAPES and (entry := graph.entry(name)) is not None]
        for node in nodes
    ]
    heads = [entry for name in graph.flat.results if (entry := graph.entry(name)) is not None]
    users = users_of(inputs, heads)
    members: dict[str, list[int]] = {}
    for number, node in enumerate(nodes):
        for path in _paths(node.name):
            members.setdefault(path, []).append(number)
    inner = {path for node in nodes for path in list(_paths(node.name))[:-1]}
    holding = {path.rpartition("/")[0] for path in inner}
    operations = {node.name for node in nodes}

    def carries(entry: Entry) -> bool:
        node = nodes[entry[0]]
        return bool(graph.specs[f"{node.name}:{entry[1]}"].dtype.is_floating and node.op != READ)

    result = []
    for path, numbers in members.items():
        leaves = leaving(numbers, users, carries) if path in inner else None
        if leaves is not None:
            kind = re.sub(r"\d+", "#", path)
            is_operation = path in operations and path not in holding
            enters = entering(numbers, inputs, carries)
            result.append(Scope(path, kind, frozenset(numbers), enters, leaves, is_operation=is_operation))
    return result


def scopes_of_calls(graph: CutGraph, calls: Sequence[TracedCall]) -> list[Scope]:
    """Return the marked calls as scopes: what takes the mark of an input lies inside, what takes that of an output does not."""
    marks = {
        (int(mark[1]), mark[2]): number
        for number, node in enumerate(graph.flat.nodes)
        if (mark := MARK.search(node.name)) is not None
    }
    users: dict[int, set[int]] = defaultdict(set)
    for number, node in enumerate(graph.flat.nodes):
        for name in node.input:
            if (entry := graph.entry(name)) is not None:
                users[entry[0]].add(number)
    result = []
    for index, call in enumerate(calls):
        begins, ends = marks.get((index, INPUT)), marks[index, OUTPUT]
        inside = frozenset([ends, *(() if begins is None else users[begins])])
        enters = None if begins is None else (begins, 0)
        result.append(Scope(call.path, call.kind, inside, enters, (ends, 0), call.occurrence))
    return result


def _paths(name: str) -> Iterator[str]:
    """Yield the scopes that an operation lies in, the outermost first, and its own name, which can be a scope's too."""
    parts = name.split("/")
    for count in range(1, len(parts) + 1):
        yield "/".join(parts[:count])


# Running them instead of the functions


class CutFunctions:
    """A way to run this thread's compiled functions, and the traces of models, in segments.

    Args:
        watch: records the pass.
        replace: takes the key of a point and its tensor, and returns the tensor that goes on.
        perform: takes the type of a single operation, its operands and what runs it, and returns the tensor that goes on.
        record: takes each graph that runs.
        unwatched: a context for a stretch, in which op callbacks ignore operations.
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
            graph: the graph.
            arguments: its arguments.
            packed: returns its results in the structure in which they are returned.
        """
        self._record(graph)
        crossings = Crossings(self._watch, self._replace, graph.scopes if self._watch.needs_modules else ())
        if self.answering is not None:
            self.answering.pack = packed
        results = graph.run(arguments, crossings, self)
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
