"""Keras 3 models on Keras's PyTorch backend, which only a process of its own can have: Keras reads its backend when imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.keras_process import OF_KERAS, conformance_checks, passed
from tests.support.sampling import slow

HERE = Path(__file__).parent
#: Of families that are built alike, one: RoBERTa and DistilBERT are as BERT, and Gemma 3 as Gemma.
FEW = "not (Roberta or DistilBert or Gemma3)"


@pytest.mark.parametrize(
    ("file", "which"), [("keras_models.py", ""), ("keras_hub_models.py", FEW), slow(("keras_hub_models.py", ""))]
)
def test_keras_models_on_pytorch(file: str, which: str) -> None:
    assert passed("torch", HERE / file, which) > 0


def test_the_conformance_suite_on_keras_models() -> None:
    assert conformance_checks("torch", OF_KERAS) > 140


@pytest.mark.slow
def test_the_whole_conformance_suite_on_keras_models() -> None:
    assert conformance_checks("torch") > 250
