"""Takes the name scopes of a saved graph for the modules that they were, and hands on what crosses their borders in a pass."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from embgrad.forward.points import INPUT

__all__ = ["Crossings", "Entry", "Scope", "entering", "leaving", "users_of"]

#: A value in a graph: the number of the node that computes it, and which of the node's outputs it is.
Entry = tuple[int, int]

#: Stands for a user that is in no scope.
OUTSIDE: Final = -1


@dataclass(frozen=True, eq=False)
class Scope:
    """One call of what was a module before the model was saved.

    Attributes:
        path: the beginning that the names of its nodes share.
        kind: the path with `#` for each number, which the layers of a stack share.
        nodes: the numbers of its nodes.
        entering: the first value that it takes from outside and that a gradient flows through; None where there is none.
        leaving: the last of its values that are used outside and that a gradient flows through.
        occurrence: the number of calls of the same module before this one.
        is_operation: whether it is a single operation's, with no scope inside.
    """

    path: str
    kind: str
    nodes: frozenset[int]
    entering: Entry | None
    leaving: Entry
    occurrence: int = 0
    is_operation: bool = False


def users_of(inputs: Sequence[Sequence[Entry]], heads: Iterable[Entry]) -> Mapping[int, list[Entry]]:
    """Return by node the users of its values: a node's number, one past the last for the caller, and the output that it uses.

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
    """Return the first value that nodes take from others and that `carries` is true of; None where there is none."""
    inside = set(nodes)
    taken = (entry for number in nodes for entry in inputs[number])
    return next((entry for entry in taken if entry[0] not in inside and carries(entry)), None)


def leaving(
    nodes: Sequence[int], users: Mapping[int, Sequence[Entry]], carries: Callable[[Entry], bool]
) -> Entry | None:
    """Return the last value of nodes that others use and that `carries` is true of; None where there is none."""
    inside = set(nodes)
    for number in reversed(nodes):
        outside = [output for user, output in users.get(number, ()) if user not in inside and carries((number, output))]
        if outside:
            return number, min(outside)
    return None


class Crossings:
    """The values that cross the borders of scopes in one run of a graph.

    As with the modules that they were, the value that enters a scope is replaced for the scope alone, and the value that
    leaves it for all nodes outside. Where a watch records everything, nothing is replaced, and all calls are told at the end:
    the order of the nodes is not one in which a scope would begin, and end, around those inside it.

    Args:
        watch: records the pass; a `PointWatch`, or another object with the same methods.
        passed: takes the key of a point and its value, and returns the value that goes on.
        scopes: of the graph.
    """

    def __init__(self, watch: Any, passed: Callable[[str, Any], Any], scopes: Sequence[Scope]) -> None:
        self._watch = watch
        self._passed = passed
        self.scopes = [scope for scope in scopes if watch.everything or scope.path in watch.modules]
        if not watch.everything:
            for path in (scope.path for scope in scopes if scope.path in watch.counted - watch.modules):
                watch.count(path)
        # Modules around the graph, and the scopes of other graphs, can have the same paths.
        self._before = Counter(call.path for call in watch.calls)
        self._given: dict[Scope, Any] = {}
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
        """The scopes at whose borders something happens, by which it is known where a graph is cut."""
        return frozenset(self.scopes)

    @property
    def entries(self) -> frozenset[Entry]:
        """The values that cross a border."""
        return frozenset(self._borders)

    @property
    def replaces(self) -> bool:
        """Whether other values may go on at the borders."""
        return not self._watch.everything

    def version(self, entry: Entry, user: int, count: int | None = None) -> int:
        """Return which of the versions of a value a user is given: the last of those that are for it; 0 is the value itself.

        Args:
            entry: the value.
            user: a node's number; one past the last for the caller.
            count: the number of borders that the value has crossed already; all where None.
        """
        crossed = self._borders.get(entry, ())[:count]
        versions = (number for number, (scope, inside) in enumerate(crossed, 1) if (user in scope.nodes) == inside)
        return max(versions, default=0)

    def versions(self, entry: Entry, value: Any) -> list[Any]:
        """Return a value that is there now, and those that go on in its place at each border that it crosses."""
        found = [value]
        for count, (scope, inside) in enumerate(self._borders.get(entry, ())):
            seen = found[self.version(entry, min(scope.nodes) if inside else OUTSIDE, count)]
            found.append(self._enter(scope, seen) if inside else self._leave(scope, seen))
        return found

    def tell(self) -> None:
        """Tell the watch of all calls, each scope around those inside it, where it records everything."""
        if not self._watch.everything:
            return
        holding: dict[int, list[Scope]] = defaultdict(list)
        for scope in self.scopes:
            for number in scope.nodes:
                holding[number].append(scope)
        inside: dict[Scope | None, list[Scope]] = defaultdict(list)
        for scope in self.scopes:
            if not scope.is_operation:
                around = (other for other in holding[min(scope.nodes)] if _lies_in(scope, other))
                inside[min(around, key=lambda other: (len(other.nodes), -len(other.path)), default=None)].append(scope)
        self._tell(inside, None)
        for scope in self.scopes:
            if scope.is_operation:  # no layer is made of such, and none is one
                self._watch.enter(scope.path, scope.kind, None, ())
                self._watch.leave(self._returned[scope], self._returned[scope].shape)

    def _tell(self, inside: Mapping[Scope | None, Sequence[Scope]], around: Scope | None) -> None:
        for scope in inside.get(around, ()):
            given, returned = self._given.get(scope), self._returned[scope]
            self._watch.enter(scope.path, scope.kind, given, () if given is None else given.shape)
            self._tell(inside, scope)
            self._watch.leave(returned, returned.shape)

    def _enter(self, scope: Scope, value: Any) -> Any:
        key = f"{scope.path}:{INPUT}#{self._before[scope.path] + scope.occurrence}"
        self._given[scope] = self._passed(key, value) if self._watch.wants(key) else value
        return self._given[scope]

    def _leave(self, scope: Scope, value: Any) -> Any:
        if self._watch.everything:
            self._returned[scope] = value
            return value
        given = self._given.pop(scope, None)
        self._watch.enter(scope.path, scope.kind, given, () if given is None else given.shape)
        key = self._watch.leave(value, value.shape)
        return value if key is None else self._passed(key, value)


def _lies_in(scope: Scope, other: Scope) -> bool:
    if scope.nodes == other.nodes:
        return len(other.path) < len(scope.path)
    return scope.nodes < other.nodes
