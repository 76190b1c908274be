"""The conformance suite on Keras 3 models on JAX."""

from __future__ import annotations

import pytest

from tests.frameworks.keras_process import WITHOUT_TRACES, conformance_checks


def test_the_conformance_suite_on_keras_models() -> None:
    assert conformance_checks("jax", WITHOUT_TRACES) > 200


@pytest.mark.slow
def test_the_whole_conformance_suite_on_keras_models() -> None:
    assert conformance_checks("jax") > 250
