"""Tells whether two functions, or two requests, do the same, so that what was made for one serves for another."""

from __future__ import annotations

import types
import weakref
from collections.abc import Hashable
from typing import Any, Final

from embgrad.backend import NativeObjective, Request

__all__ = ["PLAIN", "Same", "asked_of", "code_of", "identity_of"]

#: What is the same where it is equal.
PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))


def asked_of(request: Request) -> Hashable:
    """Stands for what is asked of a model: points, outputs and options, whatever values come with them."""
    native = request.respond if isinstance(request.respond, NativeObjective) else None
    return (
        request.points,
        request.outputs,
        *(tuple(sorted(getattr(request, option))) for option in ("override", "add", "edit")),
        request.training,
        request.several,
        None if native is None else (native.scalar,),
        None if request.call is None else identity_of(request.call),
    )


def identity_of(function: Any) -> Hashable:
    """Stands for a function, and keeps nothing alive: two made of one piece of Python, around the same objects, do the same."""
    if isinstance(function, types.MethodType):
        return (identity_of(function.__func__), Same(function.__self__))
    if not isinstance(function, types.FunctionType):
        return Same(function)
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    held = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    return (function.__code__, id(function.__globals__), *map(_held, held))


def code_of(function: Any) -> Hashable:
    """Stands for the piece of Python that a function is made of, whatever it is made around."""
    code: Hashable = getattr(function, "__code__", type(function).__qualname__)
    return code


def _held(value: Any) -> Hashable:
    return (type(value), value) if isinstance(value, PLAIN) else Same(value)


class Same:
    """Equal to another that stands for the very same object, for as long as that lives; does not keep it alive.

    What takes no weak references is equal to nothing.
    """

    def __init__(self, value: Any) -> None:
        self._number = id(value)
        try:
            self._value: Any = weakref.ref(value)
        except TypeError:
            self._value = lambda: None

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self._value() is not None and self._value() is other._value()
