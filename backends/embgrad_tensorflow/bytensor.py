"""What is known of tensors, by which tensor it is: they cannot be keys, and are not to be kept alive."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

__all__ = ["ByTensor"]

Known = TypeVar("Known")


class ByTensor(Generic[Known]):
    """What is known of each of some tensors. A tensor that takes the place in memory of one that is gone is another."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Known]] = {}

    def __setitem__(self, tensor: Any, known: Known) -> None:
        self._known[id(tensor)] = (weakref.ref(tensor), known)

    def get(self, tensor: Any) -> Known | None:
        """What is known of it; None where nothing is."""
        found = self._known.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def forget(self, tensor: Any) -> None:
        """Nothing is known of it."""
        self._known.pop(id(tensor), None)

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()
