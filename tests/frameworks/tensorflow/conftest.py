"""What several modules' tests of the TensorFlow backend ask for by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from embgrad_tensorflow import compile as kept

from tests.frameworks.tensorflow.helpers import KERAS, policy


@pytest.fixture(params=sorted(KERAS))
def keras(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each Keras; the layers that it makes meanwhile have the module's POLICY, where it has one."""
    name = getattr(request.module, "POLICY", None)
    with contextlib.nullcontext() if name is None else policy(KERAS[request.param], name):
        yield KERAS[request.param]


@pytest.fixture
def traces(monkeypatch: Any) -> list[Any]:
    """The traces that are made meanwhile."""
    made: list[Any] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return traced(*args, **kwargs)

    traced = kept.trace_model
    monkeypatch.setattr(kept, "trace_model", counted)
    return made
