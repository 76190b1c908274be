"""The content of objects beyond their attributes: the parts from which `pickle` would make a copy."""

from __future__ import annotations

import copyreg
from typing import Any, Final

__all__ = ["compares", "is_hidden", "parts_of"]

#: The first protocol of `pickle` that covers objects with slots.
_PROTOCOL: Final = 4

#: The flag of classes created at run time. Other classes are written in C, and their objects may hold more than attributes.
_CREATED_AT_RUN_TIME: Final = 1 << 9


def parts_of(value: Any) -> Any:
    """Return the parts from which `pickle` would rebuild an object: the function, its arguments, the state and the items.

    Returns None for objects that cannot be pickled, such as a generator, an open file or a lock.
    """
    if type(value).__module__ == "itertools":  # these can be pickled up to Python 3.13, with a warning
        return None
    try:
        reducer = copyreg.dispatch_table.get(type(value))
        reduced = value.__reduce_ex__(_PROTOCOL) if reducer is None else reducer(value)
    except Exception:  # whatever the class raises means that the object cannot be copied
        return None
    if not isinstance(reduced, tuple):
        return reduced
    return [*reduced[:3], *(None if items is None else list(items) for items in reduced[3:5])]


def compares(cls: type) -> bool:
    """Return whether the class defines `__eq__`, so that its objects compare by value and not by identity."""
    return vars(object)["__eq__"] is not getattr(cls, "__eq__", None)


def is_hidden(cls: type) -> bool:
    """Return whether a class or a base is written in C, so that its objects may hold content beyond their attributes."""
    return any(not base.__flags__ & _CREATED_AT_RUN_TIME for base in cls.__mro__ if base is not object)
