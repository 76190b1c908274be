"""Put back what modules keep in attributes from call to call: a hidden state, a cache, a list of maps, a replaced buffer."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from embgrad.nested import Arrays, Held, held_in, is_entered, nested, put_back

__all__ = ["Attributes"]

#: What may be a tensor, or a pair of tensors.
TENSORS: Final = frozenset({torch.Tensor, tuple, list})

#: The containers among a module's attributes, the user's own and PyTorch's.
CONTAINERS: Final = frozenset({list, set, collections.deque, dict, collections.OrderedDict, collections.defaultdict})

#: What gives the numbers in an array.
SIZES: Final = {torch.Tensor: torch.Tensor.numel, np.ndarray: lambda array: array.size}

#: The attributes that every module has, which hold nothing of the user's but in their containers.
OF_TORCH: Final = frozenset(vars(torch.nn.Module()))


class Attributes:
    """What the attributes of all modules are, and what those of them hold that are containers, or have containers in them.

    Args:
        modules: the modules.

    Attributes:
        tensors: the tensors among the attributes, such as a hidden state, by themselves, as a pair or in containers, each once.
    """

    def __init__(self, modules: Sequence[Any]) -> None:
        self._own = [(own, Held([*own.values()], [*own])) for own in map(vars, modules)]
        values = [*itertools.chain.from_iterable(held.values for _, held in self._own)]
        of_the_user = [
            value
            for own, _ in self._own
            for name, value in own.items()
            if name not in OF_TORCH and is_entered(type(value))
        ]
        inner = nested(of_the_user, SIZES)
        self._objects = inner.objects
        self._arrays = Arrays([*(one for one in values if type(one) is np.ndarray), *inner.arrays])
        containers = {id(one): one for one in (*filter(_is_container, values), *inner.containers)}.values()
        # Most are empty, such as those of hooks; one of the user's classes may say so of itself and not be.
        self._empty = [one for one in containers if type(one) in CONTAINERS and not one]
        self._filled = [(one, held_in(one)) for one in containers if type(one) not in CONTAINERS or one]
        kept = [*(one for one in values if type(one) in TENSORS), *inner.arrays]
        flat = itertools.chain.from_iterable([(one,) if type(one) not in (tuple, list) else one for one in kept])
        self.tensors = list({id(one): one for one in flat if type(one) is torch.Tensor}.values())

    def put_back(self) -> None:
        """All are what they were."""
        for one in self._objects:
            one.put_back()
        for container in filter(None, self._empty):
            put_back(container, Held((), ()))
        for container, before in (*self._own, *self._filled):
            put_back(container, before)
        self._arrays.put_back()


def _is_container(value: Any) -> bool:
    return type(value) in CONTAINERS
