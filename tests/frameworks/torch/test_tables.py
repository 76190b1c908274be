"""The ledger of a table's gradient against PyTorch's own, on tied models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import embgrad
from tests.frameworks.torch.architectures import ARCHITECTURES, IDS, MASK, USUAL
from tests.frameworks.torch.checks import IDS as SMALL_IDS
from tests.frameworks.torch.checks import VOCAB

LABELS = np.where(MASK, IDS[:, ::-1], -100)


TIED = {
    "BertForMaskedLM": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    "GPT2LMHeadModel": ("transformer.wte.weight", "lm_head.weight"),
}


def tied(name: str) -> Any:
    torch.manual_seed(2)
    bert = name == "BertForMaskedLM"
    settings = USUAL if bert else {**ARCHITECTURES["GPT2"].settings, "n_layer": 2}
    config = getattr(transformers, "BertConfig" if bert else "GPT2Config")(**settings)
    return getattr(transformers, name)(config).double().eval()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", TIED)
def test_table_gradients_of_a_language_model_with_a_tied_head(name: str, frozen: bool) -> None:
    model, names = tied(name), TIED[name]
    batch = {"input_ids": IDS, "attention_mask": MASK}
    tensors = {key: torch.tensor(value) for key, value in batch.items()}

    def gradients(model: Any, *tables: Any) -> list[np.ndarray]:
        logits, labels = model(**tensors).logits.flatten(0, 1), torch.tensor(LABELS).flatten()
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        return [gradient.numpy() for gradient in torch.autograd.grad(loss, tables)]

    table = model.get_parameter(names[0])
    (total,) = gradients(model, table)
    untied = tied(name)
    untied.get_output_embeddings().weight = nn.Parameter(table.detach().clone())
    lookup, head = gradients(untied, untied.get_input_embeddings().weight, untied.get_output_embeddings().weight)
    table.requires_grad_(not frozen)
    result = embgrad.tables.table_gradients(model, batch, embgrad.CrossEntropy(LABELS))
    assert table.requires_grad is not frozen
    kept = np.arange(40) != (-1 if result.padding is None else result.padding)
    np.testing.assert_allclose(result.lookup[kept], lookup[kept], rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(result.head, head, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(result.total[kept], total[kept], rtol=1e-9, atol=1e-13)
    assert result.names == names
    assert result.tied
    assert (result.own is None) is frozen
    assert result.apart is None if frozen else result.apart < 1e-12  # type: ignore[operator]


class Net(nn.Module):
    def __init__(self, head: Callable[[Any, Any], Any], **embedding: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4, **embedding)
        self.inner = nn.Linear(4, 4)
        self.head = head

    def forward(self, x: Any) -> Any:
        return self.head(self, self.inner(self.table(x)).tanh().mean(1))


def net(head: Callable[[Any, Any], Any], **embedding: Any) -> Any:
    torch.manual_seed(0)
    return Net(head, **embedding).double().eval()


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_an_objective_that_differentiates_by_the_table(alone: bool, tied: bool) -> None:
    def penalised(out: Any) -> Any:
        by = [model.table.weight] if alone else list(model.parameters())
        slopes = torch.autograd.grad(out.pow(2).sum(), by, create_graph=True, allow_unused=not alone)
        return out[:, 0] + sum(slope.pow(2).sum() for slope in slopes if slope is not None)

    model = net(lambda net, hidden: hidden @ net.table.weight.T if tied else hidden)
    results = embgrad.tables.table_gradients(model, SMALL_IDS, penalised)
    expected = torch.autograd.grad(penalised(model(torch.tensor(SMALL_IDS))).sum(), model.table.weight)[0].numpy()
    np.testing.assert_allclose(results.total, expected, rtol=1e-9, atol=1e-12 * np.abs(expected).max())
    result = embgrad.gradients(model, SMALL_IDS, penalised)
    np.testing.assert_allclose(
        results.lookup, result.table().to_dense(), rtol=1e-9, atol=1e-12 * np.abs(expected).max()
    )
    assert results.head.any() == tied


@pytest.mark.parametrize("options", [{"sparse": True}, {"padding_idx": 4}, {"max_norm": 1.0}])
def test_tables_of_all_kinds(options: dict[str, Any]) -> None:
    model = net(lambda net, hidden: hidden @ net.table.weight.T, **options)
    before = model.table.weight.detach().clone()
    if "sparse" in options:  # PyTorch cannot add a sparse gradient's and a dense one's own
        model.head = lambda net, hidden: hidden
    result = embgrad.tables.table_gradients(model, SMALL_IDS, embgrad.Logit(1))
    assert torch.equal(model.table.weight, before)
    assert result.padding == options.get("padding_idx")
    assert result.apart is not None
    assert result.apart < 1e-12
    assert result.names == ("table.weight",)
    assert result.lookup[4].any()
