"""Puts back what blocks keep in attributes from call to call: a hidden state, a cache, a list of maps, a running average."""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.walk import same_bits

__all__ = ["Attributes", "arrays_kept"]

MAPPINGS: Final = frozenset({dict, collections.OrderedDict, collections.defaultdict})
SEQUENCES: Final = frozenset({list, collections.deque})

#: Larger arrays in attributes, in numbers, are not copied: they are tables, which hardly a forward pass writes to.
LARGEST_COPIED: Final = 1 << 16


class Attributes:
    """The attributes of blocks that are not Gluon's own, and what those of them hold that are containers or arrays."""

    def __init__(self, blocks: Iterable[Any]) -> None:
        ours = _of_gluon()
        self._found: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for block in blocks:
            own = vars(block)
            self._found.append((own, {name: own[name] for name in own.keys() - ours}))
        held = _held(value for _, found in self._found for value in found.values())
        self._held = [(one, one.copy()) for one in held if not _is_array(one)]
        with import_mxnet().autograd.pause():
            self._arrays = [(one, one.copy()) for one in held if _is_array(one)]

    def put_back(self) -> None:
        """All are what they were, but for blocks and parameters: a net builds itself in its first call."""
        ours = _of_gluon()
        for own, found in self._found:
            for name in own.keys() - ours - found.keys():
                if not _is_part(own[name]):
                    del own[name]
            for name, value in found.items():
                now = own.get(name)
                if now is not value and not (_is_part(now) or _is_part(value)):
                    own[name] = value
        for container, before in self._held:
            if not _is_same(container, before):
                container.clear()
                container.update(before) if type(container) in MAPPINGS else container.extend(before)
        for array, values in self._arrays:
            if not _same(array, values):
                with import_mxnet().autograd.pause():
                    array[...] = values


def arrays_kept(blocks: Iterable[Any]) -> dict[int, tuple[str, Any]]:
    """The arrays of MXNet that blocks keep in attributes, or in containers there, by identity, with the attributes' names."""
    ours, kind = _of_gluon(), import_mxnet().nd.NDArray
    found: dict[int, tuple[str, Any]] = {}
    for block in blocks:
        own = vars(block)
        for name in own.keys() - ours:
            value = own[name]
            inside = [value] if isinstance(value, kind) else _inside(value, set())
            found |= {id(one): (name, one) for one in inside if isinstance(one, kind)}
    return found


def _inside(value: Any, seen: set[int]) -> list[Any]:
    """What is in containers, and in those in them."""
    if id(value) in seen or not (type(value) in MAPPINGS or type(value) in SEQUENCES or type(value) is tuple):
        return []
    seen.add(id(value))
    entries = list(value.values() if type(value) in MAPPINGS else value)
    return entries + [one for entry in entries for one in _inside(entry, seen)]


def _held(values: Iterable[Any]) -> list[Any]:
    """The containers and arrays among values, and in those containers, each once."""
    found: dict[int, Any] = {}
    waiting = list(values)
    while waiting:
        one = waiting.pop()
        if id(one) in found or not (_is_array(one) or type(one) in MAPPINGS or type(one) in SEQUENCES):
            continue
        found[id(one)] = one
        if not _is_array(one):
            waiting.extend(one.values() if type(one) in MAPPINGS else one)
    return list(found.values())


def _same(now: Any, before: Any) -> bool:
    return now.tobytes() == before.tobytes() if isinstance(now, np.ndarray) else same_bits(now, before)


def _is_array(value: object) -> bool:
    """Whether it is an array that may be kept, small enough and with contents of its own."""
    if isinstance(value, np.ndarray):
        return value.size <= LARGEST_COPIED and not value.dtype.hasobject and value.flags.writeable
    mx = import_mxnet()
    return isinstance(value, mx.nd.NDArray) and value.stype == "default" and value.size <= LARGEST_COPIED


@functools.cache
def _of_gluon() -> frozenset[str]:
    """The attributes that every block has, which Gluon itself sees to."""
    return frozenset(vars(import_mxnet().gluon.HybridBlock(prefix="")))  # with a name of its own, none is counted up


def _is_part(value: object) -> bool:
    gluon = import_mxnet().gluon
    if type(value) in MAPPINGS:
        value = list(value.values())  # type: ignore[attr-defined]
    if type(value) in SEQUENCES or isinstance(value, tuple):
        return any(map(_is_part, value))  # type: ignore[call-overload]
    return isinstance(value, (gluon.Block, gluon.Parameter))


def _is_same(now: Any, before: Any) -> bool:
    """Whether containers hold the same objects. None of the objects is asked whether it is equal."""
    pairs: Sequence[tuple[Any, Any]] = [(now, before)]
    if isinstance(now, Mapping):
        pairs = [(list(now), list(before)), (list(now.values()), list(before.values()))]
    return all(len(one) == len(other) and all(map(operator.is_, one, other)) for one, other in pairs)
