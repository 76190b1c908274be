"""Find, replace and copy values in nested tuples, lists, dicts and data classes, such as the inputs and outputs of a model."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

__all__ = ["PLAIN", "copy_nest", "entries", "every", "first", "is_nest", "map_nest", "with_entry", "with_first"]

#: Immutable types that contain no other objects.
PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))


def first(value: Any, wanted: Callable[[Any], bool]) -> Any:
    """Return the first matching object in a nest, depth first; None where there is none.

    Args:
        value: anything.
        wanted: returns whether an object matches, such as a framework's tensors.
    """
    if wanted(value):
        return value
    for _, entry in entries(value):
        match = first(entry, wanted)
        if match is not None:
            return match
    return None


def with_first(value: Any, wanted: Callable[[Any], bool], new: Any) -> Any:
    """Return the nest with its first matching object replaced. Objects off the path to it are reused, not copied."""
    if wanted(value):
        return new
    for key, entry in entries(value):
        if first(entry, wanted) is not None:
            return with_entry(value, key, with_first(entry, wanted, new))
    return value


def every(value: Any, wanted: Callable[[Any], bool]) -> list[Any]:
    """Return all matching objects in a nest, depth first, repeats included."""
    if wanted(value):
        return [value]
    return [match for _, entry in entries(value) for match in every(entry, wanted)]


def map_nest(value: Any, wanted: Callable[[Any], bool], change: Callable[[Any], Any]) -> Any:
    """Return the nest with `change` applied to each matching object. Objects off the paths to these are reused, not copied."""
    if wanted(value):
        return change(value)
    new = value
    for key, entry in entries(value):
        replacement = map_nest(entry, wanted, change)
        if replacement is not entry:
            new = with_entry(new, key, replacement)
    return new


def entries(value: Any) -> list[tuple[Any, Any]]:
    """Return the (key, value) pairs of a tuple, list, mapping or data class; an empty list for anything else."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if _is_record(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []


def copy_nest(value: Any, stays: Callable[[Any], bool] = lambda entry: False) -> Any:
    """Return a copy of a model's inputs for one pass, since a model may modify lists, dicts and objects such as caches.

    Functions, and objects that cannot be copied, are returned as they are.

    Args:
        value: anything.
        stays: returns whether an object must not be copied.
    """
    if isinstance(value, PLAIN) or callable(value) or stays(value):
        return value
    if type(value) is dict:
        return {key: copy_nest(entry, stays) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copy_nest(entry, stays) for entry in value)
    try:
        return copy.deepcopy(value)
    except Exception:  # for example a generator or a lock, which cannot be copied
        return value


def is_nest(value: Any) -> bool:
    """Return whether the value is a tuple, list, mapping or data class, even an empty one."""
    return isinstance(value, (Mapping, list, tuple)) or _is_record(value)


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def with_entry(value: Any, key: Any, new: Any) -> Any:
    """Return a copy of a tuple, list, mapping or data class with one entry replaced."""
    if isinstance(value, MutableMapping):
        changed = copy.copy(value)
        changed[key] = new
        return changed
    if isinstance(value, Mapping):  # it may be immutable
        return {**value, key: new}
    if isinstance(value, tuple) and hasattr(value, "_replace"):
        return value._replace(**{value._fields[key]: new})  # type: ignore[attr-defined]
    if isinstance(value, (list, tuple)):
        return type(value)([*value[:key], new, *value[key + 1 :]])
    return dataclasses.replace(value, **{key: new})
