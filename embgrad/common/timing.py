"""Times as ratios: what is compared is run in turns in one process, and the least time of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["least_times"]


def least_times(functions: Mapping[str, Callable[[], Any]], rounds: int = 5) -> dict[str, float]:
    """The least time of each function in seconds, over so many rounds in which each has its turn, after one unmeasured."""
    least = dict.fromkeys(functions, float("inf"))
    for number in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if number:
                least[name] = min(least[name], time.perf_counter() - start)
    return least
