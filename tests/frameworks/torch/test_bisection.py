"""Bisection of PyTorch models with faults injected by hand: the fault's own layer and sub-module are named."""

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

MODULES = (
    "attention.self.query",
    "attention.self.value",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
)

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


@pytest.mark.parametrize("module", MODULES)
def test_a_perturbed_weight_is_named(model: Any, module: str) -> None:
    path = f"encoder.layer.2.{module}"
    result = embgrad.bisect(model, faulty(model, lambda b: b.get_submodule(path).weight.mul_(1.01)), BATCH, POOLED)
    assert (result.first, result.direction, result.module) == ("layer.2", "forward", path)
    assert [(weight.a, weight.b) for weight in result.parameters if weight.differs] == [(f"{path}.weight",) * 2]
    assert result.parameters[0].relative_l2 == pytest.approx(0.01, rel=1e-3)


def test_a_difference_within_the_tolerance_is_traced_to_where_it_begins(model: Any) -> None:
    """Rounded away at the layer's own output, and beyond the tolerance only at the objective."""
    path = "encoder.layer.1.output.LayerNorm"
    result = embgrad.bisect(model, faulty(model, lambda b: b.get_submodule(path).bias.add_(4e-5)), BATCH, POOLED)
    assert (result.first, result.module) == ("layer.1", path)


def replace(name: str, make: Callable[[Any], Any]) -> Fault:
    """Return a fault that puts another module in the place of one of the third layer."""
    path = f"encoder.layer.2.{name}"
    return lambda b: b.set_submodule(path, make(b.get_submodule(path)))


def swap(b: Any) -> None:
    attention = b.encoder.layer[2].attention.self
    attention.query, attention.key = attention.key, attention.query


def transpose(b: Any) -> None:
    value = b.encoder.layer[2].attention.self.value
    value.weight.copy_(value.weight.T.clone())


def epsilon(b: Any) -> None:
    b.encoder.layer[2].attention.output.LayerNorm.eps = 1e-2


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


class Attention(nn.Module):
    """Attention by hand, without the division by the root of the heads' size."""

    def __init__(self, original: Any, factor: float) -> None:
        super().__init__()
        self.query, self.key, self.value, self.factor = original.query, original.key, original.value, factor

    def forward(self, hidden: Any, attention_mask: Any = None, *_: Any, **__: Any) -> Any:
        q, k, v = (
            linear(hidden).unflatten(-1, (4, 8)).transpose(1, 2) for linear in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) * self.factor
        masked = scores if attention_mask is None else scores.masked_fill(attention_mask == 0, -1e9)
        return (torch.softmax(masked, -1) @ v).transpose(1, 2).flatten(2), None


@pytest.mark.parametrize(
    ("fault", "at", "module", "relation"),
    [
        # Each holds the weights of the other, so that it is their product that differs.
        (swap, "", "attention.self", "swapped with encoder.layer.2.attention.self.key.weight"),
        (transpose, "", "attention.self.value", "transposed"),
        (epsilon, "", "attention.output.LayerNorm", None),
        (
            lambda _: nn.GELU(approximate="tanh"),
            "intermediate.intermediate_act_fn",
            "intermediate.intermediate_act_fn",
            None,
        ),
        (lambda original: Output(original, lambda x: 0 * x), "output", "output", None),
        (lambda original: Output(original, lambda x: 0 * x), "attention.output", "attention.output", None),
        (lambda original: Attention(original, 1.0), "attention.self", "attention.self", None),
    ],
)
def test_a_fault_of_the_forward_pass_is_named(
    model: Any, fault: Fault, at: str, module: str, relation: str | None
) -> None:
    result = embgrad.bisect(model, faulty(model, replace(at, fault) if at else fault), BATCH, POOLED)
    assert (result.first, result.direction) == ("layer.2", "forward")
    assert result.module == f"encoder.layer.2.{module}"
    assert [weight.relation for weight in result.parameters if weight.differs][:1] == ([relation] if relation else [])
    assert "Cause" in result.text


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


def test_random_numbers_of_a_restored_generator_are_recognised(model: Any) -> None:
    class Dropping(nn.Module):
        def forward(self, x: Any) -> Any:
            return nn.functional.dropout(x, 0.2, training=True)

    other = faulty(model, replace("output.dropout", lambda _: Dropping()))
    for a in (model, other):
        result = embgrad.bisect(a, other, BATCH, POOLED)
        assert (result.first, dict(result.random)["b"]) == ("layer.2", "layer.2")
        assert result.module == "encoder.layer.2.output"


# Models that have nothing of a BERT


def test_half_precision_is_reported(model: Any) -> None:
    result = embgrad.bisect(model, copy.deepcopy(model).bfloat16(), BATCH, POOLED)
    assert result.first == "word"
    assert result.text.endswith("A computes in float32, b in bfloat16.")
