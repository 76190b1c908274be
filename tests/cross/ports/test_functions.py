"""Faults of a port that is a function of matrices, whose residual is no point: Llama by hand in JAX."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import embgrad
from tests.support.llama_by_hand import changed_llama

IDS = np.array([[1, 2, 3, 4, 9, 8], [5, 6, 7, 8, 11, 3]])

PARALLEL = (
    "what b gives to model.layers.N.mlp.gate_proj lacks model.layers.N.self_attn.o_proj, which b adds later, layers 0–2"
)
SUM = 'x = x + linear(mixed.swapaxes(1, 2).reshape(examples, positions, dim), "self_attn.o")'
SECOND = 'normed = norm(x, f"{name}.post_attention_layernorm")'
LEFT_OUT = "model.layers.N.self_attn.o_proj is added in a and left out in b"
MLP, ATTENTION = "x = x + linear(gate", "x = x + linear(mixed"
UP = 'linear(normed, "mlp.up")'
HALF = "is multiplied by 1 in a and 0.5 in b"
ROWS, TABLE = "x = table[ids]", "model.embed_tokens"
LAYERS = 'for layer in range(config["num_hidden_layers"])'
NORMED = "x = table[ids]; x = x / xp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)"
CENTRED = "x = table[ids] - table[ids].mean(-1, keepdims=True); x = x / xp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)"


@pytest.fixture(scope="module")
def reference() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=60, tie_word_embeddings=True, **sizes, **heads)).eval()
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model


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
        (f"{SUM}\n        {SECOND}", f"added = {SUM[8:]}\n        {SECOND}\n        x = x + added", [PARALLEL]),
        (SUM, SUM.replace("+ linear", "+ (layer != 2) * linear"), [f"{LEFT_OUT}, layer 2"]),
        (f'{UP}, "mlp.down")', f'{UP.replace("(normed", "(8 * normed")} / 8, "mlp.down")', []),
        (f'{UP}, "mlp.down")', f'{UP.replace("(normed", "(8 * normed")}, "mlp.down") / 8', []),
    ],
)
def test_the_multiplied_term_is_named(reference: Any, before: str, after: str, causes: list[str]) -> None:
    """Behind a norm a sum's terms are known up to a common number: which of them is multiplied later sums decide."""
    assert names_of_causes(reference, before, after) == causes


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        (NORMED, f"b divides the rows of {TABLE} by their root mean square, and a does not"),
        (CENTRED, f"b applies a layer norm without weights to the rows of {TABLE}, and a does not"),
        (
            "x = table[ids] * 12",
            f"{TABLE} is multiplied by 1 in a and 12 in b, at model.layers.0.self_attn.q_proj:input",
        ),
        (
            "x = table[xp.roll(ids, 1, -1)]",
            f"the rows of {TABLE} are the ids in a and those of the position before in b, at {TABLE}",
        ),
        (
            "x = table[ids[:, ::-1]]",
            f"the rows of {TABLE} are the ids in a and those of the text from its end in b, at {TABLE}",
        ),
        ("x = table[ids + 1]", f"the rows of {TABLE} are the ids in a and the ids + 1 in b, at {TABLE}"),
    ],
)
def test_changed_rows_and_other_ids_are_named(reference: Any, after: str, cause: str) -> None:
    """The first norm hides what is done with rows but for its epsilon, and other ids do not show which position is which."""
    assert names_of_causes(reference, ROWS, after) == [cause]


@pytest.mark.parametrize(
    ("after", "cause"),
    [
        ("for layer in (1, 0, 2)", "the layers run in the order 0–2 in a and 1, 0, 2 in b"),
        ("for layer in (0, 1, 1, 2)", "the layers run in the order 0–2 in a and 0–1, 1–2 in b"),
        ("for layer in (0, 1, 1)", "the layers run in the order 0–2 in a and 0–1, 1 in b"),
        ("for layer in (0, 2)", "b does not run the layer 1"),
    ],
)
def test_the_order_of_layers_is_named(reference: Any, after: str, cause: str) -> None:
    assert names_of_causes(reference, LAYERS, after) == [cause]


def names_of_causes(reference: Any, before: str, after: str) -> list[str]:
    """Return the texts of the causes that explain all that differs in a port with a piece of its source changed."""
    decoder = changed_llama(before, after)
    config = {"rms_norm_eps": 1e-6, "rope_theta": 1e4, **reference.config.to_dict()}
    weights = {name: jnp.asarray(value.numpy()) for name, value in reference.state_dict().items()}
    del weights["lm_head.weight"]

    def call(params: Any, inputs: Any) -> Any:
        return decoder(jnp, params, config, inputs["input_ids"])

    report = embgrad.check_port(reference, weights, {"input_ids": IDS}, call=(None, call))
    assert report.agrees is not bool(report.causes)
    assert not report.unexplained
    return [cause.text for cause in report.causes]
