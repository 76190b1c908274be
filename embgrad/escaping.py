"""Takes back what has no values and a model left behind when it was followed: in containers, closures, classes and globals."""

from __future__ import annotations

import collections
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from types import BuiltinMethodType, CellType, FunctionType, MethodType
from typing import Any, Final

from embgrad.composition import is_installed
from embgrad.generators import is_generator
from embgrad.nested import dict_of, is_entered
from embgrad.visiting import LARGEST, visited

__all__ = ["FUNCTIONS", "Escaping", "classes_of"]

#: How many objects are looked at among a program's globals: what lies deeper is hardly what a pass writes to.
MOST: Final = 20_000

#: What tensors are put into.
CONTAINERS: Final = (list, set, dict, collections.OrderedDict, collections.defaultdict, collections.deque)


#: What holds Python, and what it works on.
FUNCTIONS: Final = (FunctionType, MethodType, BuiltinMethodType, functools.partial)


class Escaping:
    """What a model may write tensors into while it is followed, as it is now.

    Args:
        modules: the model's, with which nothing is done.
        functions: functions of the user's that are run, and may be the model.
        leaves: the framework's tensors, and what stands for them.
        is_without_value: whether one of those stands for a tensor, or a number, of another run.
        own: which of the modules' attributes are looked at; None for the functions among them, where the others are put back as
            a whole.
        entered: whether something is looked into.

    Attributes:
        generators: the random generators that were found.
    """

    def __init__(
        self,
        modules: Sequence[Any],
        functions: Iterable[Any],
        leaves: type | tuple[type, ...],
        is_without_value: Callable[[Any], bool],
        own: Iterable[Any] | None = None,
        entered: Callable[[Any], bool] | None = None,
    ) -> None:
        self.generators: list[Any] = []
        self._is_without_value = is_without_value
        self._before: list[tuple[Any, Any]] = []
        self._cells: list[tuple[CellType, tuple[Any, ...]]] = []
        kinds, around = _around(modules, functions)
        self._kinds = [(kind, dict(vars(kind))) for kind in kinds]
        if own is None:
            own = [one for module in modules for one in (dict_of(module) or {}).values() if type(one) in FUNCTIONS]
        beside = [(one, None) for one in (*(before for _, before in self._kinds), *around)]
        enters = entered or _is_the_users
        found = (
            visited([(one, None) for one in own], modules, leaves, enters),
            itertools.islice(visited(beside, modules, leaves, enters), MOST),
        )
        for value, *_ in itertools.chain.from_iterable(found):
            self._take_down(value)

    def put_back(self) -> None:
        """What was written that has no values is what it was before, or gone; all else that was written stays."""
        for holder, before in self._before:
            if any(map(self._is_empty, [*holder.values()] if isinstance(holder, dict) else [*holder])):
                self._put_back(holder, before)
        for cell, content in self._cells:
            if any(map(self._is_empty, _content(cell))):
                if content:
                    (cell.cell_contents,) = content
                else:
                    del cell.cell_contents
        for kind, before in self._kinds:
            for name in [name for name, value in vars(kind).items() if self._is_empty(value)]:
                if name in before:
                    type.__setattr__(kind, name, before[name])
                else:
                    type.__delattr__(kind, name)

    def _take_down(self, value: Any) -> None:
        kind: type = type(value)
        if is_generator(kind):
            self.generators.append(value)
        if kind is CellType:
            self._cells.append((value, _content(value)))
        if kind in CONTAINERS and len(value) <= LARGEST:
            self._before.append((value, value.copy()))
        own = dict_of(value)
        if own and type(own) is dict:
            self._before.append((own, own.copy()))

    def _is_empty(self, value: Any, depth: int = 0) -> bool:
        """Whether something has no values, or holds such."""
        kind: type = type(value)
        if self._is_without_value(value):
            return True
        if depth < 3 and (kind in (list, dict) or issubclass(kind, tuple)):
            held = value.values() if kind is dict else tuple.__iter__(value) if kind is not list else value
            return any(self._is_empty(one, depth + 1) for one in held)
        return False

    def _put_back(self, holder: Any, before: Any) -> None:
        if isinstance(holder, dict):
            for key, value in [*holder.items()]:
                if self._is_empty(value):
                    if key in before:
                        holder[key] = before[key]
                    else:
                        del holder[key]
        elif isinstance(holder, set):
            for value in [*holder]:
                if self._is_empty(value) and value not in before:
                    holder.discard(value)
        else:
            earlier = dict(enumerate(before))
            entries = [
                earlier.get(place, value) if self._is_empty(value) else value for place, value in enumerate(holder)
            ]
            holder.clear()
            holder.extend(one for place, one in enumerate(entries) if place in earlier or not self._is_empty(one))


def _is_the_users(value: Any) -> bool:
    """Whether something is a container, or of the user's own, and no object of a library's, which sees to its state itself."""
    kind: type = type(value)
    if kind is FunctionType:
        return not is_installed(value.__module__)
    return kind.__module__ in ("builtins", "functools", "types") or is_generator(kind) or is_entered(kind)


def classes_of(objects: Iterable[Any]) -> set[type]:
    """The classes of the user's own that objects are of."""
    return {kind for one in objects for kind in type(one).__mro__ if not is_installed(kind.__module__)}


def _around(modules: Sequence[Any], functions: Iterable[Any]) -> tuple[list[type], list[Any]]:
    """The user's classes; and the functions, with the globals of the modules that these and the classes are written in."""
    kinds = classes_of(modules)
    names = {kind.__module__ for kind in kinds}
    around: list[Any] = []
    others: list[type] = []  # which need not be hashable
    for function in functions:
        around.append(function)
        names.add(getattr(function, "__module__", None) or "")
    for name in names:
        if name in sys.modules and not is_installed(name):
            held = vars(sys.modules[name])
            around.append(held)
            others += [one for one in [*held.values()] if issubclass(type(one), type) and one.__module__ == name]
    return [*kinds, *others], around


def _content(cell: CellType) -> tuple[Any, ...]:
    """What a closure's cell holds; nothing where it is empty as yet."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()
