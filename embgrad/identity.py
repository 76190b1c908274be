"""Tells whether two functions, or two requests, do the same, so that what was made for one serves for another."""

from __future__ import annotations

import dis
import functools
import gc
import hashlib
import types
import weakref
from collections.abc import Hashable, Mapping
from typing import Any, Final

import numpy as np

from embgrad.backend import NativeObjective, Request

__all__ = ["PLAIN", "Same", "asked_of", "code_of", "globals_of", "identity_of"]

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

    What it is made around are its cells, its defaults, and the globals that it reads.
    """
    return _identity(function, ())


def _identity(function: Any, above: tuple[int, ...]) -> Hashable:
    """The same for what lies in others, by whose identities that is known which holds itself."""
    if isinstance(function, types.MethodType):
        around = getattr(function.__func__, "__globals__", {})
        return (_identity(function.__func__, above), _held(function.__self__, around, above))
    if not isinstance(function, types.FunctionType):
        return Same(function)
    own = function.__globals__
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    read = [own[name] for name in globals_of(function.__code__) if name in own]
    held = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items(), *read]
    inside = (*above, id(function))
    return (function.__code__, id(own), *(_held(one, own, inside) for one in held))


@functools.lru_cache(maxsize=256)
def globals_of(code: types.CodeType) -> tuple[str, ...]:
    """The names of the globals that a piece of Python reads, and those inside it."""
    names = [one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    inside = [name for one in code.co_consts if isinstance(one, types.CodeType) for name in globals_of(one)]
    return tuple(dict.fromkeys((*names, *inside)))


def code_of(function: Any) -> Hashable:
    """Stands for the piece of Python that a function is made of, whatever it is made around."""
    code: Hashable = getattr(function, "__code__", type(function).__qualname__)
    return code


def _held(value: Any, own: Mapping[str, Any], above: tuple[int, ...]) -> Hashable:
    """Stands for what a function is made around: numbers, containers and plain objects by what they hold, helpers as it."""
    if isinstance(value, PLAIN):
        return (type(value), value)
    if id(value) in above:
        return above.index(id(value))
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSU":
        return (type(value), value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest())
    if isinstance(value, types.FunctionType) and value.__globals__ is own:
        return _identity(value, above)
    inside = (*above, id(value))
    # Other kinds of lists and tuples may hold more than their entries.
    if type(value) in (list, tuple) or (isinstance(value, tuple) and hasattr(value, "_fields")):
        return (type(value), *(_held(one, own, inside) for one in value))
    if type(value) is dict:
        return (dict, *(_held(one, own, inside) for entry in value.items() for one in entry))
    if _is_plain_object(value, own):
        return (Same(value), _held(vars(value), own, inside))
    if not gc.is_tracked(value) and isinstance(value, Hashable) and not type(value).__weakrefoffset__:
        return (type(value), value)  # it holds nothing else, as a dtype or a device
    return Same(value)


def _is_plain_object(value: Any, own: Mapping[str, Any]) -> bool:
    """Whether it is a mere holder of attributes, of the function's own module; a model, which can be called, is itself."""
    kind = type(value)
    return kind.__module__ == own.get("__name__") and hasattr(value, "__dict__") and not callable(value)


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
