"""The conformance suite on Keras 3 models on TensorFlow, which only a process of its own can have."""

from __future__ import annotations

import pytest

from tests.frameworks.keras_process import OF_KERAS, conformance_checks


def test_the_conformance_suite_on_keras_models() -> None:
    assert conformance_checks("tensorflow", f"{OF_KERAS} or no_trace_of_a_call") > 150


@pytest.mark.slow
def test_the_whole_conformance_suite_on_keras_models() -> None:
    assert conformance_checks("tensorflow") > 250
