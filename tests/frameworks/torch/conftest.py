"""A small tokenizer."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="package")
def tokenizer() -> Any:
    """A word-piece tokenizer of Hugging Face's that cuts texts at nine tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    built = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    built.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=[*names.values()], show_progress=False)
    built.train_from_iterator(["a gripping film", "the plot is thin but the film is gripping", "two hours"], trainer)
    built.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=built, model_max_length=9, **names)
