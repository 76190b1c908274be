"""Checks of option values that many functions share."""

from __future__ import annotations

from typing import Any

import numpy as np

from embgrad.errors import BatchError, brief

__all__ = ["count_or_none", "expect_flag", "expect_flags", "lists_choices"]


def expect_flag(value: Any, name: str) -> None:
    """Raise an error if an option is neither True nor False: a string, for example, would count as True."""
    if not isinstance(value, (bool, np.bool_)):
        raise BatchError(f"{name} is {brief(value)}: expected True or False")


def expect_flags(**flags: Any) -> None:
    """Raise BatchError for the first option by name that is neither True nor False."""
    for name, flag in flags.items():
        expect_flag(flag, name)


def count_or_none(value: Any, name: str) -> int | None:
    """Return an option that is an integer of at least 1, of Python's or NumPy's types, as an int, or None."""
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < 1:
        raise BatchError(f"{name} is {value!r}: expected a whole number of at least 1, or None")
    return int(value)


def lists_choices(value: Any) -> bool:
    """Return whether an option lists names, whole numbers and arrays, of which it takes one as well; not numbers with a point."""
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(
            isinstance(entry, (str, int, np.integer)) or (hasattr(entry, "shape") and len(entry.shape) > 0)
            for entry in value
        )
    )
