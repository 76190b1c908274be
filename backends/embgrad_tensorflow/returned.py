"""The tensors in what a model returns, and the same with others in their places."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from embgrad.structures import entries

__all__ = ["mapped", "tensors_in"]


def tensors_in(value: Any) -> list[Any]:
    """The tensors in a nest of sequences, mappings and data classes, in order."""
    if isinstance(value, tf.Tensor):
        return [value]
    return [one for _, entry in entries(value) for one in tensors_in(entry)]


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The nest with what `change` gives for each tensor in its place; the nest itself stays as it is."""
    if isinstance(value, tf.Tensor):
        return change(value)
    held = entries(value)
    if not held:
        return value
    new = {place: mapped(entry, change) for place, entry in held}
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
