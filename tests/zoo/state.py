"""The state of an object's attributes, without following references to other objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["shallow"]


def shallow(value: Any, inner: Callable[[Any], Any]) -> Any:
    """Return what identifies a value: plain values as they are, the members of collections, and the identity of others.

    Args:
        value: the value of an attribute.
        inner: returns the same of a member.
    """
    if isinstance(value, (str, bytes, int, float, type(None))):
        return repr(value)
    if isinstance(value, np.ndarray):
        return (value.shape, value.dtype.str, value.tobytes() if value.dtype != object else id(value))
    if isinstance(value, Mapping):
        return {repr(key): inner(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [inner(entry) for entry in value]
    return id(value)
