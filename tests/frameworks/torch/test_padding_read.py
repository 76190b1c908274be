"""Padding that a model of transformers reads beside its mask is a warning; ordinary models read none on either side."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embgrad

IDS = np.array([[5, 7, 9, 11, 13, 6, 3, 8], [4, 6, 3, 9, 12, 7, 10, 5]])
RIGHT = np.array([[1] * 8, [1] * 5 + [0] * 3])
USUAL = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "pad_token_id": 0,
}  # fmt: skip
KEYS = {**USUAL, "num_key_value_heads": 1, "head_dim": 8}
T5 = {"vocab_size": 20, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "pad_token_id": 0}
MODELS: dict[str, dict[str, Any]] = {
    "Bert": USUAL,
    "Llama": KEYS,
    "Gemma2": KEYS,
    "Mistral": KEYS,
    "GPT2": {"vocab_size": 20, "n_embd": 16, "n_layer": 2, "n_head": 2},
    "Mamba": {**USUAL, "state_size": 4},
    "T5Encoder": T5,
    "RecurrentGemma": {**KEYS, "lru_width": 16, "attention_window_size": 16, "num_hidden_layers": 3},
    "ConvBert": {**USUAL, "embedding_size": 16, "head_ratio": 1},
}


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", MODELS)
def test_models_that_read_padding(name: str, side: str) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name.removesuffix('Encoder')}Config")(**MODELS[name])
    model = getattr(transformers, f"{name}Model")(config).eval()
    mask = RIGHT if side == "right" else RIGHT[:, ::-1].copy()
    objective = embgrad.Projection(np.linspace(-1, 1, 16), output="sequence")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = embgrad.gradients(model, {"input_ids": IDS, "attention_mask": mask}, objective)
    messages = [str(item.message) for item in caught if "the model reads padding though" in str(item.message)]
    assert bool(messages) == (name == "ConvBert" or (name, side) == ("RecurrentGemma", "left"))
    assert bool(messages) == (result.pad_leak > 1e-6)
