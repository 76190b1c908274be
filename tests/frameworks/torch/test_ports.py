"""Checks of ports of PyTorch models whose backward passes differ."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import embgrad

IDS = np.random.default_rng(0).integers(1, 60, (2, 14))
BATCH = embgrad.TokenBatch(IDS, np.ones_like(IDS))
OBJECTIVE = embgrad.Sum(output="pooled")


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 0.5


@pytest.fixture(scope="module")
def bert() -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    return BertModel(config).eval()


def test_a_copy_agrees_with_an_objective(bert: BertModel) -> None:
    report = embgrad.check_port(bert, copy.deepcopy(bert), BATCH, OBJECTIVE)
    assert report.agrees
    assert all(point.local_gradient is None for point in report.points)


def test_the_point_behind_which_backward_passes_differ_is_found(bert: BertModel) -> None:
    port = copy.deepcopy(bert)
    dense = port.encoder.layer[1].output.dense
    plain = dense.forward
    dense.forward = lambda x: plain(Halved.apply(x))
    assert embgrad.check_port(bert, port, BATCH).agrees
    report = embgrad.check_port(bert, port, BATCH, OBJECTIVE)
    assert not report.agrees
    assert report.first == "encoder.layer.1.intermediate.dense"  # the output before the changed input
    assert report.unexplained == (report.first,)
    assert report.causes == ()
    local = {point.name: point.local_gradient for point in report.points}
    assert local[report.first] == pytest.approx(0.5)
    assert local["encoder.layer.0.intermediate.dense"] < 1e-6
    (note,) = report.notes
    assert note.startswith("all values agree, and the gradient differs first at 'encoder.layer.1.intermediate.dense'")


def test_the_models_are_left_as_they_were(bert: BertModel) -> None:
    port = copy.deepcopy(bert)
    before = {name: value.clone() for name, value in port.state_dict().items()}
    embgrad.check_port(bert, port, BATCH, OBJECTIVE)
    assert all(torch.equal(value, before[name]) for name, value in port.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in port.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in port.modules())
