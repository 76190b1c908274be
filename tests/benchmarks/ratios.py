"""Ratios of the times in a row of figures, and its fastest way by hand."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

#: The beginning of the names of ways by hand.
HAND: Final = "by hand: "

#: The mark of a way by hand that changes the user's model.
FOR_GOOD: Final = "for good"

#: The mark of a way by hand that keeps its memory between calls, so that its peak is not visible.
KEEPING: Final = "static_alloc"

#: The mark of a way by hand that compiles anew for each shape.
ANEW: Final = "jit_compile"


def by_hand(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: seconds for name, seconds in row["times"].items() if name.startswith(HAND)}


def fastest(row: Mapping[str, Any]) -> str:
    ways = list(by_hand(row))
    pivot = "gradients" if "gradients" in row["times"] else ways[0]
    return max(ways, key=lambda way: over(row, way, what=pivot))


def times(row: Mapping[str, Any]) -> tuple[float | None, float, float, float]:
    """Return the least seconds of `gradients` (None if refused), the fastest code by hand, forward and full backward."""
    least = row["times"]
    others = least.get("forward", math.nan), least.get("backward", math.nan)
    return least.get("gradients"), least[fastest(row)], *others


def over(row: Mapping[str, Any], name: str, what: str = "gradients") -> float:
    """Return the time of `what` divided by that of another function.

    It is the median of the rounds' ratios, on which other processes have little effect; without single times the ratio of the
    least times.
    """
    if "each" not in row:
        return float(row["times"][what] / row["times"][name])
    return statistics.median(first / second for first, second in zip(row["each"][what], row["each"][name], strict=True))


def over_hand(row: Mapping[str, Any]) -> float:
    return over(row, fastest(row))


def of_the_least(row: Mapping[str, Any]) -> float:
    least = row["times"]
    return float(least["gradients"] / min(by_hand(row).values()))


def joined(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with those of several processes joined, and the processes' ratios to code by hand as `ratios`."""
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["mode"], size_of(row), "gradients" in row["times"]), []).append(row)
    return [_joint(group) for group in groups.values()]


def _joint(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(rows[0]["times"])
    least = {name: min(row["times"][name] for row in rows) for name in names}
    whole = all("each" in row for row in rows)
    each = (
        {"each": {name: [seconds for row in rows for seconds in row["each"][name]] for name in names}} if whole else {}
    )
    ratios = sorted(over_hand(row) for row in rows) if "gradients" in names else []
    return {**rows[0], "times": least, **each, "ratios": ratios}


def spread(row: Mapping[str, Any]) -> str:
    ratios = row.get("ratios", ())
    return f"{ratios[0]:.2f} to {ratios[-1]:.2f}" if len(ratios) > 1 else "–"


def size_of(row: Mapping[str, Any]) -> tuple[int, int]:
    return int(row["examples"]), int(row["positions"])


def milliseconds(seconds: float) -> str:
    thousandths = seconds * 1e3
    return f"{thousandths:.1f}" if thousandths < 100 else f"{thousandths:.0f}"
