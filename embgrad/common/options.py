"""Checks of options that many functions have."""

from __future__ import annotations

from typing import Any

import numpy as np

from embgrad.errors import BatchError, brief

__all__ = ["count_or_none", "expect_flag", "expect_flags"]


def expect_flag(given: Any, name: str) -> None:
    """Refuse as an option what is neither True nor False: text, say, would count as True.

    Raises:
        BatchError: it is neither.
    """
    if not isinstance(given, (bool, np.bool_)):
        raise BatchError(f"{name} is {brief(given)}: expected True or False")


def expect_flags(**flags: Any) -> None:
    """Raise BatchError for the first option by name that is neither True nor False."""
    for name, flag in flags.items():
        expect_flag(flag, name)


def count_or_none(given: Any, name: str) -> int | None:
    """An option that is a whole number of at least 1, NumPy's too, or None.

    Raises:
        BatchError: it is neither.
    """
    if given is None:
        return None
    if isinstance(given, (bool, np.bool_)) or not isinstance(given, (int, np.integer)) or given < 1:
        raise BatchError(f"{name} is {given!r}: expected a whole number of at least 1, or None")
    return int(given)
