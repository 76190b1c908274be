"""Diagnoses of PyTorch models whose points, norms and failures the reference models do not have."""

from __future__ import annotations

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


def causes(comparison: embgrad.results.Comparison) -> list[tuple[str, ...]]:
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


def test_a_point_of_another_size_is_another_point() -> None:
    model = albert()
    a, b = (embgrad.gradients(model, BATCH, LABELS, at=at) for at in ("layer.0", "layer.1"))
    assert causes(embgrad.compare(a, b, models=(model, model))) == [("other-point",)]


def test_a_lookup_of_other_ids_is_not_taken_for_another_model() -> None:
    model = albert()
    a = embgrad.gradients(model, BATCH, LABELS, at="position")
    b = embgrad.gradients(albert(), BATCH, embgrad.Margin(0, 1), at="position")
    comparison = embgrad.compare(a, b, models=(model, None))
    assert any("taken at the lookup 'position', whose ids are not those" in note for note in comparison.notes)
    assert not any("another model" in note for note in comparison.notes)


class Plain(nn.Module):
    """Linear layers with tanh and norms between, and a head."""

    def __init__(self, dim: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, dim)
        self.a, self.b, self.c, self.head = *(nn.Linear(dim, dim) for _ in range(3)), nn.Linear(dim, 3)
        self.act1, self.act2, self.norm1, self.norm2 = nn.Tanh(), nn.Tanh(), nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.norm1(self.act1(self.a(self.embedding(input_ids))))
        x = self.norm2(self.c(self.act2(self.b(x))))
        return self.head((torch.sigmoid(x) * attention_mask[..., None]).sum(1))


def plain() -> Plain:
    torch.manual_seed(3)
    model = Plain().eval()
    for norm in (model.norm1, model.norm2):
        norm.weight.data.uniform_(0.5, 1.5)
    return model


@pytest.mark.parametrize("both", [(True, False), (False, True)])
def test_no_cause_inside_a_model_is_guessed_from_one(both: tuple[bool, bool]) -> None:
    model, other = plain(), plain()
    other.a.bias.data.zero_()
    a, b = (embgrad.gradients(each, BATCH, LABELS) for each in (model, other))
    comparison = embgrad.compare(
        a, b, models=tuple(m if given else None for m, given in zip((model, other), both, strict=True))
    )
    assert comparison.findings == ()
    assert comparison.advice.endswith("Pass both models, models=(model_a, model_b), to find causes inside them.")


def test_the_models_request_and_result_are_told_apart() -> None:
    """An epsilon in b's model, a label each +1 in b's request, and a mean in what became of it."""
    model, other = plain(), plain()
    other.norm2.eps = 3e-2
    a, b = embgrad.gradients(model, BATCH, LABELS), embgrad.gradients(other, BATCH, embgrad.CrossEntropy([1, 2, 0]))
    b.values[...] /= 3
    best = embgrad.compare(a, b, models=(model, other)).findings[0]
    assert set(best.causes) == {"layer-norm-epsilon", "label-shift", "mean-over-batch"}
    assert best.explained == pytest.approx(1.0)
    assert best.text == (
        "epsilon 1e-05 in a and 0.03 in b, at norm2, and that b's labels are each +1, and a factor 0.333333 = 1/3: b took the "
        "mean over the batch of 3 examples"
    )


def test_a_model_that_draws_random_numbers_is_named() -> None:
    model, other = plain(), plain()
    other.act2 = _Dropping()
    a, b = (embgrad.gradients(each, BATCH, LABELS) for each in (model, other))
    for models in ((model, other), (None, other)):
        comparison = embgrad.compare(a, b, models=models)
        assert causes(comparison)[0] == ("dropout",)
    assert "b's model gives another gradient each time it is run, in evaluation mode too" in comparison.findings[0].text


class _Dropping(nn.Module):
    def forward(self, x: Any) -> Any:
        return nn.functional.dropout(torch.tanh(x), 0.2, training=True)
