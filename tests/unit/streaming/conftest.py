"""Fixtures of the tests of streams."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.unit.streaming.threads import stream_threads, wait_until


@pytest.fixture
def no_thread_left() -> Iterator[None]:
    """Fail a test after which a stream's thread is still alive."""
    yield
    gc.collect()
    wait_until(lambda: not stream_threads())
