"""The expectation of an error whose message holds several fragments."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pytest

__all__ = ["refused"]


@contextlib.contextmanager
def refused(kind: type[Exception], *fragments: str) -> Iterator[None]:
    """Expect that the block raises an error of this class whose message holds the fragments, in this order."""
    with pytest.raises(kind, match="(?s)" + ".*".join(map(re.escape, fragments))):
        yield
