"""Diagnoses of PyTorch models whose points, norms and failures the reference models do not have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertForSequenceClassification

import embgrad

RANDOM = np.random.default_rng(0)
MASK = np.array([[1] * 6, [1] * 4 + [0] * 2, [1] * 3 + [0] * 3])
BATCH = embgrad.TokenBatch(RANDOM.integers(3, 60, (3, 6)) * MASK, MASK)
LABELS = embgrad.CrossEntropy([0, 1, 2])


def causes(comparison: embgrad.Comparison) -> list[tuple[str, ...]]:
    return [finding.causes for finding in comparison.findings]


def albert() -> Any:
    config = AlbertConfig(
        vocab_size=60,
        embedding_size=12,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=20,
        num_labels=3,
        initializer_range=0.2,
    )
    torch.manual_seed(0)
    return AlbertForSequenceClassification(config).eval()


class RootMeanSquareNorm(nn.Module):
    def __init__(self, dim: int, epsilon: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))
        self.epsilon = epsilon

    def forward(self, x: Any) -> Any:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.epsilon) * self.gain


class Block(nn.Module):
    """A feed-forward block behind a norm, as in Llama."""

    def __init__(self, epsilon: float = 1e-6, dim: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, dim)
        self.norm = RootMeanSquareNorm(dim, epsilon)
        self.up, self.gate, self.down = nn.Linear(dim, 32), nn.Linear(dim, 32), nn.Linear(32, dim)
        self.activation = nn.SiLU()
        self.head = nn.Linear(dim, 3)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.embedding(input_ids)
        given = self.norm(x)
        x = x + self.down(self.activation(self.gate(given)) * self.up(given))
        return self.head((torch.tanh(x) * attention_mask[..., None]).sum(1))


def block(epsilon: float = 1e-6) -> Block:
    torch.manual_seed(0)
    model = Block(epsilon).eval()
    model.embedding.weight.data *= 0.25  # so small that an epsilon of 1e-6 is seen
    return model


def test_a_point_of_another_size_is_no_hypothesis() -> None:
    model = albert()
    a, b = (embgrad.gradients(model, BATCH, LABELS, at=at) for at in ("layer.0", "layer.1"))
    assert causes(embgrad.compare(a, b, models=(model, model))) == [("other-point",)]


def test_a_lookup_of_other_ids_than_the_models_is_told_apart_from_a_wrong_model() -> None:
    model = albert()
    a = embgrad.gradients(model, BATCH, LABELS, at="position")
    b = embgrad.gradients(albert(), BATCH, embgrad.Margin(0, 1), at="position")
    comparison = embgrad.compare(a, b, models=(model, None))
    assert any("taken at the lookup 'position', whose ids are not those" in note for note in comparison.notes)
    assert not any("another model" in note for note in comparison.notes)


def test_the_epsilon_that_is_right_is_named_and_not_one_that_is_nearly_so() -> None:
    model, other = block(), block(1e-2)
    a, b = (embgrad.gradients(one, BATCH, LABELS) for one in (model, other))
    for models, there in (((model, None), "0.01 in b"), ((None, other), "1e-06 in a")):
        comparison = embgrad.compare(a, b, models=models)
        assert causes(comparison)[0] == ("layer-norm-epsilon",)
        assert there in comparison.findings[0].text


@pytest.mark.parametrize("at", [2, 6, 15, 25])
def test_an_interrupt_leaves_the_weights(at: int) -> None:
    runs = -100

    class Interrupted(Block):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal runs
            runs += 1
            if runs == at:
                raise KeyboardInterrupt
            return super().forward(*args, **kwargs)

    torch.manual_seed(0)
    model = Interrupted().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    a = embgrad.gradients(model, BATCH, LABELS)
    b = replace(a, values=RANDOM.normal(size=a.shape).astype(np.float32))
    runs = 0
    with pytest.raises(KeyboardInterrupt):
        embgrad.compare(a, b, models=(model, None))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
