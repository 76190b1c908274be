"""Takes the name scopes of a SymbolBlock's graph for the blocks that they were, so that its layers are points."""

from __future__ import annotations

import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from embgrad.points import INPUT
from embgrad_gluon.graphs import VARIABLE, Apart, Entry, Graph, Node, OnValue, graph_of
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import is_floating
from embgrad_gluon.pullback import differentiable_inputs
from embgrad_gluon.tap import Taps
from embgrad_gluon.walk import all_blocks, input_names, is_recorded

__all__ = ["GraphPoints", "Scope", "scope_paths", "scopes"]

#: Stands for a user that is in no scope.
OUTSIDE: Final = -1


class GraphPoints:
    """Takes down in one forward pass what crosses the borders of the scopes that are watched.

    As with the blocks that they were, what enters a scope is replaced for the scope alone, and what leaves it for all outside.

    Args:
        taps: where they are taken down, and what goes on in their place.
    """

    def __init__(self, taps: Taps) -> None:
        self._taps = taps
        self._runs: Counter[str] = Counter()

    @contextlib.contextmanager
    def within(self, block: Any, args: Sequence[Any]) -> Iterator[OnValue | None]:
        """While one run of a SymbolBlock's graph is under way: what is called for each value; None where nobody asks."""
        watch = self._taps.watch
        if not watch.hears_modules:
            yield None
            return
        found = scopes(graph_of(block), _carrying(block, args))
        wanted = [one for one in found if watch.everything or one.path in watch.modules]
        for one in found:
            if one.path in watch.counted and one not in wanted:
                watch.count(one.path)
        crossing = _Crossing(self._taps, wanted, Counter(self._runs))
        self._runs.update(scope.path for scope in wanted)
        yield crossing.on_value
        if watch.everything:
            crossing.tell()


class _Crossing:
    """What crosses the borders of scopes in one run.

    Where everything is taken down nothing is replaced, and all of it is told in the end: the nodes' order is not one in which
    a scope would begin, and end, around those inside it.
    """

    def __init__(self, taps: Taps, wanted: Sequence[Scope], before: Counter[str]) -> None:
        self._taps = taps
        self._wanted = wanted
        self._before = before
        self._entering: dict[Entry, list[Scope]] = defaultdict(list)
        self._leaving: dict[Entry, list[Scope]] = defaultdict(list)
        self._given: dict[Scope, Any] = {}
        self._gave: dict[Scope, Any] = {}
        for scope in wanted:
            self._leaving[scope.leaving].append(scope)
            if scope.entering is not None:
                self._entering[scope.entering].insert(0, scope)  # the outermost first

    def on_value(self, node: int, output: int, array: Any) -> Any:
        """A value is there. What goes on in its place."""
        seen = _Versions(array)
        for scope in self._leaving.get((node, output), ()):
            gone = self._leave(scope, seen.given(OUTSIDE))
            seen.put(scope, False, gone)
        for scope in self._entering.get((node, output), ()):
            given = self._enter(scope, seen.given(min(scope.nodes)))
            seen.put(scope, True, given)
        return seen.value()

    def tell(self) -> None:
        """Tell of all that crossed, each scope around those inside it."""
        inside: dict[Scope | None, list[Scope]] = defaultdict(list)
        for place, scope in enumerate(self._wanted):
            around = (one for one in self._wanted[place + 1 :] if one.nodes >= scope.nodes)
            inside[min(around, key=lambda one: len(one.nodes), default=None)].append(scope)
        self._tell(inside, None)

    def _tell(self, inside: dict[Scope | None, list[Scope]], around: Scope | None) -> None:
        watch = self._taps.watch
        for scope in inside.get(around, ()):
            given, gave = self._given.get(scope), self._gave[scope]
            watch.enter(scope.path, scope.kind, given, () if given is None else given.shape)
            self._tell(inside, scope)
            watch.leave(gave, gave.shape)

    def _enter(self, scope: Scope, array: Any) -> Any:
        key = f"{scope.path}:{INPUT}#{self._before[scope.path] + scope.occurrence}"
        self._given[scope] = self._taps.at(key, array) if self._taps.watch.wants(key) else array
        return self._given[scope]

    def _leave(self, scope: Scope, array: Any) -> Any:
        watch = self._taps.watch
        if watch.everything:
            self._gave[scope] = array
            return array
        given = self._given.pop(scope, None)
        watch.enter(scope.path, scope.kind, given, () if given is None else given.shape)
        key = watch.leave(array, array.shape)
        return array if key is None else self._taps.at(key, array)


class _Versions:
    """One value as its users are given it. Of the versions that are for a user the last is the user's."""

    def __init__(self, value: Any) -> None:
        self._first = value
        self._further: list[tuple[Scope, bool, Any]] = []

    def put(self, scope: Scope, inside: bool, array: Any) -> None:
        """Those users are given this array that are inside the scope, or those that are not."""
        self._further.append((scope, inside, array))

    def given(self, user: int) -> Any:
        """What a user is given."""
        wanted = (array for scope, inside, array in reversed(self._further) if (user in scope.nodes) == inside)
        value = next(wanted, self._first)
        return value.given(user) if isinstance(value, Apart) else value

    def value(self) -> Any:
        """The array itself where there is but one."""
        return self._first if all(array is self._first for *_, array in self._further) else Apart(self.given)


def _carrying(block: Any, args: Sequence[Any]) -> list[str]:
    """The names of a SymbolBlock's inputs that carry a gradient: activations of a net around it, not ids, masks and lengths."""
    given = import_mxnet().gluon.block._flatten(list(args), "input")[0]
    return [
        name
        for name, array in zip(input_names(block), given, strict=False)
        if is_floating(array) and is_recorded(array)
    ]


def scope_paths(parts: Sequence[Any]) -> list[str]:
    """The paths of what the SymbolBlocks of a model may have for blocks."""
    opaque = [block for block in all_blocks(parts) if isinstance(block, import_mxnet().gluon.SymbolBlock)]
    found = (scope.path for block in opaque for scope in scopes(graph_of(block), input_names(block)))
    return list(dict.fromkeys(found))


# Scopes by the names of nodes

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
        through = differentiable_inputs({"op": node.op, "attrs": node.attributes, "inputs": node.inputs})
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
