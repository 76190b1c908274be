"""Runs hybridised blocks and SymbolBlocks operator by operator, so that lookups are seen and operators cured as any block's."""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import re
import weakref
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.backend.graph_scopes import Crossings, Entry, Scope, entering, leaving, users_of
from embgrad.backend.locks import process_lock
from embgrad.backend.patching import Interception
from embgrad.backend.rng import preserve_generators
from embgrad.common.pytree import PLAIN
from embgrad.errors import UnsupportedError, listed
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import is_floating
from embgrad_gluon.lookup import invoke, unwatched
from embgrad_gluon.modules import unheard
from embgrad_gluon.pullback import differentiable_inputs
from embgrad_gluon.state import DRAWING, Attributes
from embgrad_gluon.tap import Taps
from embgrad_gluon.walk import all_blocks, input_names, is_recorded

__all__ = [
    *("VARIABLE", "Apart", "Graph", "GraphPoints", "Node", "OnSymbolBlock", "OnValue", "at_cached_graphs"),
    *("expect_agreement", "graph_of", "imperatively", "output_names", "run_open", "scope_paths", "scopes"),
]

_cached = Interception(lambda: import_mxnet().gluon.HybridBlock, "_call_cached_op")
_scope = Interception(lambda: type(import_mxnet().autograd.pause()), "__enter__")

#: `on_value(node_number, output_index, array)` gives the array that goes on in the value's place, the array itself where it is
#: only looked at, an `Apart` where its users are given different ones.
OnValue = Callable[[int, int, Any], Any]

#: Takes a SymbolBlock that is about to run and its arguments; while it is open gives what sees the graph's values, or None.
OnSymbolBlock = Callable[[Any, Sequence[Any]], AbstractContextManager[OnValue | None]]


def _nobody(_block: Any, _args: Sequence[Any]) -> AbstractContextManager[None]:
    return contextlib.nullcontext()


def at_cached_graphs(handler: Callable[..., Any]) -> AbstractContextManager[None]:
    """While it is open, this thread's hybridised blocks and SymbolBlocks return `handler(original, block, *args)`."""
    return _cached.by(handler)


@contextlib.contextmanager
def imperatively(on_symbol_block: OnSymbolBlock = _nobody) -> Iterator[None]:
    """Run this thread's hybridised blocks and SymbolBlocks operator by operator; their cached graphs stay as they are."""
    depth = 0

    def run(_original: Any, block: Any, *args: Any) -> Any:
        nonlocal depth
        if depth == 0:  # an agreement is that of all blocks inside, too
            expect_agreement(block, args)
        depth += 1
        try:
            return run_open(block, args, on_symbol_block)
        finally:
            depth -= 1

    with at_cached_graphs(run):
        yield


def run_open(block: Any, args: Sequence[Any], on_symbol_block: OnSymbolBlock = _nobody) -> Any:
    """Run a hybridised block or a SymbolBlock operator by operator."""
    mx = import_mxnet()
    if isinstance(block, mx.gluon.SymbolBlock):
        with on_symbol_block(block, args) as on_value:
            return _run_symbol(block, args, on_value)
    # As `HybridBlock.forward` goes on where it is not hybridised. The block's own flag stays, since other threads see it.
    return block.hybrid_forward(mx.ndarray, *args, **_arrays(block, block._reg_params, block.params.values(), args))


def _arrays(block: Any, parameters: Mapping[str, Any], waiting: Iterable[Any], args: Sequence[Any]) -> dict[str, Any]:
    """Return the parameters' arrays by name; those that wait for their shapes get them from the arguments."""
    try:
        return {name: parameter.data() for name, parameter in parameters.items()}
    except import_mxnet().gluon.parameter.DeferredInitializationError:
        block.infer_shape(*args)
        for parameter in waiting:
            parameter._finish_deferred_init()
    return {name: parameter.data() for name, parameter in parameters.items()}


# A hybridised block's Python and its graph must agree

#: How far a graph may be from its Python, relative to its largest number: rounding, in another order of operations.
TOLERANCES: Final = {"float16": 5e-2, "float32": 1e-3, "float64": 1e-8}

#: What holds state, or draws, so that two runs of it need not give the same.
VARYING: Final = frozenset({*DRAWING, "Custom"} - {"Dropout"})

_agreed: weakref.WeakKeyDictionary[Any, Hashable] = weakref.WeakKeyDictionary()


def expect_agreement(block: Any, args: Sequence[Any]) -> None:
    """Compare the outputs of a block's Python and of its graph: once for each graph and setting of the blocks' attributes.

    Raises:
        UnsupportedError: they differ.
    """
    mx = import_mxnet()
    if isinstance(block, mx.gluon.SymbolBlock) or block._cached_op is None:
        return
    blocks, graph = all_blocks([block]), block._cached_graph[1]
    settings = (block._cached_op, *map(_settings, blocks))
    # A graph that was made for other arguments, such as for lengths beside the ids, says nothing of a call without them.
    if _agreed.get(block) == settings or _given(mx.gluon.block._flatten(list(args), "input")[1]) != _given(
        block._in_format
    ):
        return
    if not _varies(graph):
        attributes = Attributes(blocks)
        try:
            with preserve_generators(), mx.autograd.pause(train_mode=False), unwatched(), unheard():
                _compare(block, _by_graph(block, graph, args), _by_python(block, args))
        finally:
            attributes.put_back()
    _agreed[block] = settings


def _compare(block: Any, graph: Sequence[Any], python: Sequence[Any]) -> None:
    if len(graph) != len(python) or not all(map(_agree, graph, python)):
        raise UnsupportedError(
            f"{type(block).__name__} {block.name!r} is hybridised, and its graph does not give what its Python gives, which "
            "embgrad runs: something that the Python goes by has changed since the graph was made, or it goes another way for "
            "F=mx.nd. Expected both to compute the same: call hybridize() again, which makes the graph anew"
        )


def _agree(graph: Any, python: Any) -> bool:
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

    def inner(original: Callable[..., Any], child: Any, *given: Any) -> Any:
        return original(child, *given) if isinstance(child, symbolic) else run_open(child, given)

    def refuse(*_: Any) -> Any:
        raise UnsupportedError(
            f"{type(block).__name__} {block.name!r} is hybridised, and its Python, which embgrad runs, enters autograd.pause() "
            "or another scope of mxnet.autograd, of which its graph knows nothing: expected F.stop_gradient in its place, and "
            "hybridize() again, which makes the graph anew"
        )

    with at_cached_graphs(inner), _scope.by(refuse):
        returned = run_open(block, args)
    return list(import_mxnet().gluon.block._flatten(returned, "output")[0])


def _given(in_format: Any) -> list[Any]:
    """Return Gluon's description of arguments, less those left out at the end, which is -1 for each."""
    given = list(in_format) if isinstance(in_format, (list, tuple)) else [in_format]
    while given and given[-1] == -1:
        given.pop()
    return given


def _varies(graph: Any) -> bool:
    """Return whether two runs of a graph may give different numbers."""
    nodes = json.loads(graph.tojson())["nodes"]
    return any(
        node["op"] in VARYING or (node["op"] == "Dropout" and (node.get("attrs") or {}).get("mode") == "always")
        for node in nodes
    )


def _settings(block: Any) -> Hashable:
    """Return the identities of a block and its parameters, and its plain attributes, by which its Python may go."""
    plain = [
        (name, value if isinstance(value, PLAIN) else repr(value))
        for name, value in vars(block).items()
        if _is_plain(value)
    ]
    return (id(block), *map(id, block._reg_params.values()), *plain)


def _is_plain(value: Any) -> bool:
    if isinstance(value, PLAIN):
        return True
    held = value.values() if type(value) is dict else value if type(value) in (list, tuple) else None
    return held is not None and all(isinstance(entry, PLAIN) for entry in held)


# The graphs of SymbolBlocks

#: The operator of a node that is none: an input or a parameter.
VARIABLE: Final = "null"


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
        finished: by a node's number the nodes whose values nothing needs after it.
    """

    symbol: Any
    nodes: tuple[Node, ...]
    heads: tuple[Entry, ...]
    inputs: tuple[str, ...]
    as_numpy: bool
    finished: tuple[tuple[int, ...], ...]


_graphs: weakref.WeakKeyDictionary[Any, Graph] = weakref.WeakKeyDictionary()


def graph_of(block: Any) -> Graph:
    """Return the graph of a SymbolBlock, parsed once for as long as the block has it, since MXNet's JSON leaks memory.

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
    """Return the names that a SymbolBlock's symbol gives to the outputs; none for another model."""
    if not isinstance(model, import_mxnet().gluon.SymbolBlock):
        return ()
    return tuple(model._cached_graph[1].list_outputs())


def _run_symbol(block: Any, args: Sequence[Any], on_value: OnValue | None) -> Any:
    """Run a SymbolBlock; `on_value` sees every value as soon as it is there, inputs and parameters included."""
    utilities = import_mxnet().gluon.block
    graph = graph_of(block)
    flat, structure = utilities._flatten(list(args), "input")
    if structure != block._in_format:  # as the block itself says it
        raise ValueError(
            f"{type(block).__name__} {block.name!r} was called with {len(args)} arguments of structure {structure}: expected "
            f"{listed(input_names(block))}, of structure {block._in_format}"
        )
    known = {name: array for name, array in zip(input_names(block), flat, strict=True) if array is not None}
    parameters = dict(block.collect_params().items())
    # Another backend of MXNet's may have added some of its own to the graph.
    parameters |= {entry.name: entry for is_input, entry in block._cached_op_args if not is_input}
    names = [node.name for node in graph.nodes if node.op == VARIABLE and node.name not in known]
    wanted = {name: parameters[name] for name in names}
    known |= _arrays(block, wanted, wanted.values(), args)
    if graph.as_numpy:  # Gluon may have loaded the parameters as arrays of the older kind, also where it runs mx.np
        known = {name: array.as_np_ndarray() for name, array in known.items()}
    values = _values(graph, known, on_value)
    return utilities._regroup([_value(values, head, len(graph.nodes)) for head in graph.heads], block._out_format)


def _values(graph: Graph, known: Mapping[str, Any], on_value: OnValue | None) -> dict[int, Sequence[Any]]:
    """Return by node the values that are left in the end: those of the heads."""
    filled = _filled(graph, known)
    values: dict[int, Sequence[Any]] = {}
    for number, node in enumerate(graph.nodes):
        if node.op == VARIABLE:
            outputs = [known[node.name]]
        else:
            inputs = [_value(values, entry, number) for entry in node.inputs]
            op = "_zeros" if node.op == "_zeros_without_dtype" else node.op
            outputs = invoke(op, inputs, {**node.attributes, **filled.get(number, {})}, graph.as_numpy)
        if on_value is not None:
            outputs = [on_value(number, output, array) for output, array in enumerate(outputs)]
        values[number] = outputs
        for done in graph.finished[number]:
            del values[done]
    return values


def _value(values: Mapping[int, Sequence[Any]], entry: Entry, user: int) -> Any:
    value = values[entry[0]][entry[1]]
    return value.given(user) if isinstance(value, Apart) else value


def _filled(graph: Graph, known: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return by number what the nodes that fill an array from nothing lack, such as those of a recurrent layer's first state.

    Sizes and the dtype may be left to what takes the array: MXNet infers them over the whole graph before it runs.
    """
    mx = import_mxnet()
    context, unknown = mx.current_context(), -1 if mx.util.is_np_shape() else 0
    inferred = functools.cache(lambda what: _inferred(graph, known, what))
    filled: dict[int, dict[str, Any]] = {}
    for number, node in enumerate(graph.nodes):
        if node.op == VARIABLE or node.inputs:
            continue
        filled[number] = {} if context == mx.cpu() else {"ctx": str(context)}
        shape = node.attributes.get("shape")
        if isinstance(shape, (tuple, list)) and unknown in shape:
            shape = inferred("shape")[number, 0] or (unknown,)
            filled[number]["shape"] = _expect_inferred(graph, number, "shape", None if unknown in shape else shape)
        if node.op == "_zeros_without_dtype":
            filled[number]["dtype"] = np.dtype(
                _expect_inferred(graph, number, "type", inferred("type")[number, 0])
            ).name
    return filled


def _expect_inferred(graph: Graph, number: int, what: str, value: Any) -> Any:
    """Return what was inferred of a node; refuse None."""
    if value is None:
        node = graph.nodes[number]
        raise UnsupportedError(
            f"node {number}, {node.name!r}, of the symbol is {node.op!r} with attributes {dict(node.attributes)}, and "
            f"what takes its array does not tell the {what}: expected a {what} that follows from the inputs; export the "
            "net again with the sizes given"
        )
    return value


def _inferred(graph: Graph, known: Mapping[str, Any], what: str) -> dict[Entry, Any]:
    """Return the shapes or the types of all values, as far as they follow from those of the inputs and parameters."""
    internals = graph.symbol.get_internals()
    infer = internals.infer_shape_partial if what == "shape" else internals.infer_type_partial
    names = set(internals.list_inputs())
    given = {name: array.shape if what == "shape" else array.dtype for name, array in known.items() if name in names}
    heads = json.loads(internals.tojson())["heads"]
    return {(head[0], head[1]): value for head, value in zip(heads, infer(**given)[1], strict=True)}


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
    as_numpy = isinstance(symbol, type(import_mxnet().sym.var("any").as_np_ndarray()))
    return Graph(symbol, nodes, heads, tuple(input_names(block)), as_numpy, _finished(nodes, heads))


def _node(node: Mapping[str, Any]) -> Node:
    # Those of two underscores are notes of MXNet's own, such as __lr_mult__.
    given = {key: value for key, value in (node.get("attrs") or {}).items() if not key.startswith("__")}
    if node["op"] != "Custom":  # whose arguments are strings
        given = {key: _literal(value) for key, value in given.items()}
    return Node(node["op"], node["name"], given, tuple((entry[0], entry[1]) for entry in node["inputs"]))


def _literal(text: str) -> Any:
    """Return an attribute as Python code would have passed it: a number, a truth value, None or a tuple; else the string."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, (bool, int, float, tuple, list, type(None))) else text


def _finished(nodes: Sequence[Node], heads: Sequence[Entry]) -> tuple[tuple[int, ...], ...]:
    finished: list[list[int]] = [[] for _ in range(len(nodes) + 1)]  # at the end what the caller uses
    users = users_of([node.inputs for node in nodes], heads)
    for number in range(len(nodes)):
        finished[max((user for user, _ in users.get(number, ())), default=number)].append(number)
    return tuple(map(tuple, finished))


# The scopes in them


class GraphPoints:
    """Records in one forward pass what crosses the borders of the scopes of SymbolBlocks, which were blocks before the export.

    Args:
        taps: where it is recorded, and what goes on in its place.
    """

    def __init__(self, taps: Taps) -> None:
        self._taps = taps

    @contextlib.contextmanager
    def within(self, block: Any, args: Sequence[Any]) -> Iterator[OnValue | None]:
        """Yield, while one run of a SymbolBlock's graph is under way, what is called for each value; None where nobody asks."""
        watch = self._taps.watch
        if not watch.needs_modules:
            yield None
            return
        crossings = Crossings(watch, self._taps.at, scopes(graph_of(block), _carrying(block, args)))

        def on_value(node: int, output: int, array: Any) -> Any:
            versions = crossings.versions((node, output), array)
            if all(version is array for version in versions):
                return array
            return Apart(lambda user: versions[crossings.version((node, output), user)])

        yield on_value
        crossings.report_calls()


def _carrying(block: Any, args: Sequence[Any]) -> list[str]:
    """Return the names of a SymbolBlock's inputs that carry a gradient: activations around it, not ids, masks and lengths."""
    given = import_mxnet().gluon.block._flatten(list(args), "input")[0]
    return [
        name
        for name, array in zip(input_names(block), given, strict=False)
        if is_floating(array) and is_recorded(array)
    ]


def scope_paths(parts: Sequence[Any]) -> list[str]:
    """Return the paths of the scopes in the SymbolBlocks of a model."""
    opaque = [block for block in all_blocks(parts) if isinstance(block, import_mxnet().gluon.SymbolBlock)]
    found = (scope.path for block in opaque for scope in scopes(graph_of(block), input_names(block)))
    return list(dict.fromkeys(found))


# Scopes by the names of nodes

#: Between two parts of a name. An operator's own name may begin with an underscore, as `_plus0` in `net0__plus0`.
BOUNDARY: Final = re.compile(r"(?<=[^_])_")

#: What the name of an operator of one kind has before the name under which it is called.
AFFIX: Final = re.compile(r"^_?(contrib|np|npi|npx)_")

Path = tuple[str, ...]


def scopes(graph: Graph, carrying: Collection[str] = ()) -> list[Scope]:
    """Return the scopes of a graph that give something, in the order in which they end; one comes after those inside it.

    Args:
        graph: of a SymbolBlock.
        carrying: the names of those inputs that carry a gradient, as the activations of a net around the block do.
    """
    through = _carries(graph, carrying)
    inputs = [node.inputs for node in graph.nodes]
    users = users_of(inputs, graph.heads)

    def is_given(entry: Entry) -> bool:
        source = graph.nodes[entry[0]]
        parameter = source.op == VARIABLE and source.name not in graph.inputs
        return through[entry[0]] and not parameter

    found, kinds = [], dict[tuple[str, ...], str]()
    for path, members in _members(graph).items():
        name = "_".join(path)
        for occurrence, nodes in enumerate(_calls(graph, members)):
            leaves = leaving(nodes, users, lambda entry: through[entry[0]])
            if leaves is not None:
                operators = tuple(graph.nodes[number].op for number in nodes)
                kind = kinds.setdefault(operators, re.sub(r"\d+", "#", name))
                enters = entering(nodes, inputs, is_given)
                found.append((leaves, -len(path), Scope(name, kind, frozenset(nodes), enters, leaves, occurrence)))
    return [scope for *_, scope in sorted(found, key=lambda entry: entry[:2])]


def _members(graph: Graph) -> dict[Path, list[int]]:
    """Return by path the numbers of the operators under it."""
    direct = {number: _scope_of(node) for number, node in enumerate(graph.nodes) if node.op != VARIABLE}
    layers = {path for number, path in direct.items() if _is_layer(graph, graph.nodes[number])}
    below: dict[Path, list[int]] = defaultdict(list)
    parts: dict[Path, set[str]] = defaultdict(set)
    for number, path in direct.items():
        own_layer = max((length for length in range(1, len(path) + 1) if path[:length] in layers), default=0)
        for length in range(1, len(path) + 1):
            if length < own_layer and path[:length] in layers:
                continue  # a layer holds no other: `out_fwd` and `out_proj_fwd` are layers side by side
            below[path[:length]].append(number)
            if length < len(path):
                parts[path[:length]].add(path[length])
    own = set(direct.values())
    return {path: members for path, members in below.items() if path in own or _is_block(path, parts[path])}


def _is_block(path: Path, parts: set[str]) -> bool:
    """Return whether a path that no operator has as its own is a block's, and not the first half of a name such as `ffn_1`."""
    return path[-1][-1].isdigit() or (len(parts) > 1 and not all(part.isdigit() for part in parts))


def _is_layer(graph: Graph, node: Node) -> bool:
    """Return whether a node is the operator of one of Gluon's own layers with parameters, which holds an activation at most."""
    takes = [graph.nodes[source] for source, _ in node.inputs]
    return node.name.endswith("_fwd") and any(one.op == VARIABLE and one.name not in graph.inputs for one in takes)


def _scope_of(node: Node) -> Path:
    """Return the parts of a node's name before the operator's own one, which is `fwd`, or what it was called by and a number."""
    parts = BOUNDARY.split(node.name)
    called = {node.op.lower(), AFFIX.sub("", node.op).lower()}
    for length in range(1, len(parts)):
        if "_".join(parts[length:]).rstrip("0123456789").lower() in called:
            return tuple(parts[:length])
    return tuple(parts[:-1])


def _calls(graph: Graph, members: Sequence[int]) -> list[list[int]]:
    """Return the operators of each call of a block: its names come once in each, and those of its parts may come oftener."""
    counts = Counter(graph.nodes[number].name for number in members)
    calls = min(counts.values())
    seen: Counter[str] = Counter()
    apart: list[list[int]] = [[] for _ in range(calls)]
    for number in members:
        name = graph.nodes[number].name
        apart[seen[name] * calls // counts[name]].append(number)
        seen[name] += 1
    return apart


def _carries(graph: Graph, carrying: Collection[str]) -> list[bool]:
    """Return for each node whether a gradient goes from it to a parameter, or to an input that carries one."""
    carries: list[bool] = []
    for node in graph.nodes:
        through = differentiable_inputs({"op": node.op, "attrs": node.attributes, "inputs": node.inputs})
        variable = node.op == VARIABLE and (node.name not in graph.inputs or node.name in carrying)
        carries.append(variable or any(carries[source] for source in through))
    return carries
