"""Takes the scopes of a SymbolBlock that is run openly for the blocks that they were, so that its layers are points."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from embgrad.points import INPUT
from embgrad_gluon.scopes import Scope, scopes
from embgrad_gluon.symbolic import Entry, OnValue, graph_of
from embgrad_gluon.tap import Taps

__all__ = ["GraphPoints"]


class GraphPoints:
    """Takes down in one forward pass what crosses the borders of the scopes that are watched.

    What enters a scope is a value of the graph: where it is replaced, all that uses it, outside the scope too, is given the
    other.

    Args:
        taps: where they are taken down, and what goes on in their place.
    """

    def __init__(self, taps: Taps) -> None:
        self._taps = taps
        self._runs: Counter[str] = Counter()

    def of(self, block: Any) -> OnValue | None:
        """What is called for each value of one run of a SymbolBlock's graph; None where nobody asks."""
        watch = self._taps.watch
        if not (watch.everything or watch.modules):
            return None
        wanted = [one for one in scopes(graph_of(block)) if watch.everything or one.path in watch.modules]
        entering: dict[Entry, list[Scope]] = defaultdict(list)
        leaving: dict[Entry, list[Scope]] = defaultdict(list)
        for scope in wanted:
            leaving[scope.leaving].append(scope)
            if scope.entering is not None:
                entering[scope.entering].append(scope)
        before = {scope.path: self._runs[scope.path] for scope in wanted}
        self._runs.update(scope.path for scope in wanted)
        entered: dict[tuple[str, int], Any] = {}

        def on_value(node: int, output: int, _: str, array: Any) -> Any:
            for scope in reversed(leaving.get((node, output), ())):  # the innermost first
                array = self._leave(scope, entered.pop((scope.path, scope.occurrence), None), array)
            for scope in entering.get((node, output), ()):
                key = f"{scope.path}:{INPUT}#{before[scope.path] + scope.occurrence}"
                array = self._taps.at(key, array) if watch.wants(key) else array
            entered.update(((one.path, one.occurrence), array) for one in entering.get((node, output), ()))
            return array

        return on_value

    def _leave(self, scope: Scope, given: Any, array: Any) -> Any:
        watch = self._taps.watch
        watch.enter(scope.path, scope.kind, given, () if given is None else given.shape)
        key = watch.leave(array, array.shape)
        return array if key is None else self._taps.at(key, array)
