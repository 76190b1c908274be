"""Which cases of a test are slow: a sample runs with the ordinary tests, and the rest with EMBGRAD_TEST_SLOW=1."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["sample", "slow"]


def slow(value: Any) -> Any:
    """Return the value as a case that runs with the slow tests alone."""
    return (
        pytest.param(*value, marks=pytest.mark.slow)
        if isinstance(value, tuple)
        else pytest.param(value, marks=pytest.mark.slow)
    )


def sample(values: Iterable[Any], count: int) -> list[Any]:
    """Return the cases of a test of which the first `count` are ordinary, and all others slow."""
    return [value if number < count else slow(value) for number, value in enumerate(values)]
