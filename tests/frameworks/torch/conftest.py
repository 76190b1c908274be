"""A small tokenizer."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="package")
def tokenizer() -> Any:
    """A word-piece tokenizer of Hugging Face's that cuts texts at nine tokens."""
    from transformers import PreTrainedTokenizerFast

    from tests.support.wordpiece import train_wordpiece

    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=train_wordpiece(60), model_max_length=9, **names)
