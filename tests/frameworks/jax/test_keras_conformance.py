"""The conformance suite on Keras 3 models on JAX."""

from __future__ import annotations

import pytest

from tests.frameworks.keras_process import OF_KERAS, conformance_checks


def test_the_conformance_suite_on_keras_models() -> None:
    assert conformance_checks("jax", OF_KERAS) > 140


@pytest.mark.slow
def test_the_whole_conformance_suite_on_keras_models() -> None:
    assert conformance_checks("jax") > 250
