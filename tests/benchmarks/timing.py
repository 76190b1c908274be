"""Measure functions against one another: they run in turns in one process, and the shortest time of each counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["least_times"]


def least_times(functions: Mapping[str, Callable[[], Any]], rounds: int = 5) -> dict[str, float]:
    """Return each function's shortest time in seconds over `rounds` alternating rounds, after a warm-up round."""
    least = dict.fromkeys(functions, float("inf"))
    for number in range(rounds + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if number:
                least[name] = min(least[name], time.perf_counter() - start)
    return least
