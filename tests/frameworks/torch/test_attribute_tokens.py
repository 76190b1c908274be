"""Attributions of output tokens in small language models of Hugging Face, and LogProbability beside PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
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


def t5() -> Any:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    config = T5Config(vocab_size=VOCAB, **sizes, decoder_start_token_id=0, eos_token_id=1, pad_token_id=0)
    return T5ForConditionalGeneration(config).double().eval()


def bart() -> Any:
    torch.manual_seed(0)
    halves = {f"{half}_{what}": 2 for half in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    sizes = {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 32, "init_std": 0.3}
    ends = {"decoder_start_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "bos_token_id": 2}
    config = BartConfig(vocab_size=VOCAB, d_model=16, **halves, **sizes, **ends, forced_eos_token_id=None)
    return BartForConditionalGeneration(config).double().eval()


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


# The objective.


# Causal language models.


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


# Encoder-decoders.

SOURCE = RANDOM.integers(3, VOCAB, (2, 6))
SOURCE_MASK = np.array([[1] * 6, [1] * 4 + [0] * 2])
DECODER = np.array([[0, 7, 8, 9, 10], [0, 21, 22, 0, 0]])
DECODER_MASK = np.array([[1] * 5, [1, 1, 1, 0, 0]])
ENCODER = {"input_ids": SOURCE, "attention_mask": SOURCE_MASK}
PAIR = {**ENCODER, "decoder_input_ids": DECODER, "decoder_attention_mask": DECODER_MASK}


def by_hand(model: Any, output: int) -> tuple[float, np.ndarray, np.ndarray]:
    """PyTorch's own log-probability of a decoder's token of the first pair, and input × gradient of both sides."""
    table = model.get_input_embeddings()
    scale = getattr(table, "embed_scale", 1.0)
    sides = [table.weight.detach()[torch.tensor(ids[:1])].requires_grad_() for ids in (SOURCE, DECODER)]
    logits = model(inputs_embeds=sides[0] * scale, decoder_inputs_embeds=sides[1] * scale).logits
    value = torch.log_softmax(logits, -1)[0, output, DECODER[0, output + 1]]
    gradients = torch.autograd.grad(value, sides)
    products = [(g * rows).sum(-1).detach().numpy()[0] for g, rows in zip(gradients, sides, strict=True)]
    return value.item(), products[0], products[1]


@pytest.mark.parametrize("build", [t5, bart])
def test_both_sides_of_an_encoder_decoder_get_their_gradients(build: Any) -> None:
    model = build()
    result = attribute_tokens(model, PAIR)
    assert result.decoder_scores is not None
    assert result.scores.shape == (2, 4, 6)
    assert result.decoder_scores.shape == (2, 4, 5)
    for output in range(4):
        value, source, decoder = by_hand(model, output)
        assert result.objective[0, output] == pytest.approx(value, rel=1e-10)
        np.testing.assert_allclose(result.scores[0, output], source, rtol=0, atol=1e-11)
        np.testing.assert_allclose(result.decoder_scores[0, output], decoder, rtol=0, atol=1e-11)


# Spans, and contrasts of several tokens.
