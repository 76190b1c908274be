"""The tensors in what a model returns, and the same with others in their places."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Final

import tensorflow as tf

__all__ = ["is_open", "mapped", "tensors_in"]

#: What holds no tensors.
PLAIN: Final = (bool, int, float, complex, str, bytes, type(None))


def tensors_in(value: Any) -> list[Any]:
    """The tensors in a nest of sequences, mappings and data classes, in order."""
    if isinstance(value, tf.Tensor):
        return [value]
    return [one for entry in (_entries(value) or {}).values() for one in tensors_in(entry)]


def is_open(value: Any) -> bool:
    """Whether all of it is such a nest, so that no tensor can be hidden."""
    if isinstance(value, (tf.Tensor, *PLAIN)):
        return True
    entries = _entries(value)
    return entries is not None and all(is_open(entry) for entry in entries.values())


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The nest with what `change` gives for each tensor in its place; the nest itself stays as it is."""
    if isinstance(value, tf.Tensor):
        return change(value)
    entries = _entries(value)
    if not entries:
        return value
    new = {place: mapped(entry, change) for place, entry in entries.items()}
    if isinstance(value, Mapping):
        changed: Any = copy.copy(value)
        for place, entry in new.items():
            changed[place] = entry
        return changed
    if isinstance(value, tuple) and hasattr(value, "_replace"):
        return value._replace(**{value._fields[place]: entry for place, entry in new.items()})  # type: ignore[attr-defined]
    if isinstance(value, (list, tuple)):
        return type(value)([*new.values()])
    return dataclasses.replace(value, **new)


def _entries(value: Any) -> dict[Any, Any] | None:
    """What a nest holds, by place; None for what is none."""
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, (list, tuple)):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    return None
