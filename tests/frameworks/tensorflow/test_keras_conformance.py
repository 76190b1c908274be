"""The conformance suite on Keras 3 models on TensorFlow, which only a process of its own can have."""

from __future__ import annotations

import pytest

from tests.frameworks.keras_process import OF_KERAS, conformance_checks

#: Of calls that are to leave no trace, those that run a model in ways of their own.
OWN_WAYS = "no_trace_of_a_call and (changes or layer or perturbed or parameter_gradients)"


def test_the_conformance_suite_on_keras_models() -> None:
    assert conformance_checks("tensorflow", f"{OF_KERAS} or ({OWN_WAYS})") > 150


@pytest.mark.slow
def test_the_whole_conformance_suite_on_keras_models() -> None:
    assert conformance_checks("tensorflow") > 250
