"""The conformance suite on Keras 3 models on TensorFlow, which only a process of its own can have."""

from __future__ import annotations

from tests.frameworks.keras_process import conformance_checks


def test_the_conformance_suite_on_keras_models() -> None:
    assert conformance_checks("tensorflow") > 250
