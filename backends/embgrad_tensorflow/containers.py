"""Puts back what a forward pass puts into the lists, dicts and sets in a model's attributes."""

from __future__ import annotations

import collections
import functools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

__all__ = ["refilling"]

#: The user's own, and those that Keras and TensorFlow make of them to know what is inside.
LISTS: Final = (list, collections.deque)
WRAPPED: Final = {"ListWrapper": "_storage", "_DictWrapper": "__wrapped__"}

#: What a `_DictWrapper` knows of its dict. A `ListWrapper` has it among its attributes.
KNOWN: Final = ("_self_last_wrapped_dict_snapshot", "_self_external_modification", "_self_non_string_key")


def refilling(attributes: Mapping[str, Any], holds_parts: Callable[[Any], bool]) -> Iterator[Callable[[], None]]:
    """What puts the containers among a module's attributes back. Such as hold parts of the model are left alone.

    Args:
        attributes: the module's.
        holds_parts: whether something is, or contains, a variable or a module.
    """
    apart = _of_keras()
    for value in [value for name, value in attributes.items() if name not in apart]:
        container = _container(value)
        if container is not None:
            yield _refilling(value, container, container.copy(), holds_parts)


@functools.cache
def _of_keras() -> frozenset[str]:
    """The attributes that every layer has, which Keras itself sees to; most of a model's attributes are such."""
    kept = [sys.modules[name] for name in ("keras", "tf_keras") if name in sys.modules]
    return frozenset(
        name for keras in kept for name in vars(keras.layers.Layer(name="embgrad")) if name.startswith("_")
    )


def _container(value: Any) -> Any:
    """The container itself, where it is or wraps one."""
    kind = type(value)
    if kind.__qualname__ in WRAPPED:
        return getattr(value, WRAPPED[kind.__qualname__])
    return value if issubclass(kind, (*LISTS, dict, set)) else None


def _refilling(value: Any, container: Any, found: Any, holds_parts: Callable[[Any], bool]) -> Callable[[], None]:
    names = KNOWN if type(value).__qualname__ == "_DictWrapper" else tuple(getattr(value, "__dict__", ()))
    known = {name: getattr(value, name) for name in names} if value is not container else {}

    def refill() -> None:
        if _are_same(container, found) or holds_parts(container) or holds_parts(found):
            return
        _put_back(container, found)
        for name, one in known.items():
            setattr(value, name, one)

    return refill


def _put_back(container: Any, found: Any) -> None:
    """The entries, by the methods of the plain class, which tell nobody."""
    if isinstance(container, dict):
        dict.clear(container)
        dict.update(container, found)
    elif isinstance(container, set):
        set.clear(container)
        set.update(container, found)
    elif isinstance(container, list):
        list.__setitem__(container, slice(None), found)
    else:
        container.clear()
        container.extend(found)


def _are_same(now: Any, before: Any) -> bool:
    """Whether they hold the same objects. None of the objects is asked whether it is equal."""

    def same(one: Iterable[Any], other: Iterable[Any]) -> bool:
        return all(map(operator.is_, one, other))

    if len(now) != len(before):
        return False
    if isinstance(now, dict):
        return same(now, before) and same(now.values(), before.values())
    return {id(one) for one in now} == {id(one) for one in before} if isinstance(now, set) else same(now, before)
