"""Takes the scopes of a compiled function that is run openly for the modules that they were, so that its layers are points."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from embgrad.points import INPUT
from embgrad.watching import PointWatch
from embgrad_tensorflow.interpreter import OnTensor
from embgrad_tensorflow.program import Program
from embgrad_tensorflow.scopes import Scope, scopes

__all__ = ["GraphPoints", "scope_paths"]

#: Takes a point's key and its tensor; gives what goes on in its place.
Passed = Callable[[str, Any], Any]

_known: WeakKeyDictionary[Program, list[Scope]] = WeakKeyDictionary()


class GraphPoints:
    """Takes down in one forward pass what crosses the borders of the scopes that are watched.

    What enters a scope is a tensor of the graph: where it is replaced, all that uses it, outside the scope too, is given
    the other.

    Args:
        watch: what takes the pass down.
        passed: gives what goes on in place of a tensor at a point.
        first: what is done to every tensor before.
    """

    def __init__(self, watch: PointWatch, passed: Passed, first: Callable[[Any], Any]) -> None:
        self._watch = watch
        self._passed = passed
        self._first = first
        self._runs: Counter[str] = Counter()

    def of(self, program: Program) -> OnTensor:
        """What is called for each floating-point tensor of one run of a program."""
        wanted = [one for one in known_scopes(program) if self._watch.everything or one.path in self._watch.modules]
        entering: dict[str, list[Scope]] = defaultdict(list)
        leaving: dict[str, list[Scope]] = defaultdict(list)
        for scope in wanted:
            leaving[scope.leaves].append(scope)
            if scope.enters is not None:
                entering[scope.enters].append(scope)
        run = {scope.path: self._runs[scope.path] for scope in wanted}
        self._runs.update(run.keys())
        entered: dict[str, Any] = {}

        def on_tensor(name: str, tensor: Any) -> Any:
            tensor = self._first(tensor)
            for scope in reversed(leaving.get(name, ())):  # the innermost first
                tensor = self._leave(scope, entered.pop(scope.path, None), tensor)
            for scope in entering.get(name, ()):
                key = f"{scope.path}:{INPUT}#{run[scope.path]}"
                tensor = self._passed(key, tensor) if self._watch.wants(key) else tensor
            entered.update((scope.path, tensor) for scope in entering.get(name, ()))
            return tensor

        return on_tensor

    def _leave(self, scope: Scope, given: Any, tensor: Any) -> Any:
        self._watch.enter(scope.path, scope.kind, given, () if given is None else given.shape)
        key = self._watch.leave(tensor, tensor.shape)
        return tensor if key is None else self._passed(key, tensor)


def known_scopes(program: Program) -> list[Scope]:
    """A program's scopes, found once."""
    if program not in _known:
        _known[program] = scopes(program)
    return _known[program]


def scope_paths(programs: Sequence[Program]) -> list[str]:
    """The names of all scopes of these programs."""
    return [scope.path for program in programs for scope in known_scopes(program)]
