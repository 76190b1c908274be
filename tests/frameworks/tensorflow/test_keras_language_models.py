"""keras-hub's encoder-decoders and language models on TensorFlow, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.keras_process import passed

FILE = Path(__file__).parents[1] / "keras_language_models.py"


def test_an_encoder_decoder_and_a_language_model() -> None:
    assert passed("tensorflow", FILE, "Bart or generated") == 2


@pytest.mark.slow
def test_encoder_decoders_and_language_models() -> None:
    assert passed("tensorflow", FILE) == 7
