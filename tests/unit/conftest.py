"""Hypothesis without a deadline, since a busy machine is no failure, and shared fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from embgrad.streaming import writer

settings.register_profile("core", deadline=None)
settings.load_profile("core")


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a shard for every three results of a stream."""
    monkeypatch.setattr(writer, "MOST_RESULTS", 3)


@pytest.fixture
def plt() -> Iterator[Any]:
    """Draw without a screen, and close all figures afterwards."""
    import matplotlib.pyplot

    matplotlib.use("Agg")
    matplotlib.pyplot.close("all")
    yield matplotlib.pyplot
    matplotlib.pyplot.close("all")
