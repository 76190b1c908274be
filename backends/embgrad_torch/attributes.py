"""Put back what modules keep in attributes from call to call: a hidden state, a cache, a list of maps, a replaced buffer."""

from __future__ import annotations

import collections
import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from embgrad.composition import is_installed
from embgrad.nested import Arrays, Held, are_same, held_in, is_entered, is_same, nested, put_back
from embgrad_torch.libraries import FUNCTIONS
from embgrad_torch.structure import Structure
from embgrad_torch.versions import HAVE_VERSIONS, versions_of

__all__ = ["Attributes"]

_flat: Final = itertools.chain.from_iterable

#: Where modules keep what is asked before and after their calls.
HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks")

#: What may be a tensor, or a pair of tensors.
TENSORS: Final = frozenset({torch.Tensor, tuple, list})

#: The containers among a module's attributes, the user's own and PyTorch's.
CONTAINERS: Final = frozenset({list, set, collections.deque, dict, collections.OrderedDict, collections.defaultdict})

NUMPY: Final = frozenset({np.ndarray})

#: What gives the numbers in an array.
SIZES: Final = {torch.Tensor: torch.Tensor.numel, np.ndarray: operator.attrgetter("size")}


class Attributes:
    """What the attributes of all modules are, and what those of them hold that are containers, or have containers in them.

    Args:
        model: the model, which has just been looked at.
    """

    def __init__(self, model: Structure) -> None:
        # Of a thousand attributes hardly one is of interest: the loops over all are those of the interpreter's own functions.
        self._own = model.own
        self._are_plain = set(map(type, model.own)) <= {dict}
        self._values = values = list(_flat([one.values() for one in model.own]))
        self._versions = versions_of(model.own, plain=self._are_plain)
        self._kinds = kinds = model.kinds(values, self._versions)
        inner = nested(kinds.of_the_user(is_entered, values), SIZES)
        exact = [one for one in inner.containers if type(one) in CONTAINERS]
        self._containers = [*kinds.chosen(CONTAINERS, values), *exact]
        self._objects = inner.objects
        self._arrays = [one for one in (*kinds.few(NUMPY, values), *inner.arrays) if type(one) is np.ndarray]
        self._kept = Arrays(self._arrays)
        self._filled = list(filter(None, self._containers))  # most are empty, such as those of hooks
        # Those of the user's classes may say of themselves that they are empty.
        of_the_user = [one for one in inner.containers if type(one) not in CONTAINERS]
        filled = {id(one): one for one in (*self._filled, *of_the_user)}.values()
        self._plain = [one for one in filled if type(one) is dict]
        self._entries = list(map(held_in, self._plain))
        self._plain_versions = versions_of(self._plain, plain=True)
        # The order of the others is no part of their version, if they have one.
        self._others = [(one, held_in(one)) for one in filled if type(one) is not dict]
        self._tensors = [*kinds.few(TENSORS, values), *(one for one in inner.arrays if type(one) is torch.Tensor)]

    @property
    def settings(self) -> Sequence[Any]:
        """What changes when anybody writes to an attribute of a module, and stays otherwise but for chance."""
        return self._versions if HAVE_VERSIONS else list(map(id, self._values))

    @functools.cached_property
    def hooks(self) -> Sequence[Any]:
        """What is asked before and after the modules' calls."""
        if all(one.__class__ is not collections.OrderedDict for one, _ in self._others):
            return ()
        return [hook for own in self._own for name in HOOKS for hook in own.get(name, {}).values()]

    def functions(self) -> list[Any]:
        """The functions among them, and the classes of the user's own whose objects are there and may be called."""
        called = [kind for kind in set(map(type, self._values)) if _is_called(kind)]
        return [*self._kinds.few(FUNCTIONS, self._values), *called, *(type(one.itself) for one in self._objects)]

    def hold(self, own: Sequence[Any]) -> bool:
        """Whether these are the modules' dicts, and nothing has been written to them or to what they hold since.

        It may say no even so, and always does where dicts have no versions.
        """
        held = (
            are_same(own, self._own)
            and versions_of(own, plain=self._are_plain) == self._versions
            and are_same(list(filter(None, self._containers)), self._filled)
            and versions_of(self._plain, plain=True) == self._plain_versions
            and all(is_same(one, before) for one, before in self._others)
            and all(one.holds() for one in self._objects)
        )
        if held:  # what is in arrays shows nowhere
            self._kept = Arrays(self._arrays)
        return held

    def tensors(self) -> list[Any]:
        """The tensors among them, such as a hidden state, by themselves, as a pair or in what they hold, each once."""
        if not self._tensors:
            return []
        inner = _flat([(one,) if type(one) is torch.Tensor else one for one in self._tensors])
        return list({id(one): one for one in inner if type(one) is torch.Tensor}.values())

    def put_back(self) -> None:
        """All are what they were."""
        for one in self._objects:
            one.put_back()
        if not are_same(list(filter(None, self._containers)), self._filled):
            filled = set(map(id, self._filled))
            for container in self._containers:
                if container and id(container) not in filled:
                    put_back(container, Held((), ()))
        if places := _others(versions_of(self._own, plain=self._are_plain), self._versions):
            for place in places:
                end = self._kinds.ends[place]
                names = self._kinds.names[end - self._kinds.sizes[place] : end]
                values = self._values[end - len(names) : end]
                put_back(self._own[place], Held(values, names))
            self._versions = versions_of(self._own, plain=self._are_plain)
        if places := _others(versions_of(self._plain, plain=True), self._plain_versions):
            for place in places:
                put_back(self._plain[place], self._entries[place])
            self._plain_versions = versions_of(self._plain, plain=True)
        for other, before in self._others:
            put_back(other, before)
        self._kept.put_back()


@functools.lru_cache(maxsize=1024)
def _is_called(kind: type) -> bool:
    """Whether objects of a class can be called, and what they do is the user's. What modules do is told apart."""
    called = any("__call__" in vars(one) for one in kind.__mro__)
    return called and not issubclass(kind, torch.nn.Module) and not is_installed(kind.__module__)


def _others(now: Sequence[Any], before: Sequence[Any]) -> list[int]:
    """The places at which versions are others than they were."""
    if now == before:
        return []
    return [place for place, (one, other) in enumerate(zip(now, before, strict=True)) if one != other]
