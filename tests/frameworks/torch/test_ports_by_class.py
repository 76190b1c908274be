"""Weights that are loaded by another class or with another configuration are explained for texts of any lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embgrad

CONFIG = {
    "vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu",
    "hidden_activation": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_theta": 10000.0, "pad_token_id": 0,
}  # fmt: skip

# The class, its settings, and the causes.
PORTS: Mapping[str, tuple[str, dict[str, Any], list[str]]] = {
    "the same class": ("Llama", {}, []),
    "biases of zero": ("Qwen2", {}, []),
    "a window": ("Mistral", {"sliding_window": 4}, ["attention window none in a and 4 in b, layers 0–2"]),
    "another base": ("Llama", {"rope_theta": 500000.0}, ["rotary base 10000 in a and 500000 in b, layers 0–2"]),
    "gains beyond one": (
        "Gemma",
        {},
        [
            "model.embed_tokens is multiplied by 1 in a and 5.65685 in b",
            "the gain is w in a and 1 + w in b, layers 0–2",
        ],
    ),
}

# The texts' lengths, and the side of the padding.
BATCHES: Mapping[str, tuple[list[int], str]] = {
    "one text": ([12], "right"),
    "one of five tokens": ([5], "right"),
    "one token beside many": ([20, 1, 2], "right"),
    "one token beside many, on the right": ([20, 1, 2], "left"),
}


def loaded(name: str, settings: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """Return a model of a class with weights by name; biases that these lack are zeros."""
    config = getattr(transformers, f"{name}Config")(**{**CONFIG, **settings})
    model: torch.nn.Module = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    missing, unexpected = model.load_state_dict(dict(weights), strict=False)
    assert not unexpected
    for key in missing:
        assert key.endswith(".bias")
        torch.nn.init.zeros_(model.get_parameter(key))
    return model


@pytest.fixture(scope="module")
def reference() -> torch.nn.Module:
    model = loaded("Llama", {}, transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).state_dict())
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.3 * noise if weight.ndim == 1 else noise / weight.shape[1] ** 0.25)
    return model


def texts_of(lengths: list[int], side: str) -> dict[str, np.ndarray]:
    """Return a batch of texts with these numbers of tokens, padded on a side."""
    ids = np.random.default_rng(0).integers(1, 60, (len(lengths), max(lengths)))
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(int)
    mask = mask if side == "right" else mask[:, ::-1]
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("texts", BATCHES)
@pytest.mark.parametrize("port", PORTS)
def test_the_causes_are_named_whatever_the_texts_lengths_are(port: str, texts: str, reference: torch.nn.Module) -> None:
    name, settings, causes = PORTS[port]
    report = embgrad.check_port(reference, loaded(name, settings, reference.state_dict()), texts_of(*BATCHES[texts]))
    assert report.agrees is not bool(causes)
    assert [cause.text.partition(", at ")[0] for cause in report.causes] == causes


LATENT = {
    **CONFIG, "num_key_value_heads": 4, "head_dim": 4, "q_lora_rank": 12, "kv_lora_rank": 10,
    "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_group": 4,
    "topk_group": 2, "first_k_dense_replace": 1,
}  # fmt: skip

# What differs in a port of DeepSeek-V3, and the cause.
OF_LATENT: Mapping[str, tuple[dict[str, Any], str]] = {
    "base": ({"rope_theta": 500000.0}, "rotary base 10000 in a and 500000 in b, layers 0–2"),
    "layout": (
        {"rope_interleave": False},
        "rotary pairs are neighbouring features in a and halves of the head in b, layers 0–2",
    ),
    "groups": (
        {"n_group": 1, "topk_group": 1},
        "experts are taken from 2 of 4 groups by their two best in a and all in b, layers 1–2",
    ),
    "one expert": ({"num_experts_per_tok": 1}, "experts for each token 2 in a and 1 in b, layers 1–2"),
}


@pytest.mark.parametrize("changed", OF_LATENT)
def test_latent_attention_and_groups_of_experts_are_explained(changed: str) -> None:
    settings, cause = OF_LATENT[changed]
    reference = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**LATENT)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in reference.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.3 * noise if weight.ndim == 1 else noise / weight.shape[-1] ** 0.5)
    port = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**{**LATENT, **settings})).eval()
    port.load_state_dict(reference.state_dict())
    report = embgrad.check_port(reference, port, texts_of([12, 9], "right"))
    assert [found.text for found in report.causes] == [cause]
