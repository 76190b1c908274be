"""Notice that a model has changed: compare its modules, variables and plain attributes with those of an earlier call."""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import tensorflow as tf

from embgrad.keras import is_keras
from embgrad_tensorflow.walk import LIBRARIES, Node, bookkeeping, children, is_restored, is_the_users, kinds, walk

__all__ = ["Fingerprint", "Structure", "structure"]

#: The types of values that are compared as they are.
PLAIN: Final = frozenset({type(None), bool, int, float, complex, str, bytes, type(Ellipsis), tf.DType, slice, range})

#: The most numbers of an array that is compared by its numbers. A larger one is compared by identity.
LARGEST_ARRAY: Final = 1 << 12

#: The most attributes of a library's object, such as a configuration, of which the plain ones are compared.
MOST_ATTRIBUTES: Final = 512

#: The ends of the names of attributes that count when a model is built or trained, but not in its forward pass.
BUILDING: Final = ("initializer", "regularizer", "constraint")

#: The kinds of the attributes of a restored object that are compared.
RUN: Final = frozenset({"module", "variable", "function"})


class Fingerprint:
    """The modules and variables of a model, its numbers, flags and texts, and its functions by identity.

    Containers are compared entry by entry, objects of the user's classes attribute by attribute, and the user's functions by
    their code, their defaults and what they read from outside; classes and libraries' objects by identity.

    Attributes:
        of_parts: the compared content of each part.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._entries: dict[int, Any] = {}
        self._objects: dict[int, Any] = {}
        self._references: list[Any] = []
        self._waiting: list[Any] = []
        self._hidden = bookkeeping().keys()
        self._lists = [name for name, kind in bookkeeping().items() if issubclass(kind, list)]
        self.of_parts = self._entries[0] = [self._of(part) for part in parts]
        for value in self._waiting:  # grows meanwhile
            self._entries[id(value)] = self._inside(value)
        self._waiting = []

    def without_model(self) -> Fingerprint:
        """Return the fingerprint without references that keep the model alive."""
        self._references = [_reference(value) for value in self._objects.values()]
        self._objects = {}
        return self

    def is_that_of(self, now: Fingerprint) -> bool:
        """Return whether a kept fingerprint is that of a model as it is now: the same objects, none of which has died."""
        return self._entries == now._entries and all(reference() is not None for reference in self._references)

    def _inside(self, value: Any) -> Any:
        kind = kinds[type(value)]
        if is_restored(value):  # it has no Python that could read its lists and numbers
            parts = ((name, part) for name, part in vars(value).items() if kinds[type(part)] in RUN)
            return {name: self._of(part) for name, part in parts}
        if kind == "module" or is_keras(value):
            return self._attributes(value)
        if kind in ("function", "object"):
            inside: dict[Any, Any] = {name: self._of(entry) for name, entry in children(value, kind)}
            return inside if kind == "function" else (inside, self._class(type(value)))
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is not dict or len(attributes) > MOST_ATTRIBUTES:
            return None
        return {name: entry for name, entry in attributes.items() if type(entry) in PLAIN}

    def _class(self, cls: type) -> Any:
        """Return the compared content of a class: the plain attributes of the user's classes."""
        if id(cls) not in self._objects:
            self._objects[id(cls)] = cls
            self._entries[id(cls)] = [
                {name: entry for name, entry in vars(base).items() if type(entry) in PLAIN}
                for base in _users_classes(cls)
            ]
        return id(cls)

    def _attributes(self, module: Any) -> dict[Any, Any]:
        attributes = getattr(module, "__dict__", {})
        entries: dict[Any, Any] = {"class": self._class(type(module))}
        for name in attributes.keys() - self._hidden:
            value = attributes[name]
            kind = type(value)
            if value is None:  # as where there is none: some attributes come with the first call
                continue
            if kind in PLAIN:
                entries[name] = (kind, value)
            elif not name.endswith(BUILDING):
                entries[name] = self._of(value)
        for name in self._lists:
            parts_in_list = attributes.get(name)
            parts = [self._of(part) for part in parts_in_list or () if kinds[type(part)] in ("module", "variable")]
            if parts:
                entries[name] = parts
        if is_keras(module):
            entries["trainable", "dtype_policy"] = (module.trainable, self._of(getattr(module, "dtype_policy", None)))
        return entries

    def _of(self, value: Any) -> Any:
        """Return the compared content of a value, and queue it if it is an object with attributes."""
        cls = type(value)
        if cls in PLAIN:
            return (cls, value)
        if cls is types.MethodType:
            return (self._of(value.__func__), self._of(value.__self__))
        if isinstance(value, functools.partial):
            return (self._of(value.func), self._of(value.args), self._of(value.keywords))
        if id(value) in self._objects:
            return id(value)
        if issubclass(cls, type):
            return self._class(value)
        if cls is types.FunctionType and is_the_users(value):
            return self._function(value)
        if isinstance(value, (np.ndarray, np.generic)) and value.size <= LARGEST_ARRAY and not value.dtype.hasobject:
            return (value.dtype.str, value.shape, value.tobytes())
        kind = kinds[cls]
        if kind in ("list", "dict"):
            return self._enter(value, kind)
        self._objects[id(value)] = value
        is_entered = kind != "variable" and not isinstance(value, (types.ModuleType, tf.Tensor, np.ndarray))
        # a restored function stays as it was saved, and holds all functions of its model
        if is_entered and (kind != "function" or (is_the_users(value) and not is_restored(value))):
            self._waiting.append(value)
        return id(value)

    def _function(self, function: Any) -> Any:
        """Return the compared content of a user's function, which is the same for one that each call creates again."""
        self._objects[id(function)] = function.__code__
        outside = {name: self._of(entry) for name, entry in children(function, "function")}
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        return (id(function.__code__), outside, [self._of(value) for value in defaults], self._of(vars(function)))

    def _enter(self, value: Any, kind: str) -> Any:
        self._objects[id(value)] = None  # a container may hold itself
        if kind == "dict":
            entries: Any = {key if type(key) in PLAIN else id(key): self._of(entry) for key, entry in [*value.items()]}
        elif isinstance(value, (set, frozenset)):
            entries = sorted([repr(self._of(entry)) for entry in value])
        else:
            entries = [self._of(entry) for entry in value]
        del self._objects[id(value)]
        return entries


def _users_classes(cls: type) -> list[type]:
    """Return those of a class and its bases that are no library's."""
    roots = ((base, base.__module__.partition(".")[0]) for base in cls.__mro__)
    return [base for base, root in roots if root == "__main__" or root not in LIBRARIES | sys.stdlib_module_names]


def _reference(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:  # such as a lock
        return int


@dataclass
class Structure:
    """The modules and variables of a model.

    Attributes:
        nodes: its modules and variables, in the order of `walk`.
        fingerprint: the model's, as it is now.
        learned: what follows from the structure alone; it must refer to nothing of the model.
    """

    nodes: list[Node]
    fingerprint: Fingerprint
    learned: dict[str, Any]
    _aliases: dict[int, list[str]]

    def aliases(self) -> dict[int, list[str]]:
        """Return the nodes' other paths, by the identities of their objects."""
        return {id(self.nodes[number].value): paths for number, paths in self._aliases.items()}


@dataclass
class _Known:
    """A model's structure without references that keep it alive."""

    fingerprint: Fingerprint
    references: list[Any]
    functions: list[Any]
    positions: list[tuple[str, str, int | None, str]]
    aliases: dict[int, list[str]]
    learned: dict[str, Any] = field(default_factory=dict)

    def nodes(self) -> list[Node]:
        values = [reference() for reference in self.references]
        return [
            Node(path, value, kind, None if owner is None else values[owner], owner_path)
            for value, (path, kind, owner, owner_path) in zip(values, self.positions, strict=True)
        ]


#: By the identities of a model's parts its structure.
_known: Final[dict[tuple[int, ...], _Known]] = {}


def structure(parts: Sequence[Any]) -> Structure:
    """Return what a model is made of now."""
    key = tuple(map(id, parts))
    fingerprint = Fingerprint(parts)
    known = _known.get(key)
    if known is not None and known.fingerprint.is_that_of(fingerprint):
        return Structure(known.nodes(), fingerprint, known.learned, known.aliases)
    paths: dict[int, list[str]] = {}
    nodes = list(walk(parts, paths))
    numbers = {id(node.value): number for number, node in enumerate(nodes)}
    aliases = {number: paths[id(node.value)] for number, node in enumerate(nodes) if id(node.value) in paths}
    positions = [
        (node.path, node.kind, None if node.owner is None else numbers.get(id(node.owner)), node.owner_path)
        for node in nodes
    ]
    learned: dict[str, Any] = {}
    try:
        references = [weakref.ref(node.value, lambda _: _known.pop(key, None)) for node in nodes]
        functions = [weakref.ref(part, lambda _: _known.pop(key, None)) for part in parts if id(part) not in numbers]
        _known[key] = _Known(Fingerprint(parts).without_model(), references, functions, positions, aliases, learned)
    except TypeError:  # no weak references to something
        _known.pop(key, None)
    return Structure(nodes, fingerprint, learned, aliases)
