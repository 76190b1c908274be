"""Find the scopes of a SymbolBlock's graph, which were blocks before the export: the names of its nodes have their paths."""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from embgrad.backend import Crossings, Entry, Scope, entering, leaving, users_of
from embgrad.errors import UnsupportedError, quote
from embgrad_gluon.graphs import VARIABLE, Graph, Node, PerUserValue, ValueCallback, graph_of
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import is_floating
from embgrad_gluon.pullback import differentiable_inputs
from embgrad_gluon.tap import Taps
from embgrad_gluon.walk import all_blocks, input_names, is_recorded

__all__ = ["observe_scopes", "scope_paths", "scopes"]

#: The boundary between two parts of a name. An operator's own name may begin with an underscore, as `_plus0` in `net0__plus0`.
BOUNDARY: Final = re.compile(r"(?<=[^_])_")

#: The prefix of an operator's name that the name of its function lacks.
AFFIX: Final = re.compile(r"^_?(contrib|np|npi|npx)_")

Path = tuple[str, ...]


@contextlib.contextmanager
def observe_scopes(taps: Taps, block: Any, args: Sequence[Any]) -> Iterator[ValueCallback | None]:
    """Record what crosses the borders of a SymbolBlock's scopes, which were blocks before the export, in one run of its graph.

    Yields:
        The callback for the graph's values; None where no block is watched.
    """
    if not taps.watch.needs_modules:
        yield None
        return
    crossings = Crossings(taps.watch, taps.at, scopes(graph_of(block), _inputs_with_gradient(block, args)))

    def on_value(node: int, output: int, array: Any) -> Any:
        if isinstance(array, PerUserValue):  # of another capture or perturbation
            if (node, output) not in crossings.entries:
                return array
            raise UnsupportedError(
                f"several captures or perturbations name points at one value of SymbolBlock {block.name!r}, and the points "
                f"{quote(taps.watch.modules)} would see different ones. Name points at different layers, or 'word'"
            )
        versions = crossings.versions((node, output), array)
        if all(version is array for version in versions):
            return array
        return PerUserValue(lambda user: versions[crossings.version((node, output), user)])

    yield on_value
    crossings.report_calls()


def _inputs_with_gradient(block: Any, args: Sequence[Any]) -> list[str]:
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
    return list(dict.fromkeys(scope.path for block in opaque for scope in scopes(graph_of(block), input_names(block))))


def scopes(graph: Graph, with_gradient: Collection[str] = ()) -> list[Scope]:
    """Return the scopes of a graph that return a value, in the order in which they end: each after those inside it.

    Args:
        graph: of a SymbolBlock.
        with_gradient: the names of those inputs that carry a gradient, as the activations of a net around the block do.
    """
    carries = _carry_gradient(graph, with_gradient)
    inputs = [node.inputs for node in graph.nodes]
    users = users_of(inputs, graph.heads)

    def enters_with_gradient(entry: Entry) -> bool:
        source = graph.nodes[entry[0]]
        parameter = source.op == VARIABLE and source.name not in graph.inputs
        return carries[entry[0]] and not parameter

    ranked, kinds = [], dict[tuple[str, ...], str]()
    for path, members in _members(graph).items():
        name = "_".join(path)
        for occurrence, nodes in enumerate(_calls(graph, members)):
            leaves = leaving(nodes, users, lambda entry: carries[entry[0]])
            if leaves is not None:
                operators = tuple(graph.nodes[number].op for number in nodes)
                kind = kinds.setdefault(operators, re.sub(r"\d+", "#", name))
                enters = entering(nodes, inputs, enters_with_gradient)
                ranked.append((leaves, -len(path), Scope(name, kind, frozenset(nodes), enters, leaves, occurrence)))
    return [scope for *_, scope in sorted(ranked, key=lambda entry: entry[:2])]


def _members(graph: Graph) -> dict[Path, list[int]]:
    """Return by path the numbers of the operators under it."""
    direct = {number: _scope_of(node) for number, node in enumerate(graph.nodes) if node.op != VARIABLE}
    layers = {path for number, path in direct.items() if _is_layer(graph, graph.nodes[number])}
    below: dict[Path, list[int]] = defaultdict(list)
    parts: dict[Path, set[str]] = defaultdict(set)
    for number, path in direct.items():
        layer_length = max((length for length in range(1, len(path) + 1) if path[:length] in layers), default=0)
        for length in range(1, len(path) + 1):
            if length < layer_length and path[:length] in layers:
                continue  # a layer holds no other: `out_fwd` and `out_proj_fwd` are layers side by side
            below[path[:length]].append(number)
            if length < len(path):
                parts[path[:length]].add(path[length])
    direct_paths = set(direct.values())
    return {path: members for path, members in below.items() if path in direct_paths or _is_block(path, parts[path])}


def _is_block(path: Path, parts: set[str]) -> bool:
    """Return whether a path that holds no operator directly is a block's, not the first half of a name such as `ffn_1`."""
    return path[-1][-1].isdigit() or (len(parts) > 1 and not all(part.isdigit() for part in parts))


def _is_layer(graph: Graph, node: Node) -> bool:
    """Return whether a node is the operator of one of Gluon's own layers with parameters, which holds an activation at most."""
    variables = [graph.nodes[source].name for source, _ in node.inputs if graph.nodes[source].op == VARIABLE]
    return node.name.endswith("_fwd") and any(name not in graph.inputs for name in variables)


def _scope_of(node: Node) -> Path:
    """Return the parts of a node's name before the operator's own, which is `fwd`, or its function's name and a number."""
    parts = BOUNDARY.split(node.name)
    called = {node.op.lower(), AFFIX.sub("", node.op).lower()}
    for length in range(1, len(parts)):
        if "_".join(parts[length:]).rstrip("0123456789").lower() in called:
            return tuple(parts[:length])
    return tuple(parts[:-1])


def _calls(graph: Graph, members: Sequence[int]) -> list[list[int]]:
    """Return the operators of each call of a block: its own names occur once in each call, and those of its parts may repeat."""
    counts = Counter(graph.nodes[number].name for number in members)
    calls = min(counts.values())
    occurrences: Counter[str] = Counter()
    calls_apart: list[list[int]] = [[] for _ in range(calls)]
    for number in members:
        name = graph.nodes[number].name
        calls_apart[occurrences[name] * calls // counts[name]].append(number)
        occurrences[name] += 1
    return calls_apart


def _carry_gradient(graph: Graph, with_gradient: Collection[str]) -> list[bool]:
    """Return for each node whether a gradient goes from it to a parameter, or to an input that carries one."""
    carries: list[bool] = []
    for node in graph.nodes:
        sources = differentiable_inputs({"op": node.op, "attrs": node.attributes, "inputs": node.inputs})
        variable = node.op == VARIABLE and (node.name not in graph.inputs or node.name in with_gradient)
        carries.append(variable or any(carries[source] for source in sources))
    return carries
