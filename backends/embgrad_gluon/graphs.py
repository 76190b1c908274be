"""Run hybridised blocks and SymbolBlocks operator by operator, so that lookups are seen and operators cured as in any block."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.backend import Entry, users_of
from embgrad.errors import UnsupportedError, quote
from embgrad.toolkit import PLAIN, Interception, preserve_generators, process_lock
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.lookup import ignore_operators, invoke
from embgrad_gluon.modules import ignore_calls
from embgrad_gluon.state import RANDOM_OPERATORS, Attributes
from embgrad_gluon.walk import all_blocks, input_names

__all__ = [
    *("VARIABLE", "Graph", "Node", "Observer", "PerUserValue", "ValueCallback"),
    *("expect_agreement", "graph_of", "imperatively", "intercept_cached_graphs", "output_names", "run_imperatively"),
]

_cached = Interception(lambda: import_mxnet().gluon.HybridBlock, "_call_cached_op")
_scope = Interception(lambda: type(import_mxnet().autograd.pause()), "__enter__")

#: `on_value(node_number, output_index, array)` returns the array that goes on in the value's place, the array itself where it is
#: only looked at, a `PerUserValue` where its users get different arrays.
ValueCallback = Callable[[int, int, Any], Any]

#: Takes a SymbolBlock that is about to run and its arguments; a context of the callback for the graph's values, or None.
Observer = Callable[[Any, Sequence[Any]], AbstractContextManager[ValueCallback | None]]


def _observe_nothing(_block: Any, _args: Sequence[Any]) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


def intercept_cached_graphs(handler: Callable[..., Any]) -> AbstractContextManager[None]:
    """While it is open, this thread's hybridised blocks and SymbolBlocks return `handler(original, block, *args)`."""
    return _cached.by(handler)


@contextlib.contextmanager
def imperatively(observe: Observer = _observe_nothing) -> Iterator[None]:
    """Run this thread's hybridised blocks and SymbolBlocks operator by operator; their cached graphs stay as they are."""
    depth = 0

    def run(_original: Any, block: Any, *args: Any) -> Any:
        nonlocal depth
        if depth == 0:  # comparing a block compares all blocks inside it, too
            expect_agreement(block, args)
        depth += 1
        try:
            return run_imperatively(block, args, observe)
        finally:
            depth -= 1

    with intercept_cached_graphs(run):
        yield


def run_imperatively(block: Any, args: Sequence[Any], observe: Observer = _observe_nothing) -> Any:
    """Run a hybridised block or a SymbolBlock operator by operator."""
    mx = import_mxnet()
    if isinstance(block, mx.gluon.SymbolBlock):
        with observe(block, args) as on_value:
            return _run_symbol(block, args, on_value)
    # As `HybridBlock.forward` does where it is not hybridised. The block's own flag stays, since other threads read it.
    return block.hybrid_forward(mx.ndarray, *args, **_arrays(block, block._reg_params, block.params.values(), args))


def _arrays(block: Any, parameters: Mapping[str, Any], deferred: Iterable[Any], args: Sequence[Any]) -> dict[str, Any]:
    """Return the parameters' arrays by name; those that wait for their shapes get them from the arguments."""
    try:
        return {name: parameter.data() for name, parameter in parameters.items()}
    except import_mxnet().gluon.parameter.DeferredInitializationError:
        block.infer_shape(*args)
        for parameter in deferred:
            parameter._finish_deferred_init()
    return {name: parameter.data() for name, parameter in parameters.items()}


# Comparison of a hybridised block's Python with its graph

#: The largest difference of a graph from its Python, relative to its largest number: rounding, in another order.
TOLERANCES: Final = {"float16": 5e-2, "float32": 1e-3, "float64": 1e-8}

#: Operators that hold state or draw random numbers, so that two runs may differ.
NONDETERMINISTIC: Final = frozenset({*RANDOM_OPERATORS, "Custom"} - {"Dropout"})

_agreed: weakref.WeakKeyDictionary[Any, Hashable] = weakref.WeakKeyDictionary()


def expect_agreement(block: Any, args: Sequence[Any]) -> None:
    """Compare the outputs of a block's Python and of its graph: once for each graph and setting of the blocks' attributes."""
    mx = import_mxnet()
    if isinstance(block, mx.gluon.SymbolBlock) or block._cached_op is None:
        return
    blocks, graph = all_blocks([block]), block._cached_graph[1]
    settings = (block._cached_op, *map(_settings, blocks))
    # A graph that was made for other arguments, such as for lengths beside the ids, does not apply to a call without them.
    if _agreed.get(block) == settings or _trim(mx.gluon.block._flatten(list(args), "input")[1]) != _trim(
        block._in_format
    ):
        return
    if not _is_nondeterministic(graph):
        attributes = Attributes(blocks)
        try:
            with preserve_generators(), mx.autograd.pause(train_mode=False), ignore_operators(), ignore_calls():
                _expect_close(block, _by_graph(block, graph, args), _by_python(block, args))
        finally:
            attributes.restore()
    _agreed[block] = settings


def _expect_close(block: Any, graph: Sequence[Any], python: Sequence[Any]) -> None:
    if len(graph) != len(python) or not all(map(_are_close, graph, python)):
        raise UnsupportedError(
            f"{type(block).__name__} {block.name!r} is hybridised, and its graph computes something else than its Python, which "
            "embgrad runs: an attribute has changed since the graph was traced, or the Python branches on F. Call hybridize() "
            "again, which traces a new graph"
        )


def _are_close(graph: Any, python: Any) -> bool:
    a, b = (
        array.astype(np.result_type(array, np.float32), copy=False) for array in (python.asnumpy(), graph.asnumpy())
    )
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    allowed = TOLERANCES.get(np.dtype(graph.dtype).name, 0.0) * largest
    return a.shape == b.shape and np.allclose(a, b, rtol=0, atol=allowed, equal_nan=True)


def _by_graph(block: Any, graph: Any, args: Sequence[Any]) -> list[Any]:
    """Return the graph's outputs, computed beside the block's own, whose memory may be in use."""
    mx = import_mxnet()
    given = [array for array in mx.gluon.block._flatten(list(args), "input")[0] if array is not None]
    inputs = [given[entry] if is_input else entry.data() for is_input, entry in block._cached_op_args]
    outputs = mx.nd.CachedOp(graph, [])(*inputs)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _by_python(block: Any, args: Sequence[Any]) -> list[Any]:
    symbolic = import_mxnet().gluon.SymbolBlock

    def run_child(original: Callable[..., Any], child: Any, *given: Any) -> Any:
        return original(child, *given) if isinstance(child, symbolic) else run_imperatively(child, given)

    def refuse(*_: Any) -> Any:
        raise UnsupportedError(
            f"{type(block).__name__} {block.name!r} is hybridised, and its Python, which embgrad runs, enters autograd.pause() "
            "or another scope of mxnet.autograd, which its graph does not contain. Use F.stop_gradient instead, and call "
            "hybridize() again, which traces a new graph"
        )

    with intercept_cached_graphs(run_child), _scope.by(refuse):
        returned = run_imperatively(block, args)
    return list(import_mxnet().gluon.block._flatten(returned, "output")[0])


def _trim(in_format: Any) -> list[Any]:
    """Return Gluon's description of arguments without those omitted at the end, each of which is -1."""
    given = list(in_format) if isinstance(in_format, (list, tuple)) else [in_format]
    while given and given[-1] == -1:
        given.pop()
    return given


def _is_nondeterministic(graph: Any) -> bool:
    """Return whether two runs of a graph may give different numbers."""
    nodes = json.loads(graph.tojson())["nodes"]
    dropouts = [node.get("attrs") or {} for node in nodes if node["op"] == "Dropout"]
    return any(node["op"] in NONDETERMINISTIC for node in nodes) or any(d.get("mode") == "always" for d in dropouts)


def _settings(block: Any) -> Hashable:
    """Return the identities of a block and its parameters, and its plain attributes, on which its Python may depend."""
    plain = [
        (name, value if isinstance(value, PLAIN) else repr(value))
        for name, value in vars(block).items()
        if _is_plain(value)
    ]
    return (id(block), *map(id, block._reg_params.values()), *plain)


def _is_plain(value: Any) -> bool:
    if isinstance(value, PLAIN):
        return True
    entries = value.values() if type(value) is dict else value if type(value) in (list, tuple) else None
    return entries is not None and all(isinstance(entry, PLAIN) for entry in entries)


# The graphs of SymbolBlocks

#: The operator of a node that is an input or a parameter.
VARIABLE: Final = "null"


@dataclass(frozen=True)
class PerUserValue:
    """A value that differs between the nodes that use it.

    Attributes:
        value_for: returns the array for a user: a node's number, or the number of nodes for the caller.
    """

    value_for: Callable[[int], Any]


@dataclass(frozen=True)
class Node:
    """One step of a graph.

    Attributes:
        op: the operator's own name, or `VARIABLE`.
        name: the name in the graph; several nodes may share one.
        attributes: the arguments of the operator.
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
        finished: by a node's number the nodes whose values are not needed after it.
    """

    symbol: Any
    nodes: tuple[Node, ...]
    heads: tuple[Entry, ...]
    inputs: tuple[str, ...]
    as_numpy: bool
    finished: tuple[tuple[int, ...], ...]


_graphs: weakref.WeakKeyDictionary[Any, Graph] = weakref.WeakKeyDictionary()


def graph_of(block: Any) -> Graph:
    """Return the graph of a SymbolBlock, parsed once for as long as the block has it, since MXNet's JSON leaks memory."""
    symbol = block._cached_graph[1]
    with process_lock:
        known = _graphs.get(block)
    if known is None or known.symbol is not symbol:
        known = _parse(block, symbol)
        with process_lock:
            _graphs[block] = known
    return known


def output_names(model: Any) -> tuple[str, ...]:
    """Return the names that a SymbolBlock's symbol gives to the outputs; none for another model."""
    if not isinstance(model, import_mxnet().gluon.SymbolBlock):
        return ()
    return tuple(model._cached_graph[1].list_outputs())


def _run_symbol(block: Any, args: Sequence[Any], on_value: ValueCallback | None) -> Any:
    """Run a SymbolBlock; `on_value` is called with every value once it is computed, inputs and parameters included."""
    utilities = import_mxnet().gluon.block
    graph = graph_of(block)
    flat, structure = utilities._flatten(list(args), "input")
    if structure != block._in_format:  # as the block itself checks
        raise ValueError(
            f"{type(block).__name__} {block.name!r} was called with {len(args)} arguments of structure {structure}. Pass "
            f"{quote(input_names(block))}, of structure {block._in_format}"
        )
    known = {name: array for name, array in zip(input_names(block), flat, strict=True) if array is not None}
    parameters = dict(block.collect_params().items())
    # A device backend of MXNet may have added parameters of its own to the graph.
    parameters |= {entry.name: entry for is_input, entry in block._cached_op_args if not is_input}
    names = [node.name for node in graph.nodes if node.op == VARIABLE and node.name not in known]
    parameters_read = {name: parameters[name] for name in names}
    known |= _arrays(block, parameters_read, parameters_read.values(), args)
    if graph.as_numpy:  # Gluon may have loaded the parameters as arrays of the older kind, also where it runs mx.np
        known = {name: array.as_np_ndarray() for name, array in known.items()}
    values = _values(graph, known, on_value)
    return utilities._regroup([_value(values, head, len(graph.nodes)) for head in graph.heads], block._out_format)


def _values(graph: Graph, known: Mapping[str, Any], on_value: ValueCallback | None) -> dict[int, Sequence[Any]]:
    """Return by node the values that remain after the run: those of the heads."""
    missing = _missing_attributes(graph, known)
    values: dict[int, Sequence[Any]] = {}
    for number, node in enumerate(graph.nodes):
        if node.op == VARIABLE:
            outputs = [known[node.name]]
        else:
            inputs = [_value(values, entry, number) for entry in node.inputs]
            op = "_zeros" if node.op == "_zeros_without_dtype" else node.op
            outputs = invoke(op, inputs, {**node.attributes, **missing.get(number, {})}, graph.as_numpy)
        if on_value is not None:
            outputs = [on_value(number, output, array) for output, array in enumerate(outputs)]
        values[number] = outputs
        for done in graph.finished[number]:
            del values[done]
    return values


def _value(values: Mapping[int, Sequence[Any]], entry: Entry, user: int) -> Any:
    value = values[entry[0]][entry[1]]
    return value.value_for(user) if isinstance(value, PerUserValue) else value


def _missing_attributes(graph: Graph, known: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return by number the attributes that nodes without inputs lack, such as a recurrent layer's first state.

    Sizes and the dtype may be unknown: MXNet infers them over the whole graph before it runs.
    """
    mx = import_mxnet()
    context, unknown = mx.current_context(), -1 if mx.util.is_np_shape() else 0
    inferred = functools.cache(lambda what: _infer(graph, known, what))
    missing: dict[int, dict[str, Any]] = {}
    for number, node in enumerate(graph.nodes):
        if node.op == VARIABLE or node.inputs:
            continue
        missing[number] = {} if context == mx.cpu() else {"ctx": str(context)}
        shape = node.attributes.get("shape")
        if isinstance(shape, (tuple, list)) and unknown in shape:
            shape = inferred("shape")[number, 0] or (unknown,)
            missing[number]["shape"] = _expect_inferred(graph, number, "shape", None if unknown in shape else shape)
        if node.op == "_zeros_without_dtype":
            missing[number]["dtype"] = np.dtype(
                _expect_inferred(graph, number, "type", inferred("type")[number, 0])
            ).name
    return missing


def _expect_inferred(graph: Graph, number: int, what: str, value: Any) -> Any:
    """Return an inferred shape or type; refuse None."""
    if value is None:
        node = graph.nodes[number]
        raise UnsupportedError(
            f"node {number}, {node.name!r}, of the symbol is {node.op!r} with attributes {dict(node.attributes)}, whose {what} "
            "cannot be inferred from the inputs. Export the net again with explicit sizes"
        )
    return value


def _infer(graph: Graph, known: Mapping[str, Any], what: str) -> dict[Entry, Any]:
    """Return the shapes or the types of all values, as far as they follow from those of the inputs and parameters."""
    internals = graph.symbol.get_internals()
    infer = internals.infer_shape_partial if what == "shape" else internals.infer_type_partial
    names = set(internals.list_inputs())
    given = {name: array.shape if what == "shape" else array.dtype for name, array in known.items() if name in names}
    heads = json.loads(internals.tojson())["heads"]
    return {(head[0], head[1]): value for head, value in zip(heads, infer(**given)[1], strict=True)}


def _parse(block: Any, symbol: Any) -> Graph:
    described = json.loads(symbol.tojson())
    for number, node in enumerate(described["nodes"]):
        if node.get("subgraphs"):
            raise UnsupportedError(
                f"node {number} of SymbolBlock {block.name!r}, {node['name']!r}, is {node['op']!r}, an operator with a graph of "
                "its own (a loop, a condition, or operators fused for a device), which embgrad cannot enter. Build the net from "
                "its Python class and load the parameters with load_parameters, or export it with loops unrolled and without "
                "optimize_for"
            )
    nodes = tuple(_node(node) for node in described["nodes"])
    heads = tuple((head[0], head[1]) for head in described["heads"])
    as_numpy = isinstance(symbol, type(import_mxnet().sym.var("any").as_np_ndarray()))
    return Graph(symbol, nodes, heads, tuple(input_names(block)), as_numpy, _find_finished(nodes, heads))


def _node(node: Mapping[str, Any]) -> Node:
    # Attributes that begin with two underscores are MXNet's own notes, such as __lr_mult__.
    given = {key: value for key, value in (node.get("attrs") or {}).items() if not key.startswith("__")}
    if node["op"] != "Custom":  # the arguments of Custom are strings
        given = {key: _literal(value) for key, value in given.items()}
    return Node(node["op"], node["name"], given, tuple((entry[0], entry[1]) for entry in node["inputs"]))


def _literal(text: str) -> Any:
    """Return an attribute as Python code would have passed it: a number, a truth value, None or a tuple; else the string."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, (bool, int, float, tuple, list, type(None))) else text


def _find_finished(nodes: Sequence[Node], heads: Sequence[Entry]) -> tuple[tuple[int, ...], ...]:
    finished: list[list[int]] = [[] for _ in range(len(nodes) + 1)]  # the last list holds what the caller uses
    users = users_of([node.inputs for node in nodes], heads)
    for number in range(len(nodes)):
        finished[max((user for user, _ in users.get(number, ())), default=number)].append(number)
    return tuple(map(tuple, finished))
