"""What a row of figures says: the times that are divided, and which way by hand was the fastest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

__all__ = ["ANEW", "FOR_GOOD", "HAND", "KEEPING", "by_hand", "fastest", "milliseconds", "size_of", "times"]

#: How the names of the ways by hand begin.
HAND: Final = "by hand: "

#: What the name of a way by hand says that changes the user's model.
FOR_GOOD: Final = "for good"

#: What the name of a way by hand says that holds its memory from call to call, so that its peak is not seen.
KEEPING: Final = "static_alloc"


#: What the name of a way by hand says that compiles anew for each shape, for seconds.
ANEW: Final = "jit_compile"


def by_hand(row: Mapping[str, Any]) -> dict[str, float]:
    """The seconds of each way by hand."""
    return {name: seconds for name, seconds in row["times"].items() if name.startswith(HAND)}


def fastest(row: Mapping[str, Any]) -> str:
    """The name of the way by hand that took the least time."""
    ways = by_hand(row)
    return min(ways, key=lambda name: ways[name])


def times(row: Mapping[str, Any]) -> tuple[float | None, float, float, float]:
    """The seconds of `gradients`, None where it was refused, of the fastest code by hand, forward and full backward.

    The last two are NaN where they were not measured.
    """
    own = row["times"]
    others = own.get("forward", math.nan), own.get("backward", math.nan)
    return own.get("gradients"), own[fastest(row)], *others


def size_of(row: Mapping[str, Any]) -> tuple[int, int]:
    """(examples, positions)."""
    return int(row["examples"]), int(row["positions"])


def milliseconds(seconds: float) -> str:
    """Two digits or more."""
    thousandths = seconds * 1e3
    return f"{thousandths:.1f}" if thousandths < 100 else f"{thousandths:.0f}"
