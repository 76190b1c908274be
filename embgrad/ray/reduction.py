"""The total of partial sums by a tree of Ray tasks: the driver holds references, and the final sum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import ray

from embgrad.ray.partial_sum import Partial
from embgrad.ray.settings import RESTARTS

__all__ = ["sum_of"]

#: The number of sums that one task adds up, and the number of such tasks that may wait at once.
FAN_IN: Final = 8
MOST_WAITING: Final = 16


def sum_of(blocks: Iterable[Any]) -> Partial:
    """Return the sum of all blocks.

    Each reference is the input of one task, and a task that Ray repeats after the loss of a machine computes the same object
    again. Nothing is counted twice.

    Args:
        blocks: references to Arrow blocks of partial sums, as they become available.
    """
    # Without a CPU: where the actors hold all CPUs, the task would wait for actors that wait for it.
    merge = ray.remote(num_cpus=0, max_retries=RESTARTS)(_merged)
    levels: list[list[Any]] = [[]]
    waiting: list[Any] = []
    for block in blocks:
        _add_to_tree(block, 0, levels, merge, waiting)
        while len(waiting) > MOST_WAITING:
            _, waiting[:] = ray.wait(waiting, num_returns=1, fetch_local=False)
    remaining = [reference for level in levels for reference in level]
    while len(remaining) > 1:
        remaining = [merge.remote(*remaining[start : start + FAN_IN]) for start in range(0, len(remaining), FAN_IN)]
    return Partial.of_blocks(*ray.get(remaining))


def _merged(*blocks: Any) -> Partial:
    return Partial.of_blocks(*blocks)


def _add_to_tree(reference: Any, level: int, levels: list[list[Any]], merge: Any, waiting: list[Any]) -> None:
    """Add a reference to its level of the tree; pass the sum of a full level on to the next."""
    if level == len(levels):
        levels.append([])
    levels[level].append(reference)
    if len(levels[level]) == FAN_IN:
        merged = merge.remote(*levels[level])
        levels[level] = []
        waiting.append(merged)
        _add_to_tree(merged, level + 1, levels, merge, waiting)
