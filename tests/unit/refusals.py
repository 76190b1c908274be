"""The expectation of an error whose message holds several fragments."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

__all__ = ["refused"]


@contextlib.contextmanager
def refused(kind: type[Exception], *fragments: str) -> Iterator[None]:
    """Expect that the block raises an error of this class, and that its message holds each fragment."""
    with pytest.raises(kind) as caught:
        yield
    for fragment in fragments:
        assert fragment in str(caught.value)
