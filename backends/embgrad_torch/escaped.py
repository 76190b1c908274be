"""Takes back tensors and numbers without values that a model followed leaves behind: in containers, closures, globals, caches."""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import sys
import weakref
from collections.abc import Callable
from types import CellType
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor

from embgrad.composition import is_installed
from embgrad.generators import is_generator
from embgrad.nested import dict_of
from embgrad_torch.places import LARGEST, visited
from embgrad_torch.structure import Structure

__all__ = ["Escaping"]

#: How many objects are looked at among a program's globals: what lies deeper is hardly what a pass writes to.
MOST: Final = 20_000

#: What tensors are put into.
CONTAINERS: Final = (list, set, dict, collections.OrderedDict, collections.defaultdict, collections.deque)

#: What stands for a tensor, and for a number that follows from sizes, while a model is followed.
WITHOUT_VALUES: Final = (FakeTensor, torch.SymInt, torch.SymFloat, torch.SymBool)

#: The caches of `functools`.
Cached: Final = type(functools.lru_cache(lambda: None))


class Escaping:
    """What a model may write tensors into while it is followed, and those that it makes.

    Args:
        known: the model.
        call: a function of the user's that calls it, or None.

    Attributes:
        generators: the random generators that were found beside.
    """

    def __init__(self, known: Structure, call: Callable[..., Any] | None) -> None:
        self._made: list[weakref.ref[Any]] = []
        self._before: list[tuple[Any, Any]] = []
        self._cells: list[tuple[CellType, tuple[Any, ...]]] = []
        self.generators: list[Any] = []
        own = [(value, None) for module in known.modules for value in vars(module).values()]
        kinds, around = _around(known, call)
        self._kinds = [(kind, dict(vars(kind))) for kind in kinds]
        beside = [(one, None) for one in (*(before for _, before in self._kinds), *around)]
        for value, _ in (*visited(own, known.modules), *itertools.islice(visited(beside, known.modules), MOST)):
            self._take_down(value)

    def made(self, result: Any) -> None:
        """A function of the model's gave this."""
        if isinstance(result, FakeTensor):
            self._made.append(weakref.ref(result))
        elif isinstance(result, (list, tuple)):
            for one in result:
                self.made(one)

    def put_back(self) -> None:
        """What was written into the containers is what it was before."""
        for holder, before in self._before:
            if any(map(_is_without_values, [*holder.values()] if isinstance(holder, dict) else [*holder])):
                _put_back(holder, before)
        for cell, content in self._cells:
            if any(map(_is_without_values, _content(cell))):
                if content:
                    (cell.cell_contents,) = content
                else:
                    del cell.cell_contents
        for kind, before in self._kinds:
            for name in [name for name, value in vars(kind).items() if _is_without_values(value)]:
                if name in before:
                    type.__setattr__(kind, name, before[name])
                else:
                    type.__delattr__(kind, name)

    def are_left(self) -> bool:
        """Whether there are some that are still held, when nothing of the following is."""
        if self._alive():
            gc.collect()  # graphs of PyTorch's hold themselves
        if alive := self._alive():
            for holder in gc.get_referrers(*alive):
                cached = [holder, *gc.get_referrers(holder)] if type(holder) is dict else [holder]
                for one in cached:
                    if type(one) is Cached:
                        one.cache_clear()
            del alive
        return bool(self._alive())

    def _alive(self) -> list[Any]:
        return [one for one in [reference() for reference in self._made] if one is not None]

    def _take_down(self, value: Any) -> None:
        kind: type = type(value)
        if is_generator(kind):
            self.generators.append(value)
        if kind is CellType:
            self._cells.append((value, _content(value)))
        if type(value) in CONTAINERS and len(value) <= LARGEST:
            self._before.append((value, value.copy()))
        own = dict_of(value)
        if own and type(own) is dict:
            self._before.append((own, own.copy()))


def _around(known: Structure, call: Callable[..., Any] | None) -> tuple[list[type], list[Any]]:
    """The user's classes, and the globals of the modules that they, and the function, are written in."""
    kinds = {kind for module in known.modules for kind in type(module).__mro__ if not is_installed(kind.__module__)}
    names = {kind.__module__ for kind in kinds}
    around: list[Any] = []
    others: list[type] = []  # which need not be hashable
    if call is not None:
        around.append(call)
        names.add(getattr(call, "__module__", None) or "")
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


def _is_without_values(value: Any, depth: int = 0) -> bool:
    if issubclass(type(value), WITHOUT_VALUES):
        return True
    if depth < 3 and type(value) in (list, tuple, torch.Size, dict):
        return any(_is_without_values(one, depth + 1) for one in (value.values() if type(value) is dict else value))
    return False


def _put_back(holder: Any, before: Any) -> None:
    """A container without what has no values; what else was written into it meanwhile stays."""
    if isinstance(holder, dict):
        for key, value in [*holder.items()]:
            if _is_without_values(value):
                if key in before:
                    holder[key] = before[key]
                else:
                    del holder[key]
    elif isinstance(holder, set):
        for value in [*holder]:
            if _is_without_values(value):
                holder.discard(value)
    else:
        earlier = dict(enumerate(before))
        entries = [earlier.get(n, value) if _is_without_values(value) else value for n, value in enumerate(holder)]
        holder.clear()
        holder.extend([one for one in entries if not _is_without_values(one)])
