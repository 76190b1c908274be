"""Finds, replaces and copies what is in a nest of tuples, dicts and data classes: what a model or a module was given or gave."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

__all__ = ["PLAIN", "copied", "entries", "every", "first", "is_nest", "mapped", "with_entry", "with_first"]

#: What is the same where it is equal, and holds nothing else.
PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))


def first(value: Any, wanted: Callable[[Any], bool]) -> Any:
    """The first tensor of that sort in a nest, depth first; None where there is none.

    Args:
        value: anything.
        wanted: whether an object is such a tensor.
    """
    if wanted(value):
        return value
    for _, entry in entries(value):
        found = first(entry, wanted)
        if found is not None:
            return found
    return None


def with_first(value: Any, wanted: Callable[[Any], bool], new: Any) -> Any:
    """The nest with another tensor in place of the first of that sort. What is not on the way there stays the same object."""
    if wanted(value):
        return new
    for place, entry in entries(value):
        if first(entry, wanted) is not None:
            return with_entry(value, place, with_first(entry, wanted, new))
    return value


def every(value: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    """All tensors of that sort in a nest, depth first, each as often as it stands there."""
    if wanted(value):
        return [value]
    return [one for _, entry in entries(value) for one in every(entry, wanted)]


def mapped(value: Any, wanted: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """The nest with what `change` gives in place of each tensor of that sort. What is not on the way to one stays the same."""
    if wanted(value):
        return change(value)
    new = value
    for place, entry in entries(value):
        other = mapped(entry, wanted, change)
        if other is not entry:
            new = with_entry(new, place, other)
    return new


def entries(value: Any) -> list[tuple[Any, Any]]:
    """What a tuple, list, mapping or data class holds, each with its place; nothing for what is none."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if _is_record(value):
        return [(one.name, getattr(value, one.name)) for one in dataclasses.fields(value)]
    return []


def copied(value: Any, stays: Callable[[Any], bool] = lambda one: False) -> Any:
    """A copy of what a model is given, for one pass: it may write into lists, dicts and objects, such as caches.

    Functions, and what cannot be copied, are taken as they are.

    Args:
        value: anything.
        stays: whether something is to be taken as it is.
    """
    if isinstance(value, PLAIN) or callable(value) or stays(value):
        return value
    if type(value) is dict:
        return {key: copied(entry, stays) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(entry, stays) for entry in value)
    try:
        return copy.deepcopy(value)
    except Exception:  # it may be anything: a generator, a lock, what refuses
        return value


def is_nest(value: Any) -> bool:
    """Whether it is a tuple, list, mapping or data class, be it empty."""
    return isinstance(value, (Mapping, list, tuple)) or _is_record(value)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def with_entry(value: Any, place: Any, new: Any) -> Any:
    """A copy of a tuple, list, mapping or data class with another thing at a place."""
    if isinstance(value, MutableMapping):
        changed = copy.copy(value)
        changed[place] = new
        return changed
    if isinstance(value, Mapping):  # which may take no other entries
        return {**value, place: new}
    if isinstance(value, tuple) and hasattr(value, "_replace"):
        return value._replace(**{value._fields[place]: new})  # type: ignore[attr-defined]
    if isinstance(value, (list, tuple)):
        return type(value)([*value[:place], new, *value[place + 1 :]])
    return dataclasses.replace(value, **{place: new})
