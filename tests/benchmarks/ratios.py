"""What a row of figures says: the times that are divided, and which way by hand was the fastest."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

#: How the names of the ways by hand begin.
HAND: Final = "by hand: "

#: The name of the code by hand that makes the checks of `gradients`.
CHECKING: Final = "checking"

#: The name of the code by hand that is not compiled, in a mode that is.
UNCOMPILED: Final = "uncompiled"

#: What the name of a way by hand says that changes the user's model.
FOR_GOOD: Final = "for good"

#: What the name of a way by hand says that holds its memory from call to call, so that its peak is not seen.
KEEPING: Final = "static_alloc"

#: What the name of a way by hand says that compiles anew for each shape, for seconds.
ANEW: Final = "jit_compile"


def by_hand(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: seconds for name, seconds in row["times"].items() if name.startswith(HAND)}


def fastest(row: Mapping[str, Any]) -> str:
    """The name of the way by hand that took the least time."""
    ways = list(by_hand(row))
    pivot = "gradients" if "gradients" in row["times"] else ways[0]
    return max(ways, key=lambda way: over(row, way, what=pivot))


def times(row: Mapping[str, Any]) -> tuple[float | None, float, float, float]:
    """The least seconds of `gradients`, None where it was refused, of the fastest code by hand, forward and full backward.

    The last two are NaN where they were not measured.
    """
    own = row["times"]
    others = own.get("forward", math.nan), own.get("backward", math.nan)
    return own.get("gradients"), own[fastest(row)], *others


def over(row: Mapping[str, Any], name: str, what: str = "gradients") -> float:
    """How many times as long as another function `gradients` takes, or `what`.

    Of each round there is a ratio, and the one in the middle of all is given: where other processes slow now one function and
    now another, that hardly moves, and the least times do. Where single rounds are not known, it is the ratio of these.
    """
    if "each" not in row:
        return float(row["times"][what] / row["times"][name])
    return statistics.median(one / other for one, other in zip(row["each"][what], row["each"][name], strict=True))


def over_hand(row: Mapping[str, Any]) -> float:
    """How many times as long as the fastest code by hand `gradients` takes."""
    return over(row, fastest(row))


def of_the_least(row: Mapping[str, Any]) -> float:
    least = row["times"]
    return float(least["gradients"] / min(by_hand(row).values()))


def joined(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What several processes found for the same, as if one had: the rounds of all, and the least times.

    Each gets its processes' ratios to code by hand, in order, as `ratios`.
    """
    found: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["mode"], size_of(row), "gradients" in row["times"]), []).append(row)
    return [_joint(same) for same in found.values()]


def _joint(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(rows[0]["times"])
    least = {name: min(row["times"][name] for row in rows) for name in names}
    whole = all("each" in row for row in rows)
    each = {"each": {name: [one for row in rows for one in row["each"][name]] for name in names}} if whole else {}
    ratios = sorted(over_hand(row) for row in rows) if "gradients" in names else []
    return {**rows[0], "times": least, **each, "ratios": ratios}


def spread(row: Mapping[str, Any]) -> str:
    """The least and the largest of its processes' ratios to code by hand."""
    ratios = row.get("ratios", ())
    return f"{ratios[0]:.2f} to {ratios[-1]:.2f}" if len(ratios) > 1 else "–"


def size_of(row: Mapping[str, Any]) -> tuple[int, int]:
    return int(row["examples"]), int(row["positions"])


def milliseconds(seconds: float) -> str:
    thousandths = seconds * 1e3
    return f"{thousandths:.1f}" if thousandths < 100 else f"{thousandths:.0f}"
