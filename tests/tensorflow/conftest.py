"""What several modules' tests of the TensorFlow backend ask for by name."""

from __future__ import annotations

from typing import Any

import pytest
from embgrad_tensorflow import following
from tensorflow.python.eager import record


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by a name each time that several operations' gradients are given to the tapes as one."""
    names: list[str] = []

    class Record:
        @staticmethod
        def record_operation_backprop_only(name: str, *given: Any) -> None:
            names.append(name)
            record.record_operation_backprop_only(name, *given)

    monkeypatch.setattr(following, "record", Record)
    return names
