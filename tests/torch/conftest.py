"""Fixtures of the tests of kept traces: which were made, and how their pieces run."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces of a graph run operator by operator; what compiling them changes is seen in `test_compile_models`."""
    from embgrad_torch import program

    monkeypatch.setattr(program, "FEW", 10**6)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The traces that are made meanwhile."""
    from embgrad_torch import kept

    made: list[Any] = []

    def counted(*args: Any) -> Any:
        made.append(args)
        return exported(*args)

    exported = kept.exported
    monkeypatch.setattr(kept, "exported", counted)
    return made
