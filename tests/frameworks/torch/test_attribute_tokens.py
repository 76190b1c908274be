"""Attributions of output tokens in small language models of Hugging Face."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from embgrad import TokenBatch, attribute_tokens

VOCAB = 60
RANDOM = np.random.default_rng(3)
IDS = RANDOM.integers(3, VOCAB, (3, 8))
MASK = np.array([[1] * 8, [0] * 3 + [1] * 5, [1] * 6 + [0] * 2])
BATCH = TokenBatch(IDS, MASK)
EXACT = {"rtol": 0, "atol": 1e-12}


def gpt2(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": VOCAB, "n_positions": 32}
    ends = {"eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(**{**sizes, **ends, "initializer_range": 0.4, **options})).double().eval()


def llama() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=VOCAB, **sizes, initializer_range=0.4, max_position_embeddings=32, pad_token_id=0)
    return LlamaForCausalLM(config).double().eval()


def tokenizer(side: str = "right") -> Any:
    """Return a fast tokenizer whose tokens are words, w3 to w59."""
    words = {"<pad>": 0, "<end>": 1, "<start>": 2, **{f"w{number}": number for number in range(3, VOCAB)}}
    fast = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token="<pad>", eos_token="<end>", bos_token="<start>", padding_side=side
    )


def alone(example: int) -> np.ndarray:
    return IDS[example : example + 1, MASK[example] == 1]


@pytest.mark.parametrize("generate", [4, {"max_new_tokens": 4, "do_sample": False, "num_beams": 2}])
@pytest.mark.parametrize("build", [gpt2, llama])
def test_prompts_of_different_lengths_are_continued(build: Any, generate: Any) -> None:
    model = build()
    result = attribute_tokens(model, BATCH, generate=generate)
    arguments = generate if isinstance(generate, dict) else {"max_new_tokens": generate, "do_sample": False}
    assert (result.outputs[:, 0] == 8).all()
    for example in range(3):
        ids = model.generate(torch.tensor(alone(example)), **arguments).numpy()
        prompt = int(MASK[example].sum())
        real = result.real[example]
        np.testing.assert_array_equal(result.ids[example][real], ids[0])
        single = attribute_tokens(model, ids, targets=slice(prompt, None))
        count = single.shape[1]
        np.testing.assert_allclose(result.scores[example, :count][:, real], single.scores[0], **EXACT)


def test_texts_are_continued_up_to_the_end_of_a_text() -> None:
    model, words = gpt2(), tokenizer()
    prompts = ["w5 w6 w7", "w9"]
    plain = attribute_tokens(model, prompts, generate=5, tokenizer=words)
    assert plain.output_tokens is not None
    assert plain.output_tokens[0] == tuple(f"w{id_}" for id_ in plain.output_ids[0])
    end = int(plain.output_ids[0, 2])
    for options in ({"max_new_tokens": 5, "do_sample": False, "eos_token_id": end}, 5):
        if options == 5:
            model.generation_config.eos_token_id = [end, 1]
        result = attribute_tokens(model, prompts, generate=options, tokenizer=words)
        count = int((plain.output_ids[0] == end).argmax()) + 1
        np.testing.assert_array_equal(result.output_ids[0][result.outputs[0] >= 0], plain.output_ids[0, :count])
        np.testing.assert_allclose(result.scores[0, 0, :3], plain.scores[0, 0, :3], **EXACT)
