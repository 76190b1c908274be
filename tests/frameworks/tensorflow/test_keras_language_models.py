"""keras-hub's encoder-decoders and language models on TensorFlow, in a process of its own."""

from __future__ import annotations

from pathlib import Path

from tests.frameworks.keras_process import passed


def test_encoder_decoders_and_language_models() -> None:
    assert passed("tensorflow", Path(__file__).parents[1] / "keras_language_models.py") == 7
