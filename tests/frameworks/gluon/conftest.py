"""Fixtures of Gluon's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from embgrad_gluon.importing import import_mxnet


@pytest.fixture
def numpy_semantics() -> Iterator[None]:
    """Run a test under mx.np's semantics of shapes and arrays."""
    mx = import_mxnet()
    mx.npx.set_np()
    yield
    mx.npx.reset_np()
