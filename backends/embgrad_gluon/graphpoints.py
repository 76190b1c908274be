"""Takes the scopes of a SymbolBlock that is run openly for the blocks that they were, so that its layers are points."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from embgrad.points import INPUT
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import is_floating
from embgrad_gluon.scopes import Scope, scopes
from embgrad_gluon.symbolic import Apart, Entry, OnValue, graph_of
from embgrad_gluon.tap import Taps
from embgrad_gluon.walk import input_names, is_recorded, named_blocks

__all__ = ["GraphPoints", "scope_paths"]

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

    def on_value(self, node: int, output: int, _: str, array: Any) -> Any:
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
    blocks = {id(block): block for _, block in named_blocks(parts)}.values()
    opaque = [block for block in blocks if isinstance(block, import_mxnet().gluon.SymbolBlock)]
    found = (scope.path for block in opaque for scope in scopes(graph_of(block), input_names(block)))
    return list(dict.fromkeys(found))
