"""The tensors in what a model returned, and the same with others in their places."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable
from typing import Any, Final

import torch

from embgrad.structures import entries, is_nest, with_entry

__all__ = ["UnknownError", "mapped", "tensors_in"]

#: What holds no tensors.
PLAIN: Final = (
    *(bool, int, float, complex, str, bytes, type(None), range, type, enum.Enum),
    *(torch.dtype, torch.device, torch.layout),
)


class UnknownError(Exception):
    """In what a model returned there is what cannot be looked into; says what."""


def tensors_in(value: Any) -> list[Any]:
    """The tensors in a nest of sequences, mappings, data classes and plain objects, in order, each where it stands."""
    found: list[Any] = []
    mapped(value, lambda one: found.append(one) or one)  # type: ignore[func-returns-value]
    return found


def mapped(value: Any, change: Callable[[Any], Any], above: tuple[int, ...] = ()) -> Any:
    """The nest with what `change` gives for each tensor in its place; the nest itself stays as it is.

    Args:
        value: the nest.
        change: gives another tensor for a tensor.
        above: the identities of the objects that it lies in.

    Raises:
        UnknownError: it holds what cannot be looked into.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise UnknownError("it returns a size of its inputs as a number")
    if id(value) in above:
        raise UnknownError(f"it returns a {type(value).__qualname__} that holds itself")
    inside = (*above, id(value))
    new = value
    for place, entry in entries(value):
        other = mapped(entry, change, inside)
        if other is not entry:
            new = with_entry(new, place, other)
    if is_nest(value):
        return new
    return _object(value, change, inside)


def _object(value: Any, change: Callable[[Any], Any], inside: tuple[int, ...]) -> Any:
    """An object of some class, such as a cache of keys and values, by its attributes."""
    if isinstance(value, torch.nn.Module) or callable(value) or not hasattr(value, "__dict__"):
        raise UnknownError(f"it returns a {type(value).__qualname__}, which is neither a tensor nor a plain object")
    changed = {}
    for name, entry in vars(value).items():
        other = mapped(entry, change, inside)
        if other is not entry:
            changed[name] = other
    if not changed:
        return value
    new = copy.copy(value)
    vars(new).update(changed)
    return new
