"""Faults of ports that compute in half precision are named as well, and so are those of references that do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
import transformers

import embgrad

Model = torch.nn.Module


def build(**settings: float) -> Model:
    """Return a small Qwen2, a decoder with biases at its projections, with gains and biases as trained ones have them."""
    config = transformers.Qwen2Config(
        vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.15,
        **{"rms_norm_eps": 1e-5, **settings},
    )  # fmt: skip
    torch.manual_seed(0)
    model: Model = transformers.Qwen2ForCausalLM(config).eval()
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            weight.data = 1 + 0.3 * torch.randn_like(weight)
        elif name.endswith("bias"):
            weight.data = 0.5 * torch.randn_like(weight)
    return model


def without_norm(model: Model) -> None:
    model.model.layers[1].post_attention_layernorm = torch.nn.Identity()


def without_biases(model: Model) -> None:
    for layer in model.model.layers:
        layer.self_attn.v_proj.bias = None


def with_other_gains(model: Model) -> None:
    for layer in model.model.layers:
        layer.input_layernorm.register_forward_hook(lambda norm, given, found: found * (1 + norm.weight) / norm.weight)


def without_part(model: Model) -> None:
    model.model.layers[1].mlp.register_forward_hook(lambda part, given, found: 0 * found)


def with_half_of_part(model: Model) -> None:
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda part, given, found: found * 0.5)


def with_transpose(model: Model) -> None:
    weight = model.model.layers[1].self_attn.q_proj.weight
    weight.data = weight.data.T.contiguous()


def with_gelu(model: Model) -> None:
    for layer in model.model.layers:
        layer.mlp.act_fn = torch.nn.GELU()


PLANTED: Mapping[str, tuple[Callable[[Model], None], str]] = {
    "a norm left out": (without_norm, "b lacks the norm model.layers.N.post_attention_layernorm, layer 1"),
    "biases left out": (without_biases, "b adds no bias at model.layers.N.self_attn.v_proj, and a does, layers 0–1"),
    "gains beyond one": (with_other_gains, "the gain is w in a and 1 + w in b, layers 0–1"),
    "a part left out": (without_part, "model.layers.N.mlp.down_proj is added in a and left out in b, layer 1"),
    "a part halved": (
        with_half_of_part,
        "model.layers.N.mlp.down_proj is multiplied by 1 in a and 0.5 in b, layers 0–1",
    ),
    "a matrix transposed": (
        with_transpose,
        "b uses model.layers.N.self_attn.q_proj.weight transposed and rounded to bfloat16, layer 1",
    ),
    "another activation": (with_gelu, "the activation is SiLU in a and GELU in b, layers 0–1"),
}


def check(reference: Model, port: Model) -> list[str]:
    """Return what a report says of two models beside the precision in which they compute."""
    ids = np.random.default_rng(0).integers(3, 300, (2, 12))
    report = embgrad.check_port(reference, port, ids)
    first, *rest = (cause.text for cause in report.causes)
    assert first.startswith("a computes in "), first
    assert not report.unexplained
    return rest


@pytest.mark.parametrize("name", PLANTED)
def test_a_fault_of_a_port_in_half_precision_is_named(name: str) -> None:
    plant, sentence = PLANTED[name]
    port = build()
    plant(port)
    assert check(build(), port.to(torch.bfloat16)) == [sentence]


def test_another_epsilon_is_named_where_rounding_does_not_hide_it() -> None:
    found = check(build(), build(rms_norm_eps=3e-2).to(torch.bfloat16))
    assert [text.partition(", layer")[0] for text in found] == ["epsilon 1e-05 in a and 0.03 in b"]


def test_a_right_port_in_half_precision_has_no_further_cause() -> None:
    assert check(build(), build().to(torch.bfloat16)) == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("a norm left out", "b applies the norm model.layers.N.post_attention_layernorm, and a lacks it, layer 1"),
        ("gains beyond one", "the gain is 1 + w in a and w in b, layers 0–1"),
        ("a part halved", "model.layers.N.mlp.down_proj is multiplied by 0.5 in a and 1 in b, layers 0–1"),
    ],
)
def test_a_fault_is_named_where_the_reference_computes_in_half_precision(name: str, sentence: str) -> None:
    reference = build()
    PLANTED[name][0](reference)
    assert check(reference.to(torch.bfloat16), build()) == [sentence]
