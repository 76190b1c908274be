"""Put back what modules keep in attributes from call to call: a hidden state, a cache, a list of maps, a replaced buffer."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
import torch

from embgrad.nested import Arrays, Held, are_same, held_in, is_entered, nested, put_back

__all__ = ["Attributes"]

_flat: Final[Any] = itertools.chain.from_iterable

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
        # Of a thousand attributes hardly one is of interest: what is done to all is done by the interpreter's own functions.
        own = list(map(vars, modules))
        values = list(_flat(map(dict.values, own)))
        of_the_user = [
            value
            for attributes in own
            for name, value in attributes.items()
            if name not in OF_TORCH and is_entered(type(value))
        ]
        inner = nested(of_the_user, SIZES)
        self._objects = inner.objects
        self._arrays = Arrays([*(one for one in values if type(one) is np.ndarray), *inner.arrays])
        containers = [one for one in (*values, *inner.containers) if type(one) in CONTAINERS]
        # Most are empty, such as those of hooks. One of the user's classes may say so of itself and not be.
        self._empty = [one for one in containers if not one]
        filled = [one for one in inner.containers if type(one) not in CONTAINERS] + list(filter(None, containers))
        self._filled = [(one, held_in(one)) for one in filled if type(one) is not dict]
        self._dicts = [*own, *(one for one in filled if type(one) is dict)]
        self._before = list(map(dict, self._dicts))
        kept = [*(one for one in values if type(one) in TENSORS), *inner.arrays]
        flat = _flat([one if type(one) in (tuple, list) else (one,) for one in kept])
        self.tensors = list({id(one): one for one in flat if type(one) is torch.Tensor}.values())

    def put_back(self) -> None:
        """All are what they were."""
        for one in self._objects:
            one.put_back()
        for container in filter(None, self._empty):
            put_back(container, Held((), ()))
        if not all(are_same(_all(get, self._dicts), _all(get, self._before)) for get in (dict.keys, dict.values)):
            for container, before in zip(self._dicts, self._before, strict=True):
                put_back(container, Held([*before.values()], [*before]))
        for container, held in self._filled:
            put_back(container, held)
        self._arrays.put_back()


def _all(get: Callable[[dict[str, Any]], Iterable[Any]], dicts: Sequence[dict[str, Any]]) -> list[Any]:
    """The keys or the values of all dicts, and how many each has."""
    return [*map(len, dicts), *_flat(map(get, dicts))]
