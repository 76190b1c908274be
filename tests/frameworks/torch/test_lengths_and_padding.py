"""Text longer than the positions, padding on the left and labels without a shift, in Hugging Face's models of PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embgrad

VOCAB, MOST = 50, 16
IDS = np.random.default_rng(0).integers(3, VOCAB, (2, 8))
LEFT = np.array([[1] * 8, [0, 0, 0, 1, 1, 1, 1, 1]])
PADDED = np.where(LEFT == 1, IDS, 1)
USUAL = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
OF_GPT2 = {"vocab_size": VOCAB, "n_embd": 16, "n_layer": 1, "n_head": 2}
OF_OPT = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 32}

#: Class and configuration; whether padding on the left is counted; the most positions, None for no limit.
MODELS: dict[str, tuple[str, dict[str, Any], bool, int | None]] = {
    "GPT2": ("LMHeadModel", {**OF_GPT2, "n_positions": MOST}, True, MOST),
    "Bert": ("ForMaskedLM", {**USUAL, "max_position_embeddings": MOST}, True, MOST),
    "Roberta": ("ForMaskedLM", {**USUAL, "max_position_embeddings": MOST + 2}, False, MOST),
    "OPT": ("ForCausalLM", {**OF_OPT, "word_embed_proj_dim": 16, "max_position_embeddings": MOST}, False, MOST),
    "Llama": ("ForCausalLM", {**USUAL, "max_position_embeddings": MOST}, False, None),
    "Bloom": ("ForCausalLM", {"vocab_size": VOCAB, "hidden_size": 16, "n_layer": 1, "n_head": 2}, False, None),
    "T5": (
        "EncoderModel",
        {"vocab_size": VOCAB, "d_model": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8},
        False,
        None,
    ),
}


def build(name: str) -> Any:
    kind, config, *_ = MODELS[name]
    torch.manual_seed(0)
    made = getattr(transformers, f"{name}{kind}")(getattr(transformers, f"{name}Config")(**config))
    return made.eval()


def objective(name: str) -> Any:
    return embgrad.Sum(output="sequence" if name == "T5" else None, position=-1)


def warned(model: Any, batch: Any, goal: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = embgrad.gradients(model, batch, goal)
    return result, [
        str(warning.message) for warning in caught if issubclass(warning.category, embgrad.errors.EmbgradWarning)
    ]


@pytest.mark.parametrize("name", MODELS)
def test_left_padding_that_changes_the_result_is_a_warning(name: str) -> None:
    counted, model = MODELS[name][2], build(name)
    padded, said = warned(model, {"input_ids": PADDED, "attention_mask": LEFT}, objective(name))
    bare = embgrad.gradients(model, {"input_ids": PADDED[1:, 3:], "attention_mask": LEFT[1:, 3:]}, objective(name))
    off = np.abs(padded.values[1, 3:] - bare.values[0]).max() / np.abs(bare.values).max()
    assert off > 0.05 if counted else off < 1e-5
    assert [warning.startswith("the batch is padded on the left") for warning in said] == [True] * counted


@pytest.mark.parametrize("name", MODELS)
def test_text_longer_than_the_positions_is_refused(name: str) -> None:
    most, model = MODELS[name][3], build(name)
    ids = np.random.default_rng(0).integers(3, VOCAB, (2, 40))
    if most is None:
        assert embgrad.gradients(model, ids, objective(name)).shape == (2, 40, 16)
        return
    with pytest.raises(embgrad.errors.BatchError) as caught:
        embgrad.gradients(model, ids, objective(name))
    assert caught.value.message == (
        f"example 0 has 40 tokens, and the model takes {most} positions at most: pass max_length={most} with the "
        "tokenizer, or shorter ids"
    )
    assert embgrad.gradients(model, ids[:, :most], objective(name)).shape == (2, most, 16)
