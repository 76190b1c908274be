"""Takes the scopes of a compiled function that is run openly for the modules that they were, so that its layers are points."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from embgrad.points import INPUT
from embgrad.watching import PointWatch
from embgrad_tensorflow.interpreter import Observer
from embgrad_tensorflow.program import Program, Step, tensor_name
from embgrad_tensorflow.scopes import Scope, scopes

if TYPE_CHECKING:
    from embgrad_tensorflow.tracing import Script

__all__ = ["GraphPoints"]

#: Takes a point's key and its tensor; gives what goes on in its place.
Passed = Callable[[str, Any], Any]


@dataclass(frozen=True)
class _Borders:
    """A program's scopes, the outer ones before those inside, and the slots of the tensors that enter and leave them."""

    scopes: list[Scope]
    slots: dict[str, int]


_known: WeakKeyDictionary[Program, _Borders] = WeakKeyDictionary()


class GraphPoints:
    """Takes down in one forward pass what crosses the borders of the scopes that are watched.

    Args:
        watch: what takes the pass down.
        passed: gives what goes on in place of a tensor at a point.
        first: what is done to every tensor before.
    """

    def __init__(self, watch: PointWatch | Script, passed: Passed, first: Callable[[Any], Any]) -> None:
        self._watch = watch
        self._passed = passed
        self._first = first

    def of(self, program: Program) -> Observer:
        """What sees one run of a program."""
        return _Crossing(self._watch, self._passed, self._first, _borders(program))


class _Crossing(Observer):
    """What crosses the borders of scopes in one run.

    As with the modules that they were, what enters a scope is replaced for the scope alone, and what leaves it for all
    outside. Where everything is taken down nothing is replaced, and all of it is told in the end: operations are not in an
    order in which a scope would begin, and end, around those inside it.
    """

    def __init__(
        self, watch: PointWatch | Script, passed: Passed, first: Callable[[Any], Any], borders: _Borders
    ) -> None:
        self._watch = watch
        self._passed = passed
        self._first = first
        self._scopes = [one for one in borders.scopes if watch.everything or one.path in watch.modules]
        for one in borders.scopes:
            if one.path in watch.counted and one not in self._scopes:
                watch.count(one.path)
        # Layers of Keras can go by the same paths, and other programs' scopes.
        self._before = Counter(call.path for call in watch.calls)
        self._entering: dict[int, list[Scope]] = defaultdict(list)
        self._leaving: dict[int, list[Scope]] = defaultdict(list)
        for scope in self._scopes:
            self._leaving[borders.slots[scope.leaves]].insert(0, scope)  # the innermost first
            if scope.enters is not None:
                self._entering[borders.slots[scope.enters]].append(scope)
        self._given: dict[str, Any] = {}
        self._gave: dict[str, Any] = {}

    def gave(self, step: Step, number: int, tensor: Any) -> Any:
        """Takes down what leaves scopes, and keeps for those outside what is to go on there."""
        tensor = gone = self._first(tensor)
        for scope in self._leaving.get(step.outputs[number], ()):
            self._gave[scope.path] = gone = gone if self._watch.everything else self._leave(scope, gone)
        return tensor

    def taken(self, user: str | None, slot: int, tensor: Any) -> Any:
        """What an operation is given: the scopes that the tensor has left on the way to it, and entered, have the say."""
        for scope in self._leaving.get(slot, ()):
            tensor = tensor if _lies_in(user, scope) else self._gave[scope.path]
        for scope in self._entering.get(slot, ()):
            if _lies_in(user, scope):
                if scope.path not in self._given:
                    self._given[scope.path] = self._enter(scope, tensor)
                tensor = self._given[scope.path]
        return tensor

    def ended(self) -> None:
        """Tells of all that crossed, where everything is taken down: each scope around those inside it."""
        if not self._watch.everything:
            return
        inside: dict[str, list[Scope]] = defaultdict(list)
        known = {scope.path for scope in self._scopes}
        for scope in self._scopes:
            if not scope.is_operation:
                inside[next((path for path in _around(scope.path) if path in known), "")].append(scope)
        self._tell("", inside)
        for scope in self._scopes:
            if scope.is_operation:  # no layer is made of such, and none is one
                self._watch.enter(scope.path, scope.kind, None, ())
                self._watch.leave(self._gave[scope.path], self._gave[scope.path].shape)

    def _tell(self, around: str, inside: dict[str, list[Scope]]) -> None:
        for scope in inside.get(around, ()):
            given, gave = self._given.get(scope.path), self._gave[scope.path]
            self._watch.enter(scope.path, scope.kind, given, () if given is None else given.shape)
            self._tell(scope.path, inside)
            self._watch.leave(gave, gave.shape)

    def _enter(self, scope: Scope, tensor: Any) -> Any:
        key = f"{scope.path}:{INPUT}#{self._before[scope.path]}"
        return self._passed(key, tensor) if self._watch.wants(key) else tensor

    def _leave(self, scope: Scope, tensor: Any) -> Any:
        given = self._given.get(scope.path)
        self._watch.enter(scope.path, scope.kind, given, () if given is None else given.shape)
        key = self._watch.leave(tensor, tensor.shape)
        return tensor if key is None else self._passed(key, tensor)


def _borders(program: Program) -> _Borders:
    """Found once."""
    if program not in _known:
        slots = {tensor_name(step, number): slot for step in program.steps for number, slot in enumerate(step.outputs)}
        _known[program] = _Borders(scopes(program), slots)
    return _known[program]


def _lies_in(user: str | None, scope: Scope) -> bool:
    return user is not None and f"{user}/".startswith(f"{scope.path}/")


def _around(path: str) -> Iterator[str]:
    """The scopes around one, the nearest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
