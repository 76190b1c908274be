"""Keras 3 models on Keras's PyTorch backend, which only a process of its own can have: Keras reads its backend when imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.keras_process import OF_KERAS, conformance_checks, passed

HERE = Path(__file__).parent


@pytest.mark.parametrize("file", ["keras_models.py", "keras_hub_models.py"])
def test_keras_models_on_pytorch(file: str) -> None:
    assert passed("torch", HERE / file) > 0


def test_the_conformance_suite_on_keras_models() -> None:
    assert conformance_checks("torch", OF_KERAS) > 140


@pytest.mark.slow
def test_the_whole_conformance_suite_on_keras_models() -> None:
    assert conformance_checks("torch") > 250
