"""Where tensors of a model's lie, at any depth, so that a kept trace finds at each call those that are there then."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from embgrad.visiting import Step, visited
from embgrad_torch.structure import Structure

__all__ = ["Place", "Places", "is_ordinary", "memory_of", "reached"]


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
    for value, place, steps in visited(roots, known.modules, torch.Tensor):
        if is_ordinary(value) and value.data_ptr():
            found[memory_of(value)].append(None if steps is None else dataclasses.replace(place, inside=steps))
    return found
