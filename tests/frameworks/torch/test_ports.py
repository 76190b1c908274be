"""Checks of ports of PyTorch models in other precisions, and with fewer layers."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

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


def test_another_fault_of_a_port_in_half_precision_is_found(bert: BertModel) -> None:
    port = copy.deepcopy(bert)
    for layer in port.encoder.layer:
        layer.intermediate.intermediate_act_fn = torch.nn.ReLU()
    report = embgrad.check_port(bert, port.bfloat16(), BATCH)
    assert [cause.cause for cause in report.causes] == ["half-precision", "activation"]
    assert not report.notes


def test_weights_of_eight_bits_are_named(bert: BertModel) -> None:
    port = copy.deepcopy(bert)
    with torch.no_grad():
        for module in port.modules():
            if isinstance(module, torch.nn.Linear):
                step = module.weight.abs().amax(1, keepdim=True) / 127
                module.weight.copy_((module.weight / step).round() * step)
    report = embgrad.check_port(bert, port, BATCH)
    assert [cause.text for cause in report.causes] == ["b has the weights of 13 modules rounded to 8 bits, layers 0–1"]
    assert report.explained == pytest.approx(1, abs=1e-6)


def test_a_port_with_a_layer_fewer_skips_it(bert: BertModel) -> None:
    port = copy.deepcopy(bert)
    del port.encoder.layer[1]
    report = embgrad.check_port(bert, port, BATCH)
    assert [cause.text for cause in report.causes] == ["b lacks what a computes between layer 0 and layer 1"]
    assert report.explained == pytest.approx(1, abs=1e-6)
    assert report.unexplained == ()
    assert "a has 2 layers, and b 1" in report.notes


class Packed(torch.nn.Module):
    """BERT's layers on the tokens of all texts side by side, without padding."""

    def __init__(self, bert: BertModel, shift: int = 0) -> None:
        super().__init__()
        self.bert, self.shift = copy.deepcopy(bert), shift

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        text, place = attention_mask.nonzero(as_tuple=True)
        tables = self.bert.embeddings
        x = tables.word_embeddings(input_ids[text, place]) + tables.position_embeddings(place + self.shift)
        x = tables.LayerNorm(x + tables.token_type_embeddings(torch.zeros_like(text)))
        for layer in self.bert.encoder.layer:
            own = layer.attention.self
            q, k, v = (part(x).unflatten(-1, (4, -1)) for part in (own.query, own.key, own.value))
            scores = torch.einsum("qhd,khd->hqk", q, k) / 8**0.5
            weights = scores.masked_fill(text[:, None] != text, -torch.inf).softmax(-1)
            x = layer.attention.output(torch.einsum("hqk,khd->qhd", weights, v).flatten(1), x)
            x = layer.output(layer.intermediate(x), x)
        return x.new_zeros(*input_ids.shape, x.shape[-1]).index_put((text, place), x)


def test_a_port_without_padding_is_checked_at_all_points(bert: BertModel) -> None:
    mask = np.ones_like(IDS)
    mask[1, 9:] = 0
    batch = embgrad.TokenBatch(IDS, mask)
    right = embgrad.check_port(bert, Packed(bert), batch)
    assert right.agrees
    assert len(right.points) > 20
    wrong = embgrad.check_port(bert, Packed(bert, 1), batch)
    assert wrong.first == "embeddings.LayerNorm:input"
    port = Packed(bert)
    port.bert.encoder.layer[1].intermediate.intermediate_act_fn = torch.nn.ReLU()
    report = embgrad.check_port(bert, port, batch)
    assert report.verdict == (
        "the port differs: the activation is GELU by the error function in a and ReLU in b, layer 1 (100 % of the difference)"
    )


def test_a_missing_bias_of_keys_is_a_note(bert: BertModel) -> None:
    """It adds the same to all scores of a query, and softmax removes it; a bias of queries does not."""
    reference = copy.deepcopy(bert)
    for layer in reference.encoder.layer:
        for part in (layer.attention.self.key, layer.attention.self.query):
            torch.nn.init.normal_(part.bias)
    port = copy.deepcopy(reference)
    for layer in port.encoder.layer:
        layer.attention.self.key.bias = None
    report = embgrad.check_port(reference, port, BATCH)
    assert report.agrees
    assert report.notes == (
        "b adds no bias at encoder.layer.N.attention.self.key, and a does, layers 0–1; no value behind it differs",
    )
    assert all(point.agrees for point in report.points)
    port.encoder.layer[1].attention.self.query.bias = None
    both = embgrad.check_port(reference, port, BATCH)
    assert {cause.cause for cause in both.causes} == {"missing-bias"}
    assert len(both.causes) == 2
