"""Tells whether two functions, or two requests, do the same, so that what was made for one serves for another."""

from __future__ import annotations

import collections
import functools
import gc
import hashlib
import inspect
import itertools
import operator
import random
import types
import weakref
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final

import numpy as np

from embgrad.backend import NativeObjective, Request
from embgrad.composition import (
    HOLDERS,
    OPEN,
    attributes_of,
    content_of,
    globals_of,
    imported_in,
    is_installed,
    members_of,
    names_in,
    root_of,
)
from embgrad.structures import PLAIN

__all__ = ["CHANGING", "Same", "UntoldError", "asked_of", "code_of", "identity_of"]

#: Those of which equal ones may differ (0.0 and −0.0), and of which one may be unequal to itself: told as they are written.
_WRITTEN: Final = (float, complex)

#: What is told by its type and its value, and holds nothing else.
_EXACT: Final = frozenset({*PLAIN, type(Ellipsis), type(NotImplemented), range, types.CodeType})

#: What Python makes of a class's slots, of a named tuple's names, and of methods that are written in C.
_DESCRIPTORS: Final = frozenset(
    {
        *(types.MemberDescriptorType, types.GetSetDescriptorType, types.MethodDescriptorType),
        *(types.WrapperDescriptorType, types.ClassMethodDescriptorType),
        type(vars(inspect.Attribute)["name"]),  # which is a named tuple
    }
)

#: Methods of objects that are written in C.
_BOUND: Final = (types.BuiltinMethodType, types.MethodWrapperType)

#: Functions that tell what they were made with.
_GETTERS: Final = (operator.attrgetter, operator.itemgetter, operator.methodcaller)

#: The kinds of NumPy's dtypes whose entries are the same where their bytes are; others hold objects.
_IN_BYTES: Final = "biufcSUmM"

#: Why there is no trace where `asked_of` says something else after a run than before it.
CHANGING: Final = "the function call changes, as it runs, what it reads, and a trace would not"

#: By a class and a module, which is the user's, the names in the code of its methods.
_names: weakref.WeakKeyDictionary[type, dict[str | None, frozenset[str]]] = weakref.WeakKeyDictionary()


class UntoldError(Exception):
    """Of what a function is made around nothing tells whether it has changed; says so as "compile=True: ..." goes on."""


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
    """Stands for a function, and keeps no object around it alive: two that do the same, around the same objects, are equal.

    What it is made around are its cells, its defaults, its attributes, the globals that it reads, its object where it is a
    method or can be called, and what these hold: numbers and containers, functions, classes and objects of the user's, and the
    modules and objects of packages as far as it reads them by name. A model or a tensor is the very same object.

    Raises:
        UntoldError: it is made around what may be another at each call without a sign.
    """
    try:
        return _Reading(_module_of(function)).all_of(function)
    except RecursionError:
        raise UntoldError("the function call is made around too many objects, one inside the other") from None


def code_of(function: Any) -> Hashable:
    """Stands for the piece of Python that a function is made of, whatever it is made around."""
    code: Hashable = getattr(function, "__code__", type(function).__qualname__)
    return code


def _module_of(function: Any) -> str | None:
    """The module that a function or a method is written in, or an object's class; of what is made around another that one's."""
    inner = inspect.unwrap(getattr(function, "__func__", function))
    own = getattr(inner, "__globals__", None)
    name: str | None = type(function).__module__ if own is None else own.get("__name__")
    return name


class _Reading:
    """One walk through what a function is made around. What it comes by again goes by the number that it had.

    Args:
        module: the function's own; what is written there is the user's, wherever it lies.
    """

    def __init__(self, module: str | None) -> None:
        self._module = module
        self._seen: dict[int, tuple[Any, int]] = {}
        self._told: set[tuple[int, str]] = set()

    def all_of(self, function: Any) -> Hashable:
        """What stands for the function itself."""
        names: frozenset[str] = frozenset()
        if not isinstance(function, (types.FunctionType, types.MethodType, functools.partial)):
            names = self._of_methods(type(function))
        return self._of(function, names)

    def _of(self, value: Any, names: frozenset[str]) -> Hashable:
        """What stands for a value.

        Args:
            value: anything.
            names: those in the code that reads it.
        """
        kind = type(value)
        if kind in _EXACT or kind in _DESCRIPTORS:
            return (kind, _exact(value))
        if id(value) in self._seen:
            return ("again", self._seen[id(value)][1], self._by_names(value, names))
        self._seen[id(value)] = (value, len(self._seen))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return (kind, self._of(value.__func__, names), self._of(value.__self__, self._names_of(value.__func__)))
        if isinstance(value, types.ModuleType):
            return (Same(value), self._by_names(value, names))
        if isinstance(value, functools.partial):
            names |= self._names_of(value.func)
            return (kind, *self._each((value.func, value.args, value.keywords, vars(value)), names))
        if isinstance(value, type):
            return self._class(value, names) if self._is_ours(value.__module__) else Same(value)
        found = self._contents(value, names)
        if found is None:
            return self._object(value, names)
        if kind.__module__ == "builtins":
            return (kind, *found)
        return (self._of(kind, names), *found, *self._attributes(value, names | self._of_methods(kind)))

    def _each(self, values: Iterable[Any], names: frozenset[str]) -> tuple[Hashable, ...]:
        given = tuple(values)
        kinds = tuple(map(type, given))
        if _EXACT.issuperset(kinds):  # as a vocabulary is: told at once
            if not set(_WRITTEN).isdisjoint(kinds):
                given = tuple(map(_exact, given))
            return (kinds if len(set(kinds)) > 1 else kinds[:1], given)
        return tuple([self._of(one, names) for one in given])

    def _contents(self, value: Any, names: frozenset[str]) -> tuple[Hashable, ...] | None:
        """What stands for the contents of a number, a text, an array or a container; None for what is none of them."""
        if isinstance(value, (np.ndarray, np.generic)):
            if value.dtype.kind not in _IN_BYTES:
                return (value.dtype.str, value.shape, self._of(value.tolist(), names))
            return (value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).digest())
        if isinstance(value, PLAIN):
            return (_exact(value),)
        if isinstance(value, (list, tuple, collections.deque)):
            return self._each([*value], names)  # which another thread may be changing
        if isinstance(value, (set, frozenset)):
            return (frozenset([self._of(one, names) for one in [*value]]),)
        if isinstance(value, (dict, types.MappingProxyType)):
            made = getattr(value, "default_factory", None)
            return (*self._each(itertools.chain.from_iterable([*value.items()]), names), self._of(made, names))
        if isinstance(value, slice):
            return self._each((value.start, value.stop, value.step), names)
        return (bytes(value),) if isinstance(value, bytearray) else None

    def _function(self, function: types.FunctionType) -> Hashable:
        """What a function does; one that a package has made around the user's, as decorators do, goes by the user's."""
        code, own, names = function.__code__, function.__globals__, names_in(function.__code__)
        cells = [*map(content_of, function.__closure__ or ()), *(function.__defaults__ or ())]
        if not self._is_ours(own.get("__name__")):
            held = [one for one in cells if callable(one) or isinstance(one, PLAIN)]
            return (Same(function) if function.__closure__ is None else code, *self._each(held, names))
        loaded = imported_in(function)
        read = [own[name] for name in globals_of(code) if name in own]
        read += [one for one in loaded if self._is_ours(one.__name__)]
        named = [one for one in (function.__kwdefaults__, vars(function)) if one]
        # Those of helpers, too, to which it may give what it reads.
        names = names.union(*map(self._names_of_ours, (*cells, *read)))
        # A package that is loaded meanwhile makes no difference but by the numbers in it.
        packages = [self._by_names(one, names) for one in loaded if not self._is_ours(one.__name__)]
        return (code, id(own), *self._each([*cells, *read, *named], names), *filter(None, packages))

    def _class(self, kind: type, names: frozenset[str]) -> Hashable:
        """What a class of the user's holds, and its bases."""
        held = [(name, *self._each(parts, names)) for name, parts in members_of(kind).items()]
        return (Same(kind), *held, *self._each(kind.__bases__, names))

    def _object(self, value: Any, names: frozenset[str]) -> Hashable:
        """An object: of a class of the user's by what it holds and does, of another as itself."""
        kind = type(value)
        made_of_ours = all(root_of(one) in OPEN or self._is_ours(one.__module__) for one in kind.__mro__)
        if made_of_ours and (self._is_ours(kind.__module__) or kind.__module__ in HOLDERS):
            itself = Same(value) if kind.__weakrefoffset__ else None  # else its attributes are all that there is of it
            return (itself, self._of(kind, names), *self._attributes(value, names | self._of_methods(kind)))
        if isinstance(value, _BOUND):
            return (kind, value.__name__, self._of(value.__self__, names))
        if isinstance(value, _GETTERS):
            return (kind, self._of(value.__reduce__(), names))
        if isinstance(value, weakref.ReferenceType):
            return (kind, self._of(value(), names))
        compares = any("__eq__" in vars(one) for one in kind.__mro__[:-1])
        is_value = isinstance(value, Hashable) and (compares or not gc.is_tracked(value))
        if is_value and (root_of(kind) in OPEN or not kind.__weakrefoffset__):
            return (kind, value)  # such as a date, a dtype, a device
        if kind.__weakrefoffset__ and not isinstance(value, (Iterator, random.Random)):
            wrapped = getattr(value, "__wrapped__", None)  # as functools.lru_cache and tf.function have it
            function = wrapped if isinstance(wrapped, types.FunctionType) else None
            return (Same(value), self._of(function, names), self._by_names(value, names))
        raise UntoldError(
            f"the function call is made around an object of the class {kind.__qualname__!r}, of which nothing tells whether it "
            "has changed"
        )

    def _attributes(self, value: Any, names: frozenset[str]) -> tuple[Hashable, ...]:
        return tuple([(name, self._of(one, names)) for name, one in attributes_of(value).items()])

    def _by_names(self, value: Any, names: frozenset[str]) -> tuple[Hashable, ...]:
        """What code may mean by the names in it, of an object's or a module's; of a package's module the numbers and texts."""
        held = getattr(value, "__dict__", None)
        if not names or type(held) is not dict:
            return ()
        members = self._members(type(value), names)
        names = names.union(*map(self._names_of, itertools.chain.from_iterable(members.values())))
        named = sorted([one for one in names if one in held or one in members])
        asked = [name for name in named if (id(value), name) not in self._told]
        self._told.update([(id(value), name) for name in asked])
        if not isinstance(value, types.ModuleType) or self._is_ours(value.__name__):
            found = {name: [*members.get(name, ()), *([held[name]] if name in held else ())] for name in asked}
            return tuple([(name, *self._each(parts, names)) for name, parts in found.items()])
        inside = [held[name] for name in asked if isinstance(held[name], types.ModuleType)]
        plain = [(name, held[name]) for name in asked if isinstance(held[name], PLAIN)]
        # A package may load a module when it is first asked for it: one that holds nothing of this kind makes no difference.
        return (*plain, *itertools.chain.from_iterable([self._by_names(one, names) for one in inside]))

    def _members(self, kind: type, names: frozenset[str]) -> dict[str, list[Any]]:
        """What those classes of an object hold that are the user's, under these names and those in the methods found so."""
        held: dict[str, list[Any]] = {}
        for own in self._members_of_ours(kind):
            for name, parts in own.items():
                held.setdefault(name, []).extend(parts)
        found: dict[str, list[Any]] = {}
        while wanted := [name for name in names if name in held and name not in found]:
            found.update({name: held[name] for name in wanted})
            names = names.union(*[self._names_of(part) for name in wanted for part in held[name]])
        return found

    def _members_of_ours(self, kind: type) -> list[dict[str, list[Any]]]:
        """Of a class and each of its bases that is the user's what its members are made of."""
        return [members_of(one) for one in kind.__mro__ if self._is_ours(one.__module__)]

    def _is_ours(self, module: str | None) -> bool:
        """Whether what is written in a module is the user's."""
        return module == self._module or not is_installed(module)

    def _of_methods(self, kind: type) -> frozenset[str]:
        """The names in the code of a class's methods, less those that a package brings."""
        known = _names.setdefault(kind, {})
        if self._module not in known:
            parts = [part for own in self._members_of_ours(kind) for made_of in own.values() for part in made_of]
            known[self._module] = frozenset().union(*map(self._names_of, parts))
        return known[self._module]

    def _names_of(self, function: Any) -> frozenset[str]:
        code = getattr(function, "__code__", None)
        return names_in(code) if isinstance(code, types.CodeType) else frozenset()

    def _names_of_ours(self, held: Any) -> frozenset[str]:
        """The names in a function or method, where the user has written it."""
        inner = held.__func__ if isinstance(held, types.MethodType) else held
        ours = isinstance(inner, types.FunctionType) and self._is_ours(inner.__globals__.get("__name__"))
        return self._names_of(inner) if ours else frozenset()


def _exact(value: Any) -> Any:
    """A number, a text or nothing as what is equal to those alone that are the same."""
    written = next((kind for kind in _WRITTEN if isinstance(value, kind)), None)
    return value if written is None else written.__repr__(value)


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
