"""Where tensors of a model's lie, at any depth, so that a kept trace finds at each call those that are there then."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
import weakref
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from embgrad.identity import PLAIN
from embgrad.nested import dict_of, slots_of
from embgrad_torch.structure import Structure

__all__ = ["LARGEST", "Place", "Places", "is_ordinary", "memory_of", "reached", "visited"]

#: A step into a container or an object: whether it is an attribute, and its name, key or number.
Step = tuple[bool, Any]

#: What holds no tensor of the model's: classes and modules are the user's program.
CLOSED: Final = (*PLAIN, type, types.ModuleType, types.CodeType, types.BuiltinFunctionType, weakref.ReferenceType)

#: Containers of more entries are not looked into: they are a program's data.
LARGEST: Final = 100_000

#: The containers that are looked into besides dicts.
SEQUENCES: Final[Sequence[Any]] = (list, tuple, collections.deque, set, frozenset)

#: By the type of a callable what it holds tensors in.
INSIDE: Final[Mapping[type, Sequence[str]]] = {
    types.FunctionType: ("__closure__", "__defaults__", "__kwdefaults__"),
    types.MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords"),
    types.CellType: ("cell_contents",),
}


@dataclass(frozen=True)
class Place:
    """Where a tensor is held. A trace keeps this and not the model.

    Attributes:
        module: which module.
        held: in which of its dicts.
        name: under which name there.
        inside: the steps from what is there to the tensor.
        also: where else the same numbers lie.
    """

    module: int
    held: str
    name: str
    inside: tuple[Step, ...] = ()
    also: tuple[Place, ...] = ()

    def find(self, modules: Sequence[Any]) -> Any:
        """What is there now; None for nothing, or where not the same is in all places."""
        own = getattr(modules[self.module], self.held).get(self.name)
        for is_attribute, name in self.inside:
            try:
                own = getattr(own, name) if is_attribute else own[name]
            except (AttributeError, LookupError, TypeError, ValueError):
                return None
        for place in self.also:
            other = place.find(modules)
            if not (is_ordinary(own) and is_ordinary(other) and own.is_set_to(other)):
                return None
        return own


#: By what tells the memory of a tensor the places where it lies; None for one that cannot be found again.
Places = Mapping[Hashable, Sequence[Place | None]]


def is_ordinary(value: Any) -> bool:
    """Whether it is a tensor of no class of its own that lies in memory."""
    plain = type(value) in (torch.Tensor, torch.nn.Parameter)
    return plain and not torch._C._functorch.is_functorch_wrapped_tensor(value) and value.layout is torch.strided


def memory_of(tensor: Any) -> Hashable:
    """What two tensors share that are the same numbers."""
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def reached(known: Structure) -> Places:
    """All tensors that lie in the attributes of a model's modules: in containers, objects, functions, other modules."""
    found: defaultdict[Hashable, list[Place | None]] = defaultdict(list)
    roots = [
        (value, Place(number, "__dict__", name))
        for number, module in enumerate(known.modules)
        for name, value in vars(module).items()
    ]
    for value, place in visited(roots, known.modules):
        if is_ordinary(value) and value.data_ptr():
            found[memory_of(value)].append(place)
    return found


def visited(roots: Iterable[tuple[Any, Place | None]], known: Iterable[Any]) -> Iterator[tuple[Any, Place | None]]:
    """What is found in values, and in what these hold: each once, but tensors wherever they lie.

    Args:
        roots: the values with their places.
        known: what is not looked into.
    """
    seen = set(map(id, known))
    held: list[Any] = []  # so that nothing else gets the identity of what was seen
    waiting = collections.deque(roots)
    while waiting:
        value, place = waiting.popleft()
        if issubclass(type(value), CLOSED):
            continue
        if not issubclass(type(value), torch.Tensor):
            if id(value) in seen:
                continue
            seen.add(id(value))
            held.append(value)
            waiting += [(one, _below(place, step)) for step, one in _inside(value) if not issubclass(type(one), CLOSED)]
        yield value, place


def _below(place: Place | None, step: Step | None) -> Place | None:
    return None if place is None or step is None else dataclasses.replace(place, inside=(*place.inside, step))


def _inside(value: Any) -> Iterator[tuple[Step | None, Any]]:
    """What a container or an object holds, each with the step there; None where there is none that leads there again.

    None of the user's code runs: a proxy among a program's globals may raise whatever it likes.
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
