"""Put back what modules keep in attributes from call to call: a hidden state, a cache, a list of maps, a replaced buffer."""

from __future__ import annotations

import collections
import itertools
import operator
from collections.abc import Sequence
from typing import Any, Final

import torch

from embgrad_torch.structure import Structure

__all__ = ["Attributes"]

_flat: Final = itertools.chain.from_iterable

#: The containers in a module's attributes that a forward pass may fill: the user's own, and those of hooks and buffers.
MAPPINGS: Final = frozenset({dict, collections.OrderedDict, collections.defaultdict})
CONTAINERS: Final = frozenset({list, set, collections.deque, *MAPPINGS})

TENSOR: Final = frozenset({torch.Tensor})
PAIRS: Final = frozenset({tuple, list})


class Attributes:
    """What the attributes of all modules are, and what those of them hold that are containers."""

    def __init__(self, model: Structure) -> None:
        # Of a thousand attributes hardly one is of interest: the loops over all are those of the interpreter's own functions.
        self._own: list[Any] = [vars(module) for module in model.modules]
        self._values, self._names = _all_values(self._own), list(_flat(self._own))
        self._kinds = model.kinds(self._values)
        containers = self._kinds.chosen(CONTAINERS, self._values)
        self._empty = list(itertools.filterfalse(None, containers))  # most are, such as those of hooks
        filled = {id(one): one for one in filter(None, containers)}.values()
        self._filled = [one for one in filled if type(one) in MAPPINGS]
        self._others = [(one, one.copy()) for one in filled if type(one) not in MAPPINGS]
        self._own_before, self._filled_before = list(map(dict, self._own)), list(map(dict, self._filled))

    def tensors(self) -> list[Any]:
        """The tensors among them, such as a hidden state, by themselves or as a pair, each once."""
        some: Any = self._kinds.chosen(PAIRS, self._values)
        inner = [one for one in _flat(some) if type(one) is torch.Tensor]
        return list({id(one): one for one in (*self._kinds.chosen(TENSOR, self._values), *inner)}.values())

    def put_back(self) -> None:
        """All are what they were."""
        for container in filter(None, self._empty):
            container.clear()
        # The names of attributes are texts, of which equal ones are as good as the same.
        if list(_flat(self._own)) != self._names or not _are_same(_all_values(self._own), self._values):
            _put_all_back(self._own, self._own_before)
        if not _hold_the_same(self._filled, self._filled_before):
            _put_all_back(self._filled, self._filled_before)
        for other, copy in self._others:
            _put_back(other, copy)


def _all_values(mappings: Sequence[Any]) -> list[Any]:
    return list(_flat([one.values() for one in mappings]))


def _hold_the_same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """Whether mappings hold the same objects under the same names. None of the objects is asked whether it is equal."""
    return _are_same(_all_values(now), _all_values(before)) and _are_same(list(_flat(now)), list(_flat(before)))


def _put_all_back(now: Sequence[Any], before: Sequence[Any]) -> None:
    for own, found in zip(now, before, strict=True):
        _put_back(own, found)


def _are_same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))


def _put_back(own: Any, before: Any) -> None:
    """A container's entries, in their order; what is the same is left alone, as other threads may be reading it."""
    if isinstance(own, (list, collections.deque)):
        if not _are_same(own, before):
            own.clear()
            own.extend(before)
    elif isinstance(own, set):
        own.intersection_update(before)
        own.update(before)
    elif not _are_same(list(own), list(before)):
        own.clear()
        own.update(before)
    else:
        for name, value in before.items():
            if own[name] is not value:
                own[name] = value
