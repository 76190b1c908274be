"""Gives a model's functions other tensors in the place of its own, in one thread, while the model stays as it is for others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

from embgrad_torch.aliases import tensors_among
from embgrad_torch.places import is_ordinary

__all__ = ["Replaced"]

#: The functions that give a tensor's numbers to Python.
_READING: Final = frozenset(
    {torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__, torch.is_nonzero}
    | {torch.Tensor.is_nonzero, torch.Tensor.__int__, torch.Tensor.__float__, torch.Tensor.__bool__}
    | {torch.Tensor.__index__, torch.Tensor.__complex__, torch.Tensor.__contains__}
)

#: The names of the functions, and of what gets an attribute, that look at no numbers.
_DESCRIBING: Final = frozenset(
    {"__get__", "dim", "size", "numel", "stride", "is_floating_point", "is_complex", "get_device"}
)


class Replaced:
    """While a model is followed: what its functions are given.

    Args:
        weights: pairs of a tensor of the model's and the one in its place.

    Attributes:
        others: by their identities the tensors with numbers that were given and are not replaced.
        read: those of them whose numbers Python has read.
        numbers: those of one number, which a function may have taken for a number: then no graph has them.
    """

    def __init__(self, weights: Iterable[tuple[Any, Any]]) -> None:
        self.others: dict[int, Any] = {}
        self.read: list[Any] = []
        self.numbers: list[Any] = []
        self._pairs = list(weights)
        self._instead = {id(own): other for own, other in self._pairs}

    def forget(self) -> None:
        """Keep none of the tensors that are put in a place."""
        self._pairs.clear()
        self._instead.clear()

    def given(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments with which a function goes on."""
        args, kwargs = self.of(args), self.of(kwargs)
        outside = [one for one in tensors_among((args, kwargs)) if is_ordinary(one)]
        if outside:
            self.others.update({id(one): one for one in outside})
            if func in _READING:
                self.read += outside
            self.read += [one for one in _of_slices((args, kwargs)) if is_ordinary(one)]
            if getattr(func, "__name__", "") not in _DESCRIBING:
                self.numbers += [one for one in outside if one.numel() == 1]
        return args, kwargs

    def of(self, value: Any) -> Any:
        """A nest with the other tensors in it, or the very same nest."""
        if isinstance(value, torch.Tensor):
            return self._instead.get(id(value), value)
        kind = type(value)
        if kind is list or kind is tuple:
            new = [self.of(one) for one in value]
            return kind(new) if any(one is not other for one, other in zip(new, value, strict=True)) else value
        if kind is dict:
            changed = {name: self.of(one) for name, one in value.items()}
            return changed if any(changed[name] is not one for name, one in value.items()) else value
        return value


def _of_slices(value: Any) -> Iterable[Any]:
    """The tensors that slices are made of: Python reads them as numbers."""
    if isinstance(value, slice):
        yield from tensors_among(value)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _of_slices(one)
    elif isinstance(value, dict):
        yield from _of_slices(list(value.values()))
