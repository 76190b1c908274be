"""Embedding bags, and sentence encoders that make their own inputs of texts, beside autograd by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import embgrad

TEXTS = ["a film", "film", "a a film"]
DIRECTION = np.arange(1.0, 5.0)
POOLED = embgrad.Projection(DIRECTION, output="pooled")


class Bag(torch.nn.Module):
    """PyTorch's tutorial on the classification of texts."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.bag, self.head = torch.nn.EmbeddingBag(10, 4, mode=mode), torch.nn.Linear(4, 2)

    def forward(self, text: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.head(self.bag(text, offsets).tanh())


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_an_embedding_bag(mode: str) -> None:
    torch.manual_seed(0)
    model = Bag(mode).double()
    batch = {"text": torch.tensor([1, 2, 3, 4, 4, 5]), "offsets": torch.tensor([0, 2, 5])}
    result = embgrad.gradients(model, batch, embgrad.Logit(1), check=True)
    assert result.ids.tolist() == [[1, 2, 0], [3, 4, 4], [5, 0, 0]]
    rows = [model.bag.weight.detach()[ids].requires_grad_() for ids in (torch.tensor([1, 2]), torch.tensor([3, 4, 4]))]
    for example, own in enumerate(rows):
        pooled = {"sum": own.sum(0), "mean": own.mean(0), "max": own.max(0).values}[mode]
        model.head(pooled.tanh())[1].backward()
        table = np.zeros((10, 4))
        np.add.at(table, result.ids[example, : len(own)], own.grad.numpy())
        np.testing.assert_allclose(result.per_example()[example].to_dense(), table, atol=1e-14)
    model(**batch)[:, 1].sum().backward()
    np.testing.assert_allclose(result.table().to_dense(), model.bag.weight.grad.numpy(), atol=1e-14)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = embgrad.attribute(model, batch, embgrad.Logit(1), embgrad.methods.IntegratedGradients(200))
    assert np.abs(made.delta).max() < 1e-3  # type: ignore[arg-type]


def test_a_static_embedding() -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "a": 1, "film": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu").eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        result = embgrad.gradients(model, TEXTS, POOLED)
    real = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1]])
    np.testing.assert_array_equal(result.mask, real)
    np.testing.assert_allclose(result.values, (real / real.sum(1, keepdims=True))[..., None] * DIRECTION, rtol=1e-6)
    np.testing.assert_allclose(result.objective, model.encode(TEXTS) @ DIRECTION, rtol=1e-5)
    assert result.tokens[2] == ("a", "a", "film")
    made = embgrad.attribute(model, TEXTS, POOLED, "input_x_gradient")
    np.testing.assert_allclose(made.scores.sum(1), made.objective, rtol=1e-5)
    one = embgrad.gradients(model, TEXTS, POOLED, batch_size=1)
    np.testing.assert_allclose(one.values, result.values, rtol=1e-6)
    with pytest.raises(
        embgrad.errors.BatchError, match=r"offsets is .*: expected the index at which each example begins"
    ):
        embgrad.gradients(model, ["a", ""], POOLED)
