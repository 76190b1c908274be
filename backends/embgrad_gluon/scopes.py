"""Which nodes of an exported graph came from one block, told by their names, and the values that enter and leave it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from embgrad_gluon.graph import sources
from embgrad_gluon.symbolic import VARIABLE, Entry, Graph, Node

__all__ = ["Scope", "scopes"]

#: Between two parts of a name. An operator's own name may begin with an underscore, as `_plus0` in `net0__plus0`.
BOUNDARY: Final = re.compile(r"(?<=[^_])_")

#: What the name of an operator of one kind has before the name under which it is called.
AFFIX: Final = re.compile(r"^_?(contrib|np|npi|npx)_")

Path = tuple[str, ...]


@dataclass(frozen=True)
class Scope:
    """One call of what was a block before the export.

    Attributes:
        path: the beginning that its nodes' names share, without the underscore at the end.
        kind: the path with its numbers replaced by '#'; of scopes with the same operators the first one's.
        nodes: the numbers of its operators.
        occurrence: how many calls of the same block came before this one.
        entering: the value that it takes first, of those that are computed outside of it and carry a gradient to a
            parameter or to an input that has one; None where there is none, as for a block that looks ids up.
        leaving: the last of its values that are used outside of it and carry such a gradient, of a node with several the
            first of them.
    """

    path: str
    kind: str
    nodes: frozenset[int]
    occurrence: int
    entering: Entry | None
    leaving: Entry


def scopes(graph: Graph, carrying: Collection[str] = ()) -> list[Scope]:
    """The scopes of a graph that give something, in the order in which they end; one comes after those inside it.

    Args:
        graph: of a SymbolBlock.
        carrying: the names of those inputs that carry a gradient, as the activations of a net around the block do.
    """
    carries, users = _carries(graph, carrying), _users(graph)
    found, kinds = [], dict[tuple[str, ...], str]()
    for path, members in _members(graph).items():
        name = "_".join(path)
        for occurrence, nodes in enumerate(_calls(graph, members)):
            entering, leaving = _entering(graph, nodes, carries), _leaving(nodes, carries, users)
            if leaving is not None:
                operators = tuple(graph.nodes[number].op for number in nodes)
                kind = kinds.setdefault(operators, re.sub(r"\d+", "#", name))
                scope = Scope(name, kind, frozenset(nodes), occurrence, entering, leaving)
                found.append((leaving, -len(path), scope))
    return [scope for *_, scope in sorted(found, key=lambda entry: entry[:2])]


def _members(graph: Graph) -> dict[Path, list[int]]:
    """By path the numbers of the operators under it."""
    direct = {number: _scope(node) for number, node in enumerate(graph.nodes) if node.op != VARIABLE}
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
    """Whether a path that no operator has as its own is a block's, and not the first half of a name such as `ffn_1`."""
    return path[-1][-1].isdigit() or (len(parts) > 1 and not all(part.isdigit() for part in parts))


def _is_layer(graph: Graph, node: Node) -> bool:
    """Whether it is the operator of one of Gluon's own layers with parameters, which holds an activation at most."""
    takes = [graph.nodes[source] for source, _ in node.inputs]
    return node.name.endswith("_fwd") and any(one.op == VARIABLE and one.name not in graph.inputs for one in takes)


def _scope(node: Node) -> Path:
    """The parts of its name before the operator's own one, which is `fwd`, or what it was called by and a number."""
    parts = BOUNDARY.split(node.name)
    called = {node.op.lower(), AFFIX.sub("", node.op).lower()}
    for length in range(1, len(parts)):
        if "_".join(parts[length:]).rstrip("0123456789").lower() in called:
            return tuple(parts[:length])
    return tuple(parts[:-1])


def _calls(graph: Graph, members: Sequence[int]) -> list[list[int]]:
    """The operators of each call of a block: its names come once more in each, and a part's may come several times in one."""
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
    """For each node whether a gradient goes from it to a parameter, or to an input that carries one."""
    carries: list[bool] = []
    for node in graph.nodes:
        through = sources({"op": node.op, "attrs": node.attributes, "inputs": node.inputs})
        variable = node.op == VARIABLE and (node.name not in graph.inputs or node.name in carrying)
        carries.append(variable or any(carries[source] for source in through))
    return carries


def _users(graph: Graph) -> Mapping[int, list[tuple[int, int]]]:
    """By node the users of its values: a node's number, one past the last for the caller, and which value it uses."""
    users: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for number, node in enumerate(graph.nodes):
        for source, place in node.inputs:
            users[source].append((number, place))
    for source, place in graph.heads:
        users[source].append((len(graph.nodes), place))
    return users


def _entering(graph: Graph, nodes: Sequence[int], carries: Sequence[bool]) -> Entry | None:
    inside = set(nodes)
    for number in nodes:
        for source, place in graph.nodes[number].inputs:
            given = graph.nodes[source]
            parameter = given.op == VARIABLE and given.name not in graph.inputs
            if source not in inside and not parameter and carries[source]:
                return source, place
    return None


def _leaving(nodes: Sequence[int], carries: Sequence[bool], users: Mapping[int, list[tuple[int, int]]]) -> Entry | None:
    inside = set(nodes)
    for number in reversed(nodes):
        outside = [place for user, place in users.get(number, ()) if user not in inside]
        if outside and carries[number]:
            return number, min(outside)
    return None
