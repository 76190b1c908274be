"""What an object holds that no attribute tells: what a copy of it would be made of, as `pickle` asks it."""

from __future__ import annotations

import copyreg
from typing import Any, Final

__all__ = ["compares", "is_hidden", "parts_of"]

#: The protocol of `pickle` from which on objects with slots tell what is in them.
_PROTOCOL: Final = 4

#: The flag of a class that is made while Python runs; others are written in C, and may hold what is in no attribute.
_MADE: Final = 1 << 9


def parts_of(value: Any) -> Any:
    """What a copy of an object would be made of: how, of what, with which state and which items; None where it does not tell.

    A generator does not, nor does an open file or a lock.
    """
    if type(value).__module__ == "itertools":  # they would, with a warning, up to Python 3.13
        return None
    try:
        known = copyreg.dispatch_table.get(type(value))
        made = value.__reduce_ex__(_PROTOCOL) if known is None else known(value)
    except Exception:  # whatever its class raises, it says that there is no copy to be made
        return None
    if not isinstance(made, tuple):
        return made
    return [*made[:3], *(None if items is None else list(items) for items in made[3:5])]


def compares(kind: type) -> bool:
    """Whether objects of a class are told from others by a value, and not only by which they are."""
    return vars(object)["__eq__"] is not getattr(kind, "__eq__", None)


def is_hidden(kind: type) -> bool:
    """Whether objects of a class may hold what is in no attribute, as they are made of something that is written in C."""
    return any(not one.__flags__ & _MADE for one in kind.__mro__ if one is not object)
