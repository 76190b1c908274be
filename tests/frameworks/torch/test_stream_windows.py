"""Windows on real models: whose numbers follow padding, and which points come back from one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers

import embgrad

WORDS = [f"w{number}" for number in range(40)]
SIZES = {"vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def tokenizer(side: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordLevel({word: number for number, word in enumerate(["[PAD]", *WORDS])}))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.enable_padding(direction=side)
    return made


def texts() -> list[str]:
    random = np.random.default_rng(0)
    return [" ".join(random.choice(WORDS, random.integers(1, 12))) for _ in range(9)]


def bert() -> Any:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES))


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=41, n_embd=16, n_layer=2, n_head=2))


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, num_key_value_heads=2))


def streamed(model: Any, side: str, **options: Any) -> list[Any]:
    position = {} if isinstance(model, transformers.BertForSequenceClassification) else {"position": -1}
    requested = {"tokenizer": tokenizer(side), "batch_size": 3, **options}
    return list(embgrad.stream(model, texts(), embgrad.Logit(1, **position), **requested))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize(
    ("make", "side", "counts"),
    [
        (bert, "right", False),
        (bert, "left", True),
        (gpt2, "left", True),
        (llama, "left", False),
        (llama, "right", False),
    ],
)
def test_a_window_is_refused_where_padding_changes_the_numbers(
    make: Any, side: str, counts: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = make().eval().to(dtype)
    if counts:
        with pytest.raises(embgrad.errors.UnsupportedError, match="has other results alone than with"):
            streamed(model, side, window=9)
        return
    for one, other in zip(streamed(model, side), streamed(model, side, window=9), strict=True):
        apart = np.linalg.norm((one.values - other.values)[one.real]) / np.linalg.norm(one.values[one.real])
        assert apart < (
            0.05 if dtype == torch.float16 else 1e-4
        )  # a Llama's angles are float32 whatever it computes in


def test_a_pooler_may_be_streamed_in_windows_and_a_table_of_positions_not() -> None:
    torch.manual_seed(0)
    model = bert().eval()
    plain = streamed(model, "right", at="bert.pooler")
    for one, other in zip(plain, streamed(model, "right", at="bert.pooler", window=9), strict=True):
        assert embgrad.compare(one, other).agrees
    path = "bert.embeddings.position_embeddings"
    assert [len(one.values) for one in streamed(model, "right", at=path)] == [1, 1, 1]
    with pytest.raises(embgrad.errors.UnsupportedError, match="in a batch of 3 examples, which share it"):
        streamed(model, "right", at=path, window=9)
