"""Hypothesis without a deadline, as a busy machine is no failure; and what several modules' tests ask for by name."""

from __future__ import annotations

import pytest
from hypothesis import settings

from embgrad.streaming import writer

settings.register_profile("core", deadline=None)
settings.load_profile("core")


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream's folder has a shard for every three results."""
    monkeypatch.setattr(writer, "MOST_RESULTS", 3)
