"""Multipliers of a residual and of what is added to it, in a port whose residual is no point: Llama by hand in JAX."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import embgrad
from tests.support.llama_by_hand import changed_llama

IDS = np.array([[1, 2, 3, 4, 9, 8], [5, 6, 7, 8, 11, 3]])

MLP, ATTENTION = "x = x + linear(gate", "x = x + linear(mixed"
HALF = "is multiplied by 1 in a and 0.5 in b"


@pytest.fixture(scope="module")
def reference() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=60, tie_word_embeddings=True, **sizes, **heads)).eval()


@pytest.mark.parametrize(
    ("before", "after", "causes"),
    [
        ("", "", []),
        (MLP, "x = x + 0.5 * linear(gate", [f"model.layers.N.mlp.down_proj {HALF}, layers 0–2"]),
        (ATTENTION, "x = x + 0.5 * linear(mixed", [f"model.layers.N.self_attn.o_proj {HALF}, layers 0–2"]),
        (MLP, "x = 0.5 * x + linear(gate", [f"model.layers.N.post_attention_layernorm:input {HALF}, layers 0–2"]),
        (MLP, "x = x + (0.5 if layer == 1 else 1) * linear(gate", [f"model.layers.N.mlp.down_proj {HALF}, layer 1"]),
        (
            MLP,
            "x = linear(gate",
            ["model.layers.N.post_attention_layernorm:input is added in a and left out in b, layers 0–2"],
        ),
        (MLP, "x = x - linear(gate", ["model.layers.N.mlp.down_proj is multiplied by 1 in a and -1 in b, layers 0–2"]),
    ],
)
def test_the_multiplied_term_is_named(reference: Any, before: str, after: str, causes: list[str]) -> None:
    """Behind a norm a sum's terms are known up to a common number: which of them is multiplied later sums decide."""
    decoder = changed_llama(before, after)
    config = {"rms_norm_eps": 1e-6, "rope_theta": 1e4, **reference.config.to_dict()}
    weights = {name: jnp.asarray(value.numpy()) for name, value in reference.state_dict().items()}
    del weights["lm_head.weight"]

    def call(params: Any, inputs: Any) -> Any:
        return decoder(jnp, params, config, inputs["input_ids"])

    report = embgrad.check_port(reference, weights, {"input_ids": IDS}, call=(None, call))
    assert [cause.text for cause in report.causes] == causes
    assert report.agrees is not bool(after)
    assert not report.unexplained
