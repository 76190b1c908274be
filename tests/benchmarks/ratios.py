"""What a row of figures says: the times that are divided, and which way by hand was the fastest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = [
    "ANEW",
    "CHECKING",
    "FOR_GOOD",
    "HAND",
    "KEEPING",
    "by_hand",
    "fastest",
    "middle",
    "milliseconds",
    "over_backward",
    "size_of",
    "spread",
    "times",
]

#: How the names of the ways by hand begin.
HAND: Final = "by hand: "

#: The name of the code by hand that makes the checks of `gradients`.
CHECKING: Final = "checking"

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


def middle(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of the rows that several processes found for the same, the one whose ratio to code by hand is in the middle.

    It gets the ratios of all, in order, as `ratios`, and as `over_backward` the middle of their full backward passes' times
    over `gradients`'. Of rows without `gradients` the first is kept.
    """
    found: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["mode"], size_of(row), "gradients" in row["times"]), []).append(row)
    chosen = []
    for (_, _, measured), same in found.items():
        if not measured:
            chosen.append(dict(same[0]))
            continue
        ordered = sorted(same, key=_ratio)
        place = (len(ordered) - 1) // 2
        faster = sorted(over_backward(row) for row in same)[place]
        chosen.append({**ordered[place], "ratios": [_ratio(row) for row in ordered], "over_backward": faster})
    return chosen


def over_backward(row: Mapping[str, Any]) -> float:
    """How many times as long as `gradients` the full backward pass takes."""
    if "over_backward" in row:
        return float(row["over_backward"])
    ours, _, _, backward = times(row)
    assert ours is not None
    return backward / ours


def spread(row: Mapping[str, Any]) -> str:
    """The least and the largest of its processes' ratios to code by hand."""
    ratios = row.get("ratios", ())
    return f"{ratios[0]:.2f} to {ratios[-1]:.2f}" if len(ratios) > 1 else "–"


def _ratio(row: Mapping[str, Any]) -> float:
    ours, hand, _, _ = times(row)
    assert ours is not None
    return ours / hand


def size_of(row: Mapping[str, Any]) -> tuple[int, int]:
    """(examples, positions)."""
    return int(row["examples"]), int(row["positions"])


def milliseconds(seconds: float) -> str:
    """Two digits or more."""
    thousandths = seconds * 1e3
    return f"{thousandths:.1f}" if thousandths < 100 else f"{thousandths:.0f}"
