"""The name scopes of a saved graph, treated as the modules that they were, and the values that cross their borders."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from embgrad.backend.protocol import CannotRecordError
from embgrad.model_points.points import INPUT

__all__ = ["Crossings", "Entry", "Scope", "entering", "leaving", "users_of"]

#: A value in a graph: the number of the node that computes it, and the index among the node's outputs.
Entry = tuple[int, int]

#: The node number of a user that is in no scope.
OUTSIDE: Final = -1


@dataclass(frozen=True, eq=False)
class Scope:
    """One call of a former module, as a set of nodes of the saved graph.

    Attributes:
        path: the common prefix of its nodes' names.
        kind: the path with `#` for each number, which the layers of a stack share.
        nodes: the numbers of its nodes.
        entering: the first value that it takes from outside and that a gradient flows through, or None.
        leaving: the last of its values that are used outside and that a gradient flows through.
        occurrence: the number of calls of the same module before this one.
        is_operation: whether the scope is that of a single operation, with no scope inside.
    """

    path: str
    kind: str
    nodes: frozenset[int]
    entering: Entry | None
    leaving: Entry
    occurrence: int = 0
    is_operation: bool = False


def users_of(inputs: Sequence[Sequence[Entry]], heads: Iterable[Entry]) -> Mapping[int, list[Entry]]:
    """Return the users of each node's values: the user's node number, and the index of the output that it uses.

    The caller counts as a user; its number is one past the last node's.

    Args:
        inputs: the values that each node takes.
        heads: the values that the graph returns.
    """
    users: dict[int, list[Entry]] = defaultdict(list)
    for number, taken in enumerate(inputs):
        for source, output in taken:
            users[source].append((number, output))
    for source, output in heads:
        users[source].append((len(inputs), output))
    return users


def entering(nodes: Sequence[int], inputs: Sequence[Sequence[Entry]], carries: Callable[[Entry], bool]) -> Entry | None:
    """Return the first value that the nodes take from other nodes and for which `carries` is true, or None."""
    inside = set(nodes)
    taken = (entry for number in nodes for entry in inputs[number])
    return next((entry for entry in taken if entry[0] not in inside and carries(entry)), None)


def leaving(
    nodes: Sequence[int], users: Mapping[int, Sequence[Entry]], carries: Callable[[Entry], bool]
) -> Entry | None:
    """Return the last value of the nodes that other nodes use and for which `carries` is true, or None."""
    inside = set(nodes)
    for number in reversed(nodes):
        outside = [output for user, output in users.get(number, ()) if user not in inside and carries((number, output))]
        if outside:
            return number, min(outside)
    return None


class Crossings:
    """The values that cross the borders of scopes in one run of a graph.

    As at a module, a replaced input is seen by the scope alone, and a replaced output by all nodes outside. If the watch
    records everything, nothing is replaced and all calls are reported at the end: the nodes run in an order in which the calls
    would not be nested.

    Args:
        watch: the record of the pass, a `PassRecorder` or another object with the same methods.
        passed: takes the key of a point and its value, and returns the value with which the graph continues.
        scopes: the scopes of the graph.

    Raises:
        CannotRecordError: the watch records everything, and requests points too.
    """

    def __init__(self, watch: Any, passed: Callable[[str, Any], Any], scopes: Sequence[Scope]) -> None:
        if scopes and watch.everything and not watch.lists:
            raise CannotRecordError
        self._watch = watch
        self._passed = passed
        self.scopes = [scope for scope in scopes if watch.everything or scope.path in watch.modules]
        if not watch.everything:
            for path in (scope.path for scope in scopes if scope.path in watch.counted - watch.modules):
                watch.count(path, in_order=False)
        # Modules around the graph, and the scopes of other graphs, can have the same paths.
        self._before = Counter(call.path for call in watch.calls)
        self._inputs: dict[Scope, Any] = {}
        self._returned: dict[Scope, Any] = {}
        self._borders: dict[Entry, list[tuple[Scope, bool]]] = defaultdict(list)
        inner_first = sorted(self.scopes, key=lambda scope: (len(scope.nodes), -len(scope.path)))
        for scope in inner_first:
            self._borders[scope.leaving].append((scope, False))
        for scope in reversed(inner_first):
            if scope.entering is not None:
                self._borders[scope.entering].append((scope, True))

    @property
    def key(self) -> frozenset[Scope]:
        """The scopes at whose borders values are read or replaced; they determine where a graph is cut."""
        return frozenset(self.scopes)

    @property
    def entries(self) -> frozenset[Entry]:
        """The values that cross a border."""
        return frozenset(self._borders)

    @property
    def replaces(self) -> bool:
        """Return whether values may be replaced at the borders."""
        return not self._watch.everything

    def version(self, entry: Entry, user: int, count: int | None = None) -> int:
        """Return the index of the version of a value that a user receives: the last one meant for it; 0 is the value itself.

        Args:
            entry: the value.
            user: the number of the node that uses it; one past the last for the caller.
            count: the number of borders that the value has crossed so far; None for all of them.
        """
        crossed = self._borders.get(entry, ())[:count]
        versions = (number for number, (scope, inside) in enumerate(crossed, 1) if (user in scope.nodes) == inside)
        return max(versions, default=0)

    def versions(self, entry: Entry, value: Any) -> list[Any]:
        """Return the versions of a value: the computed value, then the one that continues at each border that it crosses."""
        versions = [value]
        for count, (scope, inside) in enumerate(self._borders.get(entry, ())):
            current = versions[self.version(entry, min(scope.nodes) if inside else OUTSIDE, count)]
            versions.append(self._enter(scope, current) if inside else self._leave(scope, current))
        return versions

    def report_calls(self) -> None:
        """Report all calls to the watch if it records everything, with inner scopes nested in outer ones."""
        if not self._watch.everything:
            return
        scopes_at: dict[int, list[Scope]] = defaultdict(list)
        for scope in self.scopes:
            for number in scope.nodes:
                scopes_at[number].append(scope)
        children: dict[Scope | None, list[Scope]] = defaultdict(list)
        for scope in self.scopes:
            if not scope.is_operation:
                outer = (candidate for candidate in scopes_at[min(scope.nodes)] if _lies_in(scope, candidate))
                innermost = min(outer, key=lambda candidate: (len(candidate.nodes), -len(candidate.path)), default=None)
                children[innermost].append(scope)
        self._report(children, None)
        for scope in self.scopes:
            if scope.is_operation:  # an operation is neither a layer nor part of one, so it is not nested
                self._watch.enter(scope.path, scope.kind, None, ())
                self._watch.leave(self._returned[scope], self._returned[scope].shape)

    def _report(self, children: Mapping[Scope | None, Sequence[Scope]], parent: Scope | None) -> None:
        for scope in children.get(parent, ()):
            tensor, returned = self._inputs.get(scope), self._returned[scope]
            self._watch.enter(scope.path, scope.kind, tensor, () if tensor is None else tensor.shape)
            self._report(children, scope)
            self._watch.leave(returned, returned.shape)

    def _enter(self, scope: Scope, value: Any) -> Any:
        key = f"{scope.path}:{INPUT}#{self._before[scope.path] + scope.occurrence}"
        self._inputs[scope] = self._passed(key, value) if self._watch.wants(key) else value
        return self._inputs[scope]

    def _leave(self, scope: Scope, value: Any) -> Any:
        if self._watch.everything:
            self._returned[scope] = value
            return value
        tensor = self._inputs.pop(scope, None)
        self._watch.enter(scope.path, scope.kind, tensor, () if tensor is None else tensor.shape)
        key = self._watch.leave(value, value.shape)
        return value if key is None else self._passed(key, value)


def _lies_in(scope: Scope, other: Scope) -> bool:
    if scope.nodes == other.nodes:
        return len(other.path) < len(scope.path)
    return scope.nodes < other.nodes
