"""Sees writes into memory that several tensors of a model's share, where a trace gives each memory of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from embgrad_torch.operators import ended

__all__ = ["Shared", "WrittenError", "shares_memory", "tensors_among", "versions", "writes_by_name"]

#: The functions that write into their first argument and do not say so by an underscore at the end.
_WRITING: Final = frozenset(
    {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__ipow__"}
)


class WrittenError(Exception):
    """What is written into memory would be lost; says so as "compile=True: ..." goes on."""


class Shared:
    """The values that were taken off the graph: in the model they lie in the memory of what they were taken of.

    While the model's Python is followed, writes can be told by the tensors' versions alone.
    """

    def __init__(self) -> None:
        self._taken: list[tuple[Any, int, Any, int]] = []

    def ended(self, value: Any) -> Any:
        """The same values off the graph."""
        new = ended(value)
        self._taken.append((new, _version(new), value, _version(value)))
        return new

    def expect_alike(self, read: list[Any]) -> None:
        """Refuse that values are read after one of two tensors was written to, which would have to show in both.

        Args:
            read: the tensors that are read now.

        Raises:
            WrittenError: it was.
        """
        apart = [
            other
            for new, made, value, taken in self._taken
            for own, before, other in ((new, made, value), (value, taken, new))
            if _version(own) != before
        ]
        if apart and not set(map(_memory, apart)).isdisjoint(map(_memory, read)):
            raise WrittenError("the model writes into memory that a tensor shares with another which was detached")


def tensors_among(values: Any) -> Iterator[Any]:
    """The tensors in a function's arguments."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for one in values:
            yield from tensors_among(one)
    elif isinstance(values, dict):
        yield from tensors_among(list(values.values()))
    elif isinstance(values, slice):
        yield from tensors_among((values.start, values.stop, values.step))


def versions(tensors: list[Any]) -> list[int]:
    """How often the tensors' memory was written to."""
    return list(map(_version, tensors))


def writes_by_name(func: Any, kwargs: Any) -> bool:
    """Whether a function says by its name that it writes: in inference mode nothing is counted."""
    name = getattr(func, "__name__", "")
    return name in _WRITING or (name.endswith("_") and not name.endswith("__")) or kwargs.get("out") is not None


def shares_memory(one: Any, others: Iterable[Any]) -> bool:
    """Whether a tensor lies in the memory of one of the others."""
    return _memory(one) in set(map(_memory, others))


def _version(tensor: Any) -> int:
    return -1 if tensor.is_inference() else int(tensor._version)


def _memory(tensor: Any) -> Any:
    if tensor.layout is not torch.strided or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return id(tensor)
    return tensor.untyped_storage()._cdata
