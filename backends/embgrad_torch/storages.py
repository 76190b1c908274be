"""How many hold the memory of a tensor, in every build of PyTorch."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, Final

import torch

__all__ = ["is_held_by_others"]

#: Where a storage in C++ keeps the count of those who hold it: behind the pointer to its class's functions.
OFFSET: Final = ctypes.sizeof(ctypes.c_void_p)


def is_held_by_others(tensor: Any) -> bool:
    """Whether anybody holds the tensor's memory besides the tensor, and what it is a view of where it is one.

    Where PyTorch does not tell, it is said to be so.
    """
    memory = tensor.untyped_storage()
    count = _counting()
    # The tensor itself, what it is a view of (nn.Linear gives a view of what nobody else holds), and `memory` here.
    return count is None or count(memory) > 2 + tensor._is_view()


@functools.cache
def _counting() -> Callable[[Any], int] | None:
    """What counts the holders of a storage; None where there is no way to."""
    if hasattr(torch._C, "_storage_Use_Count"):
        return _told
    return _read if _counts(_read) else None


def _told(memory: Any) -> int:
    return int(torch._C._storage_Use_Count(memory._cdata))


def _read(memory: Any) -> int:
    """The count itself: PyTorch's builds for CPUs have no function for it before some version after 2.6."""
    return ctypes.c_uint32.from_address(memory._cdata + OFFSET).value


def _counts(count: Callable[[Any], int]) -> bool:
    """Whether it counts: the tensor and the storage in Python, then two views too, and then the first two again."""
    with torch.inference_mode(False), torch._C.DisableTorchFunction():
        tensor = torch.zeros(3)
        memory = tensor.untyped_storage()
        found = [count(memory)]
        views = [tensor.view(3, 1), tensor[1:]]
        found.append(count(memory))
        del views
        found.append(count(memory))
    return found == [2, 4, 2]
