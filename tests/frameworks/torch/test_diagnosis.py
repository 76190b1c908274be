"""Diagnoses of PyTorch models whose points, norms and failures the reference models do not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertForSequenceClassification, BertConfig, BertForSequenceClassification

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


def test_the_right_epsilon_is_named() -> None:
    model, other = block(), block(1e-2)
    a, b = (embgrad.gradients(each, BATCH, LABELS) for each in (model, other))
    for models, there in (((model, None), "0.01 in b"), ((None, other), "1e-06 in a")):
        comparison = embgrad.compare(a, b, models=models)
        assert causes(comparison)[0] == ("layer-norm-epsilon",)
        assert there in comparison.findings[0].text


class Plain(nn.Module):
    """Two linear layers with tanh between, and a head; b has a bias of zeros."""

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
    model.b.bias.data.zero_()
    for norm in (model.norm1, model.norm2):
        norm.weight.data.uniform_(0.5, 1.5)
    return model


def diagnosed(change: Any, *, both: bool = True, first: Any = None) -> embgrad.results.Comparison:
    """The healthy net against one that was changed."""
    model, other = plain(), plain()
    if first is not None:
        first(model)
        first(other)
    change(other)
    a, b = (embgrad.gradients(each, BATCH, LABELS) for each in (model, other))
    return embgrad.compare(a, b, models=(model, other if both else None))


def _exchange(a: Any, b: Any) -> None:
    a.data, b.data = b.data, a.data


def _rotate(model: Any) -> None:
    values = [layer.weight.data for layer in (model.a, model.b, model.c)]
    model.a.weight.data, model.b.weight.data, model.c.weight.data = values[1], values[2], values[0]


def _without_bias(model: Any) -> None:
    model.a.bias = None


def _symmetric(model: Any) -> None:
    model.b.weight.data = model.b.weight.data + model.b.weight.data.T


def _twice(module: Any) -> None:
    module.weight.data *= 2


@pytest.mark.parametrize(
    ("change", "cause", "text"),
    [
        (lambda model: model.a.bias.data.zero_(), "missing-bias", "b's model has zeros in a.bias"),
        (_without_bias, "missing-bias", "b's model has no a.bias"),
        (lambda model: model.b.bias.data.fill_(0.1), "missing-bias", "a's model has zeros in b.bias"),
        (lambda model: _exchange(model.a.weight, model.b.weight), "swapped-weights", "has a.weight and b.weight swapped"),
        (
            lambda model: (_exchange(model.a.weight, model.c.weight), _exchange(model.a.bias, model.c.bias)),
            "swapped-weights",
            "has a and c swapped",
        ),
        (lambda model: model.a.weight.data.copy_(model.b.weight), "different-weight", "has another a.weight"),
        (_rotate, "different-weight", "has another a.weight, another b.weight, another c.weight"),
        (lambda model: _twice(model.a), "different-weight", "has a.weight times 2"),
        (lambda model: model.a.weight.data.zero_(), "different-weight", "has zeros in a.weight"),
        (lambda model: model.load_state_dict({k: v.half() for k, v in model.state_dict().items()}), "half-weights",
         "b's model has 10 of its weights rounded to float16"),
        (lambda model: model.a.weight.data.copy_(model.a.weight.bfloat16()), "half-weights",
         "b's model has a.weight rounded to bfloat16"),
        (lambda model: setattr(model, "act2", nn.Identity()), "activation",
         "the activation of act2: no activation in b and tanh in a"),
        (lambda model: setattr(model, "act1", nn.ReLU()), "activation", "the activation of act1: ReLU in b and tanh in a"),
        (lambda model: setattr(model.norm2, "eps", 3e-2), "layer-norm-epsilon",
         "the epsilon of norm2: 0.03 in b, and 1e-05 in a"),
    ],
)  # fmt: skip
def test_a_cause_is_named_from_both_models(change: Any, cause: str, text: str) -> None:
    comparison = diagnosed(change)
    assert causes(comparison) == [(cause,)]
    assert str(comparison.findings[0]).startswith("100 % of the difference is")
    assert text in comparison.findings[0].text


@pytest.mark.parametrize(
    ("change", "cause", "text"),
    [
        (lambda model: model.a.bias.data.zero_(), "missing-bias", "b has zeros in a.bias, or lacks it"),
        (lambda model: [model.a.bias.data.zero_(), model.c.bias.data.zero_(), model.head.bias.data.zero_()],
         "missing-bias", "b has zeros in every bias"),
        (lambda model: setattr(model, "act2", nn.Identity()), "activation", "the activation of act2: no activation in b"),
        (lambda model: setattr(model.norm2, "eps", 1e-2), "layer-norm-epsilon", "the epsilon of norm2: 0.01 in b"),
        (lambda model: setattr(model.c.weight, "data", model.c.weight.data.T.contiguous()), "transposed-weight",
         "b has c.weight transposed"),
    ],
)  # fmt: skip
def test_a_cause_is_named_from_one_model(change: Any, cause: str, text: str) -> None:
    comparison = diagnosed(change, both=False)
    assert causes(comparison)[0] == (cause,)
    assert text in comparison.findings[0].text


@pytest.mark.parametrize("both", [True, False])
def test_a_symmetric_weight_is_not_transposed(both: bool) -> None:
    comparison = diagnosed(lambda model: _twice(model.a), both=both, first=_symmetric)
    assert not any({"transposed-weight", "swapped-weights"} & set(one) for one in causes(comparison))


@pytest.mark.parametrize("factor", [8**0.5, 0.5])
def test_a_wrong_scale_of_attention_is_named(factor: float) -> None:
    """√8 too much, as without the scale of a head of 8, and a half, as by the width of 4 heads in the place of a head's."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, num_labels=3
    )
    models = [BertForSequenceClassification(config).eval() for _ in range(2)]
    for parameter in models[0].parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    models[1].load_state_dict(models[0].state_dict())
    for layer in models[1].bert.encoder.layer:
        layer.attention.self.query.register_forward_hook(lambda _module, _given, output: output * factor)
    a, b = (embgrad.gradients(model, BATCH, LABELS) for model in models)
    spelled = "√8" if factor > 1 else "1/√4"
    for given in (tuple(models), (models[0], None)):
        comparison = embgrad.compare(a, b, models=given)
        assert causes(comparison) == [("attention-scale",)]
        assert f"attention's scores are {spelled} times as large in b" in comparison.findings[0].text
