"""Puts back what a forward pass puts into the lists, dicts, sets, objects and arrays in a model's attributes."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.generators import is_generator
from embgrad.nested import Arrays, Held, base_of, held_in, is_entered, is_same, nested, put_back, put_back_attributes

__all__ = ["Undo", "generators_of", "held_by", "opened", "putting_back", "refilling"]

#: What Keras and TensorFlow make of the user's containers to know what is inside.
WRAPPED: Final = {"ListWrapper": "_storage", "_DictWrapper": "__wrapped__", "_TupleWrapper": "__wrapped__"}

#: What a `_DictWrapper` knows of its dict. A `ListWrapper` has it among its attributes.
KNOWN: Final = ("_self_last_wrapped_dict_snapshot", "_self_external_modification", "_self_non_string_key")

#: What gives the numbers in an array. Tensors cannot be written to.
SIZES: Final[Mapping[type, Callable[[Any], int]]] = {np.ndarray: operator.attrgetter("size")}

#: Puts something back.
Undo = Callable[[], None]


def held_by(attributes: Mapping[str, Any]) -> Iterator[Any]:
    """What is in a module's attributes that may be written into, but for what Keras itself sees to."""
    apart = _of_keras()
    for name, value in attributes.items():
        kind: type = type(value)
        if _is_entered(kind) and name not in apart:
            yield value


def refilling(values: Iterable[Any], holds_parts: Callable[[Any], bool]) -> Iterator[Undo]:
    """What puts back what is in values, and in what they hold. Such containers as hold parts of the model are left alone.

    Args:
        values: of the attributes of all modules.
        holds_parts: whether something is, or contains, a variable or a module.
    """
    found = nested(values, SIZES, enters=_is_entered, opened=opened)
    of_objects = {id(one.own): one for one in found.objects if one.own is not None}
    for value in found.containers:
        if id(value) in of_objects:
            yield putting_back(value, held_in(value), holds_parts)
        else:
            yield _refilling(value, opened(value), holds_parts)
    yield from (functools.partial(one.put_back, holds_parts) for one in found.objects)
    yield Arrays(found.arrays).put_back


def generators_of(modules: Iterable[Any]) -> Sequence[Any]:
    """The random generators of Python's and NumPy's that modules have of their own."""
    held = [value for one in modules for value in held_by(getattr(one, "__dict__", {}))]
    return nested(held, {}, enters=_is_entered, opened=opened).generators


def putting_back(attributes: dict[str, Any], found: Held, holds_parts: Callable[[Any], bool]) -> Undo:
    """What puts attributes back. Variables and modules that are new stay: the model built itself, and would do so again.

    Args:
        attributes: those of a module, or of an object of the user's own.
        found: what they were.
        holds_parts: as in `refilling`.
    """

    def undo() -> None:
        if is_same(attributes, found):
            return
        before = dict(zip(found.keys or (), found.values, strict=True))
        put_back_attributes(attributes, before, lambda was, now: holds_parts(now) and not holds_parts(was))

    return undo


@functools.cache
def _of_keras() -> frozenset[str]:
    """The attributes that every layer has, which Keras itself sees to; most of a model's attributes are such."""
    kept = [sys.modules[name] for name in ("keras", "tf_keras") if name in sys.modules]
    return frozenset(
        name for keras in kept for name in vars(keras.layers.Layer(name="embgrad")) if name.startswith("_")
    )


@functools.lru_cache(maxsize=1024)
def _is_entered(kind: type) -> bool:
    """Whether what is in values of a type is looked at: in containers of any class, Keras's own among them."""
    return (
        is_entered(kind)
        or is_generator(kind)
        or kind is np.ndarray
        or kind.__qualname__ in WRAPPED
        or base_of(kind) is not None
    )


def opened(value: Any) -> Any:
    """The container itself, where something is put around one."""
    kind = type(value)
    return getattr(value, WRAPPED[kind.__qualname__]) if kind.__qualname__ in WRAPPED else value


def _refilling(value: Any, container: Any, holds_parts: Callable[[Any], bool]) -> Undo:
    names = KNOWN if type(value).__qualname__ == "_DictWrapper" else tuple(getattr(value, "__dict__", ()))
    known = {name: getattr(value, name) for name in names} if value is not container else {}
    found = held_in(container)

    def refill() -> None:
        if is_same(container, found):
            return
        if holds_parts(container) or any(map(holds_parts, found.values)):
            return
        put_back(container, found)
        for name, one in known.items():
            setattr(value, name, one)

    return refill
