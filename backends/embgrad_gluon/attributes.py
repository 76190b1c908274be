"""Puts back what blocks keep in attributes from call to call: a hidden state, a cache, a list of maps, a running average."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np

from embgrad.nested import Arrays, held_in, holds_any, is_same, nested, put_back, put_back_attributes
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.walk import same_bits

__all__ = ["Attributes"]

#: Larger arrays in attributes, in numbers, are not copied: they are tables, which hardly a forward pass writes to.
LARGEST_COPIED: Final = 1 << 16


class Attributes:
    """The attributes of blocks that are not Gluon's own, and what those of them hold that are containers, objects or arrays."""

    def __init__(self, blocks: Iterable[Any]) -> None:
        ours = _of_gluon()
        self._found: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for block in blocks:
            own = vars(block)
            self._found.append((own, {name: own[name] for name in own.keys() - ours}))
        self._blocks = len(self._found)
        inner = nested((value for _, found in self._found for value in found.values()), _sizes())
        self._objects = inner.objects
        of_objects = {id(one.own): one.own for one in inner.objects if type(one.own) is dict}
        self._found += [(own, own.copy()) for own in of_objects.values()]
        self._held = [(one, held_in(one)) for one in inner.containers if id(one) not in of_objects]
        self._kept = Arrays(inner.arrays)
        with import_mxnet().autograd.pause():
            self._arrays = [(one, one.copy()) for one in inner.arrays if _is_copied(one)]

    def put_back(self) -> None:
        """All are what they were, but for blocks and parameters: a net builds itself in its first call."""
        for one in self._objects:
            one.put_back(_holds_parts)
        for place, (own, found) in enumerate(self._found):
            put_back_attributes(own, found, _grown, _of_gluon() if place < self._blocks else frozenset())
        for container, before in self._held:
            if not (is_same(container, before) or _holds_parts(container) or _holds_parts(before.values)):
                put_back(container, before)
        self._kept.put_back()
        for array, values in self._arrays:
            if not same_bits(array, values):
                with import_mxnet().autograd.pause():
                    array[...] = values


def _grown(before: Any, now: Any) -> bool:
    return _holds_parts(before) or _holds_parts(now)


@functools.cache
def _sizes() -> Mapping[type, Callable[[Any], int]]:
    """What gives the numbers in an array."""
    mx, size = import_mxnet(), operator.attrgetter("size")
    sparse = mx.nd.sparse.CSRNDArray, mx.nd.sparse.RowSparseNDArray
    return dict.fromkeys((np.ndarray, mx.nd.NDArray, mx.np.ndarray, *sparse), size)


def _is_copied(value: Any) -> bool:
    """Whether it is an array of MXNet's that may be kept, small enough and with contents of its own."""
    mx = import_mxnet()
    return isinstance(value, mx.nd.NDArray) and value.stype == "default" and value.size <= LARGEST_COPIED


@functools.cache
def _of_gluon() -> frozenset[str]:
    """The attributes that every block has, which Gluon itself sees to."""
    return frozenset(vars(import_mxnet().gluon.HybridBlock(prefix="")))  # with a name of its own, none is counted up


def _holds_parts(value: object) -> bool:
    """Whether it is, or contains, a block or a parameter."""
    gluon = import_mxnet().gluon
    return holds_any(value, lambda one: isinstance(one, (gluon.Block, gluon.Parameter)))
