"""Which cases of a test are slow: these run with EMBGRAD_TEST_SLOW=1, and leave a sample with the ordinary tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest


def slow(value: Any) -> Any:
    """Return the value as a case that is slow."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)


def slow_items(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Return the slow tests: those marked so, and of those marked `sampled(count)` all but so many, evenly spread."""
    found, cases = set(), defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is not None:
            found.add(item)
        elif item.get_closest_marker("sampled") is not None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for of_one in cases.values():
        mark = of_one[0].get_closest_marker("sampled")
        assert mark is not None
        (count,) = mark.args
        ordinary = {number * len(of_one) // count for number in range(min(count, len(of_one)))}
        found |= {item for number, item in enumerate(of_one) if number not in ordinary}
    return found
