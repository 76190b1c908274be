"""Cut the graphs of saved and compiled functions, and of traces, at the points, so that lookups and layers inside are seen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final
from weakref import WeakKeyDictionary

import tensorflow as tf

from embgrad.backend import Crossings, Entry, Scope
from embgrad.toolkit import process_lock
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
from embgrad_tensorflow.scopes import scopes_of_calls, scopes_of_names
from embgrad_tensorflow.stretches import STOP, Stretch, definition_with, functions_of, stop_at
from embgrad_tensorflow.tracing import TracedCall

__all__ = ["CutGraph", "cut_graph", "cut_trace"]

#: Operations that look at a tensor's shape and not at its values.
SHAPES: Final = ("Shape", "ShapeN", "Size", "Rank")

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
        captured: by the name of an argument the value that the function has captured.
        variables: the variables among the captured values.
        calls: the marked calls of modules, where a model was traced; the graph's scopes then count as none.

    Attributes:
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
        self.captured = captured
        self._makers = {node.name: number for number, node in enumerate(self.flat.nodes)}
        self._lasts = _last_uses(self.flat)
        self._made: dict[Any, Any] = {}
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
        names = [node.name for node in self.flat.nodes]
        takes = [self._entries(node.input) for node in self.flat.nodes]
        if self._calls is not None:
            return scopes_of_calls(names, takes, self._calls)
        inputs = [[] if node.op in SHAPES else taken for node, taken in zip(self.flat.nodes, takes, strict=True)]
        return scopes_of_names(names, inputs, self._entries(self.flat.results), self._carries)

    def _entries(self, names: Iterable[str]) -> list[Entry]:
        return [entry for name in names if (entry := self.entry(name)) is not None]

    def _carries(self, entry: Entry) -> bool:
        """Return whether a value is floating-point and no weight."""
        node = self.flat.nodes[entry[0]]
        return bool(self.specs[f"{node.name}:{entry[1]}"].dtype.is_floating and node.op != READ)

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
        return any(self.specs[name].dtype == tf.resource and name not in self.captured for name in node.input)

    @cached_property
    def _row_entries(self) -> set[Entry]:
        """The rows that lookups return, which may be replaced."""
        return {(number, 0) for number in self.seen if self.flat.nodes[number].op in ROWS}

    def find_behind_points(self, start: int, split: Collection[str], known: Collection[str]) -> set[str]:
        """Return the floating-point tensors up to a node that depend on lookups, or on values that cross scopes.

        Args:
            split: the tensors that cross scopes and are replaced there.
            known: the tensors that have been computed.
        """
        names = {*split, *(name for name in known if self.entry(name) in self._row_entries)}
        for number, node in enumerate(self.flat.nodes[:start]):
            if not names.isdisjoint(node.input):
                names.update(f"{node.name}:{output}" for output in range(self._counts[number]))
        return {name for name in names if self.specs[name].dtype.is_floating}

    def version(self, name: str, user: int, crossings: Crossings) -> int:
        """Return which of a tensor's versions a node takes."""
        entry = self.entry(name)
        return 0 if entry is None else crossings.version(entry, user)

    def make_once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return what has been made of this graph under a key, and make it where there is nothing yet."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def stretch(self, start: int, end: int, crossings: Crossings, *, learns: bool) -> Stretch:
        """Return the nodes from one number up to another as a graph of their own."""
        stretch: Stretch = self.make_once(
            (start, end, learns, crossings.key), lambda: self._stretch(start, end, crossings, learns=learns)
        )
        return stretch

    def _stretch(self, start: int, end: int, crossings: Crossings, *, learns: bool) -> Stretch:
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
                source = (name, self.version(name, number, crossings))
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
        captured = {index: self.captured[name] for index, (name, _) in enumerate(inputs) if name in self.captured}
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
        captured = {index: self.captured.get(name) for index, name in enumerate(self.flat.arguments)}
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
            if name in self.captured and self.specs[name].dtype == tf.resource
        }
        return [(self.captured[name], is_random) for name, is_random in resources.items()]

    def _lookups(self) -> frozenset[int]:
        """Return the numbers of the operations that look rows of tables up, and of those by which that is seen."""
        inputs = set(self.flat.arguments) - self.captured.keys()
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
    """
    for node in flat.nodes:
        for function in definition_with([node], flat.library).library.function:
            nodes = {inner.name: inner for inner in function.node_def}
            for inner in function.node_def:
                is_variable = inner.op in RESOURCE_LOOKUPS and tf.as_dtype(inner.attr["dtype"].type).is_floating
                if is_variable or (is_trace and _looks_up_argument(inner, nodes)):
                    raise ClosedGraphError(f"a lookup lies inside {node.op} {node.name!r}, which is a loop or a branch")


def _looks_up_argument(node: Any, nodes: Mapping[str, Any]) -> bool:
    """Return whether an operation in a function looks rows of floating-point numbers up in one of the function's arguments."""
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
