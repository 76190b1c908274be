"""Tells whether two functions, or two requests, do the same, so that what was made for one serves for another."""

from __future__ import annotations

import hashlib
import types
import weakref
from collections.abc import Hashable, Mapping
from typing import Any, Final

import numpy as np

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
    """Stands for a function, and keeps nothing alive: two made of one piece of Python, around the same objects, do the same.

    It is made around its globals, too: a number in a notebook is one. Arrays, lists and dicts are the same by what they hold.
    """
    return _function(function, frozenset())


def _function(function: Any, around: frozenset[int]) -> Hashable:
    """Stands for a function that those with the numbers `around` refer to, or it to itself."""
    if isinstance(function, types.MethodType):
        return (_function(function.__func__, around), Same(function.__self__))
    if not isinstance(function, types.FunctionType):
        return Same(function)
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    held = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    world = function.__globals__
    held += [world[name] for name in _names(function.__code__) if name in world]
    around |= {id(function)}
    return (function.__code__, id(world), *(_held(one, world, around) for one in held))


def _names(code: types.CodeType) -> list[str]:
    """The names that a piece of Python looks up, those of attributes and of functions inside it among them."""
    inner = [name for one in code.co_consts if isinstance(one, types.CodeType) for name in _names(one)]
    return list(dict.fromkeys([*code.co_names, *inner]))


def code_of(function: Any) -> Hashable:
    """Stands for the piece of Python that a function is made of, whatever it is made around."""
    code: Hashable = getattr(function, "__code__", type(function).__qualname__)
    return code


def _held(value: Any, world: Mapping[str, Any], around: frozenset[int]) -> Hashable:
    """Stands for what a function refers to; `world` are its globals."""
    if isinstance(value, PLAIN):
        return (type(value), value)
    if id(value) in around:
        return None
    if isinstance(value, types.FunctionType) and value.__globals__ is world:  # a library's is the same for good
        return _function(value, around)
    inner = around | {id(value)}
    if type(value) in (list, tuple):
        return (type(value), *(_held(one, world, inner) for one in value))
    if type(value) is dict:
        return (dict, *(_held(entry, world, inner) for entry in value.items()))
    if type(value) is np.ndarray and not value.dtype.hasobject:
        return (value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest())
    return Same(value)


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
