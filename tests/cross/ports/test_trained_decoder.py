"""Faults of a port whose weights were trained, which have entries a thousand times as large as others: SmolLM2 by hand in JAX."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import embgrad
from tests.support.llama_by_hand import changed_llama
from tests.support.smollm2 import load_smollm2, smollm2_folder

pytestmark = pytest.mark.slow

TEXTS = ["The keys to the cabinet are on the table", "A man walked into the old library and asked for a book"]

# What is written in the port's source in the place of what, and the causes.
LAYERS = 'for layer in range(config["num_hidden_layers"])'
ROOT = "xp.sqrt((x * x).mean(-1, keepdims=True) + epsilon)"
FAULTS: Mapping[str, tuple[str, str, list[str]]] = {
    "no fault": ("", "", []),
    "an epsilon behind the root": (ROOT, f"({ROOT.replace(' + epsilon', '')} + epsilon)",
        ["the norm divides by the root of the mean square + ε in a and the root mean square + ε in b"]),
    "rows that are scaled": ("table[ids]", "table[ids] * table.shape[1] ** 0.5",
        ["model.embed_tokens is multiplied by 1 in a and 24 in b"]),
    "a residual of what the norm returns": ("x = x + linear(mixed", "x = normed + linear(mixed",
        ["b adds what the norm model.layers.N.input_layernorm returns, where a adds what it is given"]),
    "a residual that is left out in one layer": ("x = x + linear(gate", "x = x * (layer != 14) + linear(gate",
        ["model.layers.N.post_attention_layernorm:input is added in a and left out in b"]),
    "a branch of half its size": ("x = x + linear(gate", "x = x + 0.5 * linear(gate",
        ["model.layers.N.mlp.down_proj is multiplied by 1 in a and 0.5 in b"]),
    "angles in half precision": ("cos, sin = xp.cos(angles)",
        "angles = angles.astype('bfloat16').astype(x.dtype)\n    cos, sin = xp.cos(angles)",
        ["rotary angles are in float32 in a and bfloat16 in b"]),
    "the last layer left out": ('config["num_hidden_layers"])', 'config["num_hidden_layers"] - 1)',
        ["b does not run the layer 29"]),
    "two layers that are exchanged": (LAYERS, "for layer in (*range(10), 11, 10, *range(12, 30))",
        ["the layers run in the order 0–29 in a and 0–9, 11, 10, 12–29 in b"]),
    "rows that are normalised": ("table[ids]", "table[ids] / xp.sqrt((table[ids] ** 2).mean(-1, keepdims=True))",
        ["b divides the rows of model.embed_tokens by their root mean square, and a does not"]),
    "a branch between -1 and 1": ('linear(normed, "mlp.up")', 'xp.clip(linear(normed, "mlp.up"), -1, 1)', []),
}  # fmt: skip


@pytest.fixture(scope="module")
def reference() -> tuple[Any, dict[str, np.ndarray]]:
    """The model, and ids of two texts without padding."""
    model, tokenizer = load_smollm2()
    batch = embgrad.encode(TEXTS, tokenizer)
    return model, {"input_ids": batch.ids[:, : int(batch.real.sum(1).min())]}


def ported(before: str, after: str) -> Callable[..., Any]:
    """Return the decoder by hand with a piece of its source in the place of another."""
    decoder = changed_llama(before, after)
    config = json.loads((smollm2_folder() / "config.json").read_text(encoding="utf-8"))
    return lambda params, inputs: decoder(jnp, params, config, inputs["input_ids"])


@pytest.mark.parametrize("fault", FAULTS)
def test_the_causes_are_named_or_none_is(fault: str, reference: tuple[Any, dict[str, np.ndarray]]) -> None:
    before, after, causes = FAULTS[fault]
    model, batch = reference
    params = {name: jnp.asarray(array) for name, array in load_file(smollm2_folder() / "model.safetensors").items()}
    report = embgrad.check_port(model, params, batch, call=(None, ported(before, after)))
    assert report.agrees is not bool(after)
    assert [cause.text.partition(", layer")[0].partition(", at ")[0] for cause in report.causes] == causes
