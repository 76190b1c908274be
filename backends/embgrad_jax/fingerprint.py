"""Notice that a model has changed: compare everything that its Python may read with what it was at an earlier call."""

from __future__ import annotations

import functools
import hashlib
import types
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final

import jax
import numpy as np

from embgrad.keras import keras_bases
from embgrad.toolkit import PLAIN, attributes_of, content_of, globals_of, is_installed, members_of
from embgrad_jax.walk import Structure, class_names, is_nnx, is_tree

__all__ = ["Fingerprint"]

#: The types whose objects are compared by identity: they hold nothing that a forward pass computes with.
OPAQUE: Final = (types.ModuleType, types.BuiltinFunctionType, np.dtype, np.random.Generator)


class Fingerprint:
    """Everything that determines a trace beside the values of a model's arrays.

    Objects are compared attribute by attribute, arrays of NumPy by their contents, functions and classes of the user's by their
    code and by what they read from outside, and functions and classes of libraries by identity.
    """

    def __init__(self, structure: Structure, parts: Sequence[Any], call: Any) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []
        self._structure = structure.structure
        # The arrays of a model are arguments of the trace, whose values may change; other arrays are constants in it.
        self._passed = {id(leaf.array) for leaf in structure.leaves}
        for part in parts:
            if not is_nnx(part) and is_tree(part):  # its arrays of NumPy are passed as arrays of JAX
                leaves = jax.tree_util.tree_leaves(part)
                self._passed.update(id(leaf) for leaf in leaves if isinstance(leaf, np.ndarray))
        self._described = [self._of(part) for part in parts]
        self._passed = set()
        self._described.append(self._of(call))
        self._alive = []

    def without_model(self) -> Fingerprint:
        """Return the fingerprint, which keeps no model alive."""
        return self

    def is_that_of(self, now: Fingerprint) -> bool:
        """Return whether a kept fingerprint is that of a model as it is now."""
        try:
            return bool(self._structure == now._structure and self._described == now._described)
        except ValueError:  # a value of the user's that cannot be compared
            return False

    def _of(self, value: Any) -> Any:
        """Return what is compared of a value; a number for an object that has been met before."""
        if isinstance(value, PLAIN):
            return (type(value), value)
        if id(value) in self._passed:
            return "an argument"
        if isinstance(value, np.ndarray) and value.dtype != object:
            return (value.dtype.str, value.shape, hashlib.blake2b(np.ascontiguousarray(value).tobytes()).digest())
        cls: Any = type(value)
        if isinstance(value, (jax.Array, OPAQUE)) or _is_variable(cls):
            return _Identity(value)
        if id(value) in self._numbers:
            return ("met", self._numbers[id(value)])
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)  # so that no other object gets its id
        return self._inside(value)

    def _inside(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return (
                type(value),
                [(key if isinstance(key, PLAIN) else _Identity(key), self._of(entry)) for key, entry in value.items()],
            )
        if isinstance(value, (list, tuple)):
            return (type(value), [self._of(entry) for entry in value])
        if isinstance(value, Set):
            return (type(value), {entry if isinstance(entry, PLAIN) else id(entry) for entry in value})
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, functools.partial):
            return (type(value), self._of(value.func), self._of(value.args), self._of(value.keywords))
        if isinstance(value, types.MethodType):
            return (self._of(value.__func__), self._of(value.__self__))
        if isinstance(value, type):
            return self._class(value)
        if hasattr(value, "__wrapped__") and callable(value):  # a function under jit
            return (_Identity(value), self._of(value.__wrapped__))
        attributes = {name: self._of(entry) for name, entry in attributes_of(value).items()}
        return (self._of(type(value)), attributes) if attributes else _Identity(value)

    def _function(self, function: types.FunctionType) -> Any:
        if is_installed(function.__module__):
            return _Identity(function)
        names = [name for name in globals_of(function.__code__) if name in function.__globals__]
        held = [
            *map(content_of, function.__closure__ or ()),
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
            *(function.__globals__[name] for name in names),
        ]
        return (function.__code__, [self._of(entry) for entry in held])

    def _class(self, cls: type) -> Any:
        if is_installed(cls.__module__):
            return _Identity(cls)
        members = {name: [self._of(part) for part in parts] for name, parts in members_of(cls).items()}
        return (_Identity(cls), members, [self._of(base) for base in cls.__bases__])


@functools.lru_cache(maxsize=1024)
def _is_variable(cls: type) -> bool:
    """Return whether a class is one of variables of NNX or Keras, whose values are arguments of the trace."""
    return ("flax.nnx.variablelib", "Variable") in class_names(cls) or "Variable" in keras_bases(cls)


class _Identity:
    """An object that is equal to itself alone, while it lives."""

    def __init__(self, value: Any) -> None:
        try:
            self._reference: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            self._reference = lambda: value

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Identity) and self._reference() is other._reference()
        return same and self._reference() is not None

    __hash__ = None  # type: ignore[assignment]
