"""Checks of ports of PyTorch models in other precisions, and with weights that compute the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import embgrad

IDS = np.random.default_rng(0).integers(1, 60, (2, 14))
BATCH = embgrad.TokenBatch(IDS, np.ones_like(IDS))


@pytest.fixture(scope="module")
def bert() -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    return BertModel(config).eval()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_precision_of_a_port_is_a_cause_by_itself(bert: BertModel, dtype: str) -> None:
    port = copy.deepcopy(bert).to(getattr(torch, dtype))
    report = embgrad.check_port(bert, port, BATCH)
    assert report.verdict == f"the port differs: a computes in float32 and b in {dtype}"
    assert (report.floor, report.first) == (dtype, report.causes[0].sites[0])
    assert report.causes[0].cause == "half-precision"
    assert f"pass floor={dtype!r} to accept that precision" in report.notes[-1]
    assert embgrad.check_port(bert, port, BATCH, floor=dtype).agrees
    assert embgrad.check_port(port, copy.deepcopy(port), BATCH).agrees


@pytest.fixture(scope="module")
def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    sizes = {"n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.2}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=60, tie_word_embeddings=False, **sizes)).eval()
    for name, weight in model.named_parameters():
        if "ln" in name or name.endswith("bias"):
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model


def fold_norms(layer: Any) -> None:
    """Move the gains and biases of both norms into the matrices behind them."""
    for norm, matrix in ((layer.ln_1, layer.attn.c_attn), (layer.ln_2, layer.mlp.c_fc)):
        matrix.bias += norm.bias @ matrix.weight
        matrix.weight *= norm.weight[:, None]
        torch.nn.init.ones_(norm.weight)
        torch.nn.init.zeros_(norm.bias)


def centre_sums(layer: Any) -> None:
    """Subtract from what both parts add to the residual stream its mean, which each norm subtracts."""
    for part in (layer.attn.c_proj, layer.mlp.c_proj):
        part.weight -= part.weight.mean(1, keepdim=True)
        part.bias -= part.bias.mean()


def move_value_bias(layer: Any) -> None:
    """Add the bias of the values, whose shares sum to 1, behind the attention."""
    bias = layer.attn.c_attn.bias[64:].clone()
    layer.attn.c_attn.bias[64:] = 0
    layer.attn.c_proj.bias += bias @ layer.attn.c_proj.weight


def scale_scores(layer: Any) -> None:
    """Multiply the queries by a number, and divide the keys by it."""
    for part, number in ((slice(32), 3.0), (slice(32, 64), 1 / 3)):
        layer.attn.c_attn.weight[:, part] *= number
        layer.attn.c_attn.bias[part] *= number


CHANGES = [fold_norms, centre_sums, move_value_bias, scale_scores]


@pytest.mark.parametrize("changes", [*([change] for change in CHANGES), CHANGES], ids=lambda it: str(len(it)))
def test_weights_that_compute_the_same_are_right(gpt2: GPT2LMHeadModel, changes: list[Callable[[Any], None]]) -> None:
    """Tools for interpreting and for quantising models fold and scale their weights so."""
    port = copy.deepcopy(gpt2)
    with torch.no_grad():
        for layer in port.transformer.h:
            for change in changes:
                change(layer)
    report = embgrad.check_port(gpt2, port, BATCH, embgrad.Sum())
    assert report.agrees
    assert len(changes) == 1 or any(note.endswith("; what follows makes up for it") for note in report.notes)
    with torch.no_grad():
        port.transformer.h[1].attn.c_attn.weight[:, :32] *= 1.5
    assert not embgrad.check_port(gpt2, port, BATCH).agrees


def test_faults_beside_folded_norms_are_named_alone() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=60, num_hidden_layers=3, max_position_embeddings=32, **sizes)
    ).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    port = copy.deepcopy(model)
    with torch.no_grad():
        for layer in port.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            for norm, matrices in (
                (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
                (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
            ):
                for matrix in matrices:
                    matrix.weight *= norm.weight
                torch.nn.init.ones_(norm.weight)
    assert embgrad.check_port(model, port, BATCH).agrees
    port.model.layers[1].input_layernorm.variance_epsilon = 1e-2
    port.model.layers[2].self_attn.scaling *= 1.1
    report = embgrad.check_port(model, port, BATCH)
    assert {(cause.cause, cause.layers) for cause in report.causes} == {
        ("layer-norm-epsilon", (1,)),
        ("attention-scale", (2,)),
    }
    assert report.unexplained == ()
    assert report.explained == pytest.approx(1.0)
