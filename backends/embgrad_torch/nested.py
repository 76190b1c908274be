"""Goes through what modules keep inside of containers and of the user's own objects, as far as it is little."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import torch

from embgrad.composition import is_installed

__all__ = ["CONTAINERS", "MAPPINGS", "Nested", "attributes_of", "is_entered", "nested"]

#: The containers in a module's attributes that a forward pass may fill: the user's own, and those of hooks and buffers.
MAPPINGS: Final = frozenset({dict, collections.OrderedDict, collections.defaultdict})
CONTAINERS: Final = frozenset({list, set, collections.deque, *MAPPINGS})

#: So many entries are gone through of one model, the outer ones first; more are data, which no forward pass writes to.
MOST_ENTRIES: Final = 1 << 14

#: So many numbers are in the tensors, in all, that are found there: they are copied in each call.
MOST_NUMBERS: Final = 1 << 20

#: What classes of the user's may be made of and hold nothing but what the user has put there.
_BARE: Final = frozenset({"abc", "typing"})


class Nested(NamedTuple):
    """What was found.

    Attributes:
        containers: the containers inside of others or of objects, and the dicts of objects' attributes, each once.
        objects: the objects, with these dicts.
        tensors: the tensors.
    """

    containers: Sequence[Any]
    objects: Sequence[tuple[Any, dict[str, Any]]]
    tensors: Sequence[Any]


def nested(values: Iterable[Any]) -> Nested:
    """What is in containers, tuples and objects, and in those in them.

    Args:
        values: of types that are entered.
    """
    containers: dict[int, Any] = {}
    objects: list[tuple[Any, dict[str, Any]]] = []
    tensors: list[Any] = []
    waiting = collections.deque(values)
    seen = set(map(id, waiting))
    left, numbers = MOST_ENTRIES, MOST_NUMBERS
    while waiting:
        one = waiting.popleft()
        if not (type(one) in CONTAINERS or type(one) is tuple):
            own = attributes_of(one)
            if type(own) is not dict:
                continue
            objects.append((one, own))
            containers[id(own)] = one = own
        entries = one.values() if type(one) in MAPPINGS else one
        if len(one) > left or not any(map(_is_looked_at, set(map(type, entries)))):
            continue
        left -= len(one)
        for entry in entries:
            kind: type = type(entry)
            if kind is torch.Tensor and entry.numel() <= numbers:
                numbers -= entry.numel()
                tensors.append(entry)
            elif is_entered(kind) and id(entry) not in seen:
                seen.add(id(entry))
                waiting.append(entry)
                if kind in CONTAINERS:
                    containers[id(entry)] = entry
    return Nested(list(containers.values()), objects, tensors)


def attributes_of(one: Any) -> Any:
    """The dict of an object's attributes, or None, by no code of the user's: a proxy may raise whatever it likes."""
    try:
        return object.__getattribute__(one, "__dict__")
    except AttributeError:
        return None


def _is_looked_at(kind: type) -> bool:
    return kind is torch.Tensor or is_entered(kind)


@functools.lru_cache(maxsize=1024)
def is_entered(kind: type) -> bool:
    """Whether what is in values of a type is looked at: containers, tuples, and objects of the user's own plain classes.

    Objects of packages, and those of classes made of theirs, such as threads, see to their state themselves.
    """
    if kind in CONTAINERS or kind is tuple or kind is types.SimpleNamespace:
        return True
    bases = [one for one in kind.__mro__[:-1] if one.__module__ not in _BARE]
    if not bases or kind.__dictoffset__ == 0 or kind.__module__.startswith("embgrad"):
        return False
    return not any(is_installed(one.__module__) for one in bases)
