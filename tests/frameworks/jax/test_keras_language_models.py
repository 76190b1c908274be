"""keras-hub's encoder-decoders and language models on JAX, in a process of its own."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks.keras_process import passed


def test_encoder_decoders_and_language_models() -> None:
    # keras-hub 0.32's own generation raises TypeError in JAX where 64-bit numbers are enabled.
    file = Path(__file__).parents[1] / "keras_language_models.py"
    assert passed("jax", file, JAX_ENABLE_X64="0") == 9
