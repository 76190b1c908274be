"""Runs a SymbolBlock's graph operator by operator, so that its lookups are seen and its operators cured as any block's."""

from __future__ import annotations

import ast
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.errors import UnsupportedError, listed
from embgrad.locks import process_lock
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.walk import input_names

__all__ = [
    "Apart",
    "Entry",
    "Graph",
    "Invoke",
    "Node",
    "OnValue",
    "graph_of",
    "literal",
    "output_names",
    "run_open",
]

#: A value in a graph: its node's number and which of the node's outputs it is.
Entry = tuple[int, int]

#: Runs an operator: `invoke(name, inputs, attributes, as_numpy)` gives its visible outputs.
Invoke = Callable[[str, list[Any], dict[str, Any], bool], list[Any]]

#: `on_value(node_number, output_index, name, array)` gives what goes on in the value's place, the array itself where it is
#: only looked at, an `Apart` where its users are given different ones.
OnValue = Callable[[int, int, str, Any], Any]

#: What a node that is no operator is called: an input or a parameter.
VARIABLE: Final = "null"

#: Fills whose dtype is their consumer's.
WITHOUT_DTYPE: Final = ("_zeros_without_dtype",)


@dataclass(frozen=True)
class Apart:
    """A value that is not the same for all that use it.

    Attributes:
        given: gives the array for a user: a node's number, or the number of the nodes for the caller.
    """

    given: Callable[[int], Any]


@dataclass(frozen=True)
class Node:
    """One step of a graph.

    Attributes:
        op: the operator's own name, or `VARIABLE`.
        name: as the graph names it; several nodes may have one name.
        attributes: what the operator is called with.
        inputs: the values that it takes, in order, auxiliary states included.
    """

    op: str
    name: str
    attributes: Mapping[str, Any]
    inputs: tuple[Entry, ...]


@dataclass(frozen=True)
class Graph:
    """A symbol's nodes, in an order in which they can be run.

    Attributes:
        symbol: the symbol itself.
        nodes: by number.
        heads: the values that it returns.
        inputs: the names of those variables that are arguments of the block; the others are parameters.
        as_numpy: whether its values are arrays of mx.np.
        finished: by a node's number, those whose values nothing needs after it.
    """

    symbol: Any
    nodes: tuple[Node, ...]
    heads: tuple[Entry, ...]
    inputs: tuple[str, ...]
    as_numpy: bool
    finished: tuple[tuple[int, ...], ...]


_graphs: weakref.WeakKeyDictionary[Any, Graph] = weakref.WeakKeyDictionary()


def graph_of(block: Any) -> Graph:
    """The graph of a SymbolBlock, parsed once for as long as the block has it.

    Raises:
        UnsupportedError: a node of it has a graph of its own.
    """
    symbol = block._cached_graph[1]
    with process_lock:
        known = _graphs.get(block)
    if known is None or known.symbol is not symbol:
        known = _parsed(block, symbol)
        with process_lock:
            _graphs[block] = known
    return known


def output_names(model: Any) -> tuple[str, ...]:
    """The names that a SymbolBlock's symbol gives what it returns; none for another model."""
    if not isinstance(model, import_mxnet().gluon.SymbolBlock):
        return ()
    return tuple(model._cached_graph[1].list_outputs())


def run_open(block: Any, args: Sequence[Any], invoke: Invoke, on_value: OnValue | None = None) -> Any:
    """What the SymbolBlock returns for these arguments.

    Args:
        block: with a symbol of its own.
        args: as its `forward` takes them.
        invoke: runs one operator.
        on_value: sees every value as soon as it is there, inputs and parameters included, and may replace it.

    Raises:
        UnsupportedError: the graph cannot be run operator by operator.
    """
    utilities = import_mxnet().gluon.block
    graph = graph_of(block)
    flat, structure = utilities._flatten(list(args), "input")
    if structure != block._in_format:  # as the block itself says it
        raise ValueError(
            f"{type(block).__name__} {block.name!r} was called with {len(args)} arguments of structure {structure}: expected "
            f"{listed(input_names(block))}, of structure {block._in_format}"
        )
    known = {name: array for name, array in zip(input_names(block), flat, strict=True) if array is not None}
    known |= _parameters(block, graph, known, args)
    if graph.as_numpy:  # Gluon may have loaded the parameters as arrays of the older kind, also where it runs mx.np
        known = {name: array.as_np_ndarray() for name, array in known.items()}
    values = _values(graph, known, invoke, on_value)
    return utilities._regroup([_given(values, head, len(graph.nodes)) for head in graph.heads], block._out_format)


def _given(values: Mapping[int, Sequence[Any]], entry: Entry, user: int) -> Any:
    value = values[entry[0]][entry[1]]
    return value.given(user) if isinstance(value, Apart) else value


def _values(
    graph: Graph, known: Mapping[str, Any], invoke: Invoke, on_value: OnValue | None
) -> dict[int, Sequence[Any]]:
    """By node the values that are left in the end: those of the heads."""
    fills = _Fills(graph, known)
    values: dict[int, Sequence[Any]] = {}
    for number, node in enumerate(graph.nodes):
        if node.op == VARIABLE:
            outputs = [known[node.name]]
        else:
            inputs = [_given(values, entry, number) for entry in node.inputs]
            outputs = invoke(node.op, inputs, fills.attributes(number), graph.as_numpy)
        if on_value is not None:
            outputs = [on_value(number, place, node.name, array) for place, array in enumerate(outputs)]
        values[number] = outputs
        for done in graph.finished[number]:
            del values[done]
    return values


def _parameters(block: Any, graph: Graph, inputs: Mapping[str, Any], args: Sequence[Any]) -> dict[str, Any]:
    """The arrays of the graph's other variables, as the block's own call takes them: those of the current context."""
    mx = import_mxnet()
    parameters = dict(block.collect_params().items())
    # Another backend of MXNet's may have added some of its own to the graph.
    parameters |= {entry.name: entry for is_input, entry in block._cached_op_args if not is_input}
    wanted = [node.name for node in graph.nodes if node.op == VARIABLE and node.name not in inputs]
    try:
        return {name: parameters[name].data() for name in wanted}
    except mx.gluon.parameter.DeferredInitializationError:
        block._deferred_infer_shape(*args)
        for name in wanted:
            parameters[name]._finish_deferred_init()
    return {name: parameters[name].data() for name in wanted}


class _Fills:
    """The attributes of a graph's nodes for inputs of these shapes.

    What fills an array from nothing, such as a recurrent layer's first state, may leave sizes, or the dtype, to what takes
    the array. MXNet infers them over the whole graph before it runs; here they are inferred when the first such node comes.
    """

    def __init__(self, graph: Graph, known: Mapping[str, Any]) -> None:
        self._graph = graph
        self._known = known
        self._inferred: dict[str, dict[Entry, Any]] = {}
        mx = import_mxnet()
        self._context = mx.current_context()
        self._unknown = -1 if mx.util.is_np_shape() else 0

    def attributes(self, number: int) -> dict[str, Any]:
        """Those that the node is called with."""
        node = self._graph.nodes[number]
        attributes = dict(node.attributes)
        if node.inputs:
            return attributes
        if self._context != import_mxnet().cpu():
            attributes["ctx"] = str(self._context)
        shape = attributes.get("shape")
        if isinstance(shape, (tuple, list)) and self._unknown in shape:
            attributes["shape"] = self._infer("shape", number)
        if node.op in WITHOUT_DTYPE:
            codes = import_mxnet().ndarray.ndarray._DTYPE_NP_TO_MX  # which this operator takes in place of a name
            attributes["dtype"] = codes[np.dtype(self._infer("type", number)).type]
        return attributes

    def _infer(self, what: str, number: int) -> Any:
        """The node's shape or type."""
        if what not in self._inferred:
            self._inferred[what] = self._infer_all(what)
        found = self._inferred[what][number, 0]
        if found is None or (what == "shape" and (len(found) == 0 or self._unknown in found)):
            node = self._graph.nodes[number]
            raise UnsupportedError(
                f"node {number}, {node.name!r}, of the symbol is {node.op!r} with attributes {dict(node.attributes)}, and "
                f"what takes its array does not tell the {what}: expected a {what} that follows from the inputs; export the "
                "net again with the sizes given"
            )
        return found

    def _infer_all(self, what: str) -> dict[Entry, Any]:
        internals = self._graph.symbol.get_internals()
        names = set(internals.list_inputs())
        given = {
            name: array.shape if what == "shape" else array.dtype
            for name, array in self._known.items()
            if name in names
        }
        inferred = getattr(internals, f"infer_{what}_partial")(**given)[1]
        heads = json.loads(internals.tojson())["heads"]
        return {(head[0], head[1]): found for head, found in zip(heads, inferred, strict=True)}


def _parsed(block: Any, symbol: Any) -> Graph:
    described = json.loads(symbol.tojson())
    for number, node in enumerate(described["nodes"]):
        if node.get("subgraphs"):
            raise UnsupportedError(
                f"node {number} of SymbolBlock {block.name!r}, {node['name']!r}, is {node['op']!r}, an operator with a graph of "
                "its own (a loop, a condition, or operators fused for a device), into which embgrad cannot see: expected plain "
                "operators; build the net from its Python class and load the parameters with load_parameters, or export it with "
                "its loops unrolled and without optimize_for"
            )
    nodes = tuple(_node(node) for node in described["nodes"])
    heads = tuple((head[0], head[1]) for head in described["heads"])
    as_numpy = isinstance(symbol, import_mxnet().sym.numpy._Symbol)
    return Graph(symbol, nodes, heads, tuple(input_names(block)), as_numpy, _finished(nodes, heads))


def _node(node: Mapping[str, Any]) -> Node:
    # Those of two underscores are notes of MXNet's own, such as __lr_mult__.
    given = {key: value for key, value in (node.get("attrs") or {}).items() if not key.startswith("__")}
    if node["op"] != "Custom":  # whose arguments are strings
        given = {key: literal(value) for key, value in given.items()}
    return Node(node["op"], node["name"], given, tuple((entry[0], entry[1]) for entry in node["inputs"]))


def literal(text: str) -> Any:
    """An attribute as Python code would have passed it: a number, a truth value, None or a tuple; else the string."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, (bool, int, float, tuple, list, type(None))) else text


def _finished(nodes: Sequence[Node], heads: Sequence[Entry]) -> tuple[tuple[int, ...], ...]:
    last = {number: number for number in range(len(nodes))}
    for number, node in enumerate(nodes):
        last |= {source: number for source, _ in node.inputs}
    needed = {number for number, _ in heads}
    finished: list[list[int]] = [[] for _ in nodes]
    for source, number in last.items():
        if source not in needed:
            finished[number].append(source)
    return tuple(map(tuple, finished))
