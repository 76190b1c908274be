"""keras-hub's encoder-decoders and language models on JAX, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.keras_process import passed

FILE = Path(__file__).parents[1] / "keras_language_models.py"


# keras-hub 0.32's own generation raises TypeError in JAX where 64-bit numbers are enabled.
def test_an_encoder_decoder() -> None:
    assert passed("jax", FILE, "Bart", JAX_ENABLE_X64="0") == 1


@pytest.mark.slow
def test_encoder_decoders_and_language_models() -> None:
    assert passed("jax", FILE, JAX_ENABLE_X64="0") == 7
