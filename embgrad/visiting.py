"""Visits what values hold, at any depth: containers, objects, functions and their closures, by no code of the user's."""

from __future__ import annotations

import collections
import functools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from embgrad.nested import dict_of, slots_of
from embgrad.structures import PLAIN

__all__ = ["LARGEST", "Step", "visited"]

Root = TypeVar("Root")

#: A step into a container or an object: whether it is an attribute, and its name, key or number.
Step = tuple[bool, Any]

#: What is not looked into: classes and modules are the user's program.
CLOSED: Final = (*PLAIN, type, types.ModuleType, types.CodeType, weakref.ReferenceType)

#: Containers of more entries are not looked into: they are a program's data.
LARGEST: Final = 100_000

#: The containers that are looked into besides dicts.
SEQUENCES: Final[Sequence[Any]] = (list, tuple, collections.deque, set, frozenset)

#: By the type of a callable what it holds something in.
INSIDE: Final[Mapping[type, Sequence[str]]] = {
    types.FunctionType: ("__closure__", "__defaults__", "__kwdefaults__"),
    types.MethodType: ("__self__", "__func__"),
    types.BuiltinMethodType: ("__self__",),
    functools.partial: ("func", "args", "keywords"),
    types.CellType: ("cell_contents",),
}


def visited(
    roots: Iterable[tuple[Any, Root]],
    known: Iterable[Any],
    leaves: type | tuple[type, ...],
    is_entered: Callable[[Any], bool] = lambda value: True,
) -> Iterator[tuple[Any, Root, tuple[Step, ...] | None]]:
    """What is found in values, and in what these hold: each once, but leaves wherever they lie.

    Args:
        roots: the values, each with what is given along with whatever is found in it.
        known: what is not looked into.
        leaves: the framework's tensors.
        is_entered: whether something else is looked into.

    Yields:
        What was found, in which root, and the steps that lead there from it; None for steps that nobody could go again.
    """
    seen = set(map(id, known))
    held: list[Any] = []  # so that nothing else gets the identity of what was seen
    waiting: collections.deque[tuple[Any, Root, tuple[Step, ...] | None]] = collections.deque(
        (value, root, ()) for value, root in roots
    )
    while waiting:
        value, root, steps = waiting.popleft()
        kind: type = type(value)
        if issubclass(kind, CLOSED):
            continue
        if not issubclass(kind, leaves):
            if id(value) in seen or not is_entered(value):
                continue
            seen.add(id(value))
            held.append(value)
            waiting += [
                (one, root, None if steps is None or step is None else (*steps, step))
                for step, one in _inside(value)
                if not issubclass(type(one), CLOSED)
            ]
        yield value, root, steps


def _inside(value: Any) -> Iterator[tuple[Step | None, Any]]:
    """What a container or an object holds, each with the step there; None where there is none that leads there again.

    A proxy among a program's globals may raise whatever it likes.
    """
    kind: type = type(value)
    if issubclass(kind, dict):
        if dict.__len__(value) <= LARGEST:
            for key, one in [*dict.items(value)]:
                yield (False, key) if type(key) in PLAIN else None, one
    else:
        sort = next((one for one in SEQUENCES if issubclass(kind, one)), None)
        if sort is not None and sort.__len__(value) <= LARGEST:
            for number, one in enumerate([*sort.__iter__(value)]):
                yield None if sort in (set, frozenset) else (False, number), one
    for name, descriptor in [*slots_of(kind), *((name, vars(kind)[name]) for name in INSIDE.get(kind, ()))]:
        try:
            one = descriptor.__get__(value)
        except (AttributeError, ValueError):  # it is empty
            continue
        yield (True, name), one
    own = dict_of(value)
    if type(own) is dict:
        for name, one in [*own.items()]:
            yield (True, name), one
