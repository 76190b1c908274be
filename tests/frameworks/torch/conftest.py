"""A compiler for the tests of compile=True that takes no time."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that are compiled meanwhile, by PyTorch's tracers alone; `test_compile_models` has the real compiler."""
    from torch import _dynamo

    made: list[Any] = []
    tracing = _dynamo.lookup_backend("aot_eager")

    def compiled(graph: Any, inputs: Any, **_: Any) -> Any:
        made.append(graph)
        return tracing(graph, inputs)

    monkeypatch.setattr(_dynamo, "lookup_backend", lambda name: compiled)
    return made
