"""Bisection of a BERT: faults of the backward pass alone, and a BERT inside another model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertModel

import embgrad

LAYERS = 4
RANDOM = np.random.default_rng(0)
BATCH = embgrad.TokenBatch(RANDOM.integers(3, 60, (3, 6)), [[1] * 6, [1] * 4 + [0] * 2, [1] * 3 + [0] * 3])
POOLED = embgrad.Projection(RANDOM.normal(size=32), output="pooled")
LABELS = embgrad.CrossEntropy([0, 1, 2])

Fault = Callable[[Any], Any]


def bert(kind: Any = BertModel) -> Any:
    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=20,
        initializer_range=0.15,
        num_labels=3,
    )
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def faulty(model: Any, fault: Fault) -> Any:
    other = copy.deepcopy(model)
    with torch.no_grad():
        fault(other)
    return other


@pytest.fixture(scope="module")
def model() -> Any:
    return bert()


def replace(name: str, make: Callable[[Any], Any]) -> Fault:
    """Return a fault that puts another module in the place of one of the third layer."""
    path = f"encoder.layer.2.{name}"
    return lambda b: b.set_submodule(path, make(b.get_submodule(path)))


class Output(nn.Module):
    """The end of a half layer, with a fault in its residual connection."""

    def __init__(self, original: Any, residual: Callable[[Any], Any]) -> None:
        super().__init__()
        self.dense, self.LayerNorm, self.dropout, self.residual = (
            original.dense,
            original.LayerNorm,
            original.dropout,
            residual,
        )

    def forward(self, hidden: Any, given: Any) -> Any:
        return self.LayerNorm(self.dropout(self.dense(hidden)) + self.residual(given))


class Pulled(torch.autograd.Function):
    """The right value, with a gradient that is too large."""

    @staticmethod
    def forward(context: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Any) -> Any:
        return gradient * 1.01


class Wrong(nn.Module):
    def forward(self, x: Any) -> Any:
        return Pulled.apply(nn.functional.gelu(x))


@pytest.mark.parametrize(
    ("make", "at", "module"),
    [
        (lambda _: Wrong(), "intermediate.intermediate_act_fn", "encoder.layer.2.intermediate.intermediate_act_fn"),
        # A residual passes a tensor by all modules of its layer.
        (lambda original: Output(original, torch.detach), "output", "encoder.layer.2"),
        (lambda original: Output(original, torch.detach), "attention.output", "encoder.layer.2"),
    ],
)
def test_a_fault_of_the_backward_pass_alone_is_named(model: Any, make: Fault, at: str, module: str) -> None:
    result = embgrad.bisect(model, faulty(model, replace(at, make)), BATCH, POOLED)
    assert (result.first, result.direction, result.after) == ("layer.1", "backward", "layer.2")
    assert result.module == module


def test_a_bert_inside_another_model_is_bisected() -> None:
    a = bert(BertForSequenceClassification)
    b = faulty(a, lambda b: b.bert.encoder.layer[1].intermediate.dense.bias.add_(0.01))
    result = embgrad.bisect(a, b, BATCH, LABELS)
    assert (result.first, result.module) == ("layer.1", "bert.encoder.layer.1.intermediate.dense")
    assert result.parameters[0].a == "bert.encoder.layer.1.intermediate.dense.bias"
    pooled = embgrad.bisect(a.bert, b.bert, BATCH, POOLED)
    assert f"bert.{pooled.module}" == result.module
    apart = embgrad.bisect(a, a.bert, BATCH, (LABELS, POOLED))
    assert (apart.first, apart.after) == ("objective", "layer.3")
    head = embgrad.bisect(a, faulty(a, lambda b: b.classifier.weight.mul_(1.01)), BATCH, LABELS)
    assert (head.first, head.module) == ("classifier:output", "classifier")
