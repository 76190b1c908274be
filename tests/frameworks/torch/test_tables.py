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
from tests.frameworks.torch.architectures import ARCHITECTURES, IDS, MASK, TYPES, USUAL
from tests.frameworks.torch.checks import IDS as SMALL_IDS
from tests.frameworks.torch.checks import VOCAB

LABELS = np.where(MASK, IDS[:, ::-1], -100)


def tied(name: str) -> tuple[Any, str]:
    torch.manual_seed(2)
    if name == "Bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(**USUAL)), "bert.embeddings.word_embeddings.weight"
    config = transformers.GPT2Config(**ARCHITECTURES["GPT2"].settings, n_layer=2)
    return transformers.GPT2LMHeadModel(config), "transformer.wte.weight"


HEADS = {"Bert": "cls.predictions.decoder.weight", "GPT2": "lm_head.weight"}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", HEADS)
def test_a_language_model_whose_head_is_the_table(name: str, frozen: bool) -> None:
    model, path = tied(name)
    model = model.double().eval()
    batch = {"input_ids": IDS, "attention_mask": MASK}
    loss = lambda out, labels: nn.functional.cross_entropy(  # noqa: E731
        out.logits.flatten(0, 1), torch.tensor(labels).flatten(), reduction="sum"
    )
    table = model.get_parameter(path)
    native = {key: torch.tensor(value) for key, value in batch.items()}
    own = torch.autograd.grad(loss(model(**native), LABELS), table)[0].numpy()
    apart = tied(name)[0].double().eval()
    apart.set_output_embeddings(nn.Linear(16, 40, bias=False).double())
    apart.load_state_dict(model.state_dict(), strict=False)
    apart.get_output_embeddings().weight = nn.Parameter(table.detach().clone())
    if name == "Bert":
        apart.get_output_embeddings().bias = model.get_output_embeddings().bias
    out = apart(**native)
    ways = torch.autograd.grad(
        loss(out, LABELS), [apart.get_input_embeddings().weight, apart.get_output_embeddings().weight]
    )
    table.requires_grad_(not frozen)
    found = embgrad.table_gradients(model, batch, embgrad.CrossEntropy(LABELS))
    assert table.requires_grad is not frozen
    padding = found.padding
    kept = np.arange(40) != (-1 if padding is None else padding)
    np.testing.assert_allclose(found.lookup[kept], ways[0].numpy()[kept], rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(found.head, ways[1].numpy(), rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(found.total[kept], own[kept], rtol=1e-9, atol=1e-13)
    assert found.names == (path, HEADS[name])
    assert found.tied
    assert (found.own is None) is frozen
    assert found.apart is None if frozen else found.apart < 1e-12  # type: ignore[operator]


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


def test_parameters_of_their_own_that_share_the_memory() -> None:
    """One is all of it, one its transpose, one a part."""
    model = net(
        lambda net, hidden: hidden @ net.whole.T + hidden @ net.turned + (hidden @ net.part.T).sum(1, keepdim=True)
    )
    memory = model.table.weight.data
    model.whole, model.turned, model.part = nn.Parameter(memory), nn.Parameter(memory.T), nn.Parameter(memory[3:7])
    ids = torch.tensor(SMALL_IDS)
    moved = memory.clone().requires_grad_()
    hidden = model.inner(nn.functional.embedding(ids, memory)).tanh().mean(1)
    head = hidden @ moved.T + hidden @ moved.T + (hidden @ moved[3:7].T).sum(1, keepdim=True)
    (expected,) = torch.autograd.grad(head[:, 1].sum(), moved)
    found = embgrad.table_gradients(model, SMALL_IDS, embgrad.Logit(1))
    np.testing.assert_allclose(found.head, expected.numpy(), rtol=1e-12, atol=1e-14)
    assert found.names == ("table.weight", "whole", "turned", "part")
    assert found.own is None  # PyTorch keeps a gradient for each of them, of its own shape
    del model.turned, model.part
    model.head = lambda net, hidden: hidden @ net.whole.T
    alike = embgrad.table_gradients(model, SMALL_IDS, embgrad.Logit(1))
    assert alike.names == ("table.weight", "whole")
    assert alike.apart is not None
    assert alike.apart < 1e-12


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_an_objective_that_differentiates_by_the_table(alone: bool, tied: bool) -> None:
    def penalised(out: Any) -> Any:
        by = [model.table.weight] if alone else list(model.parameters())
        slopes = torch.autograd.grad(out.pow(2).sum(), by, create_graph=True, allow_unused=not alone)
        return out[:, 0] + sum(one.pow(2).sum() for one in slopes if one is not None)

    model = net(lambda net, hidden: hidden @ net.table.weight.T if tied else hidden)
    found = embgrad.table_gradients(model, SMALL_IDS, penalised)
    own = torch.autograd.grad(penalised(model(torch.tensor(SMALL_IDS))).sum(), model.table.weight)[0].numpy()
    np.testing.assert_allclose(found.total, own, rtol=1e-9, atol=1e-12 * np.abs(own).max())
    result = embgrad.gradients(model, SMALL_IDS, penalised)
    np.testing.assert_allclose(found.lookup, result.table().to_dense(), rtol=1e-9, atol=1e-12 * np.abs(own).max())
    assert found.head.any() == tied


@pytest.mark.parametrize("options", [{"sparse": True}, {"padding_idx": 4}, {"max_norm": 1.0}])
def test_tables_of_all_kinds(options: dict[str, Any]) -> None:
    model = net(lambda net, hidden: hidden @ net.table.weight.T, **options)
    before = model.table.weight.detach().clone()
    if "sparse" in options:  # PyTorch cannot add a sparse gradient's and a dense one's own
        model.head = lambda net, hidden: hidden
    found = embgrad.table_gradients(model, SMALL_IDS, embgrad.Logit(1))
    assert torch.equal(model.table.weight, before)
    assert found.padding == options.get("padding_idx")
    assert found.apart is not None
    assert found.apart < 1e-12
    assert found.names == ("table.weight",)
    assert found.lookup[4].any()


def test_a_table_that_is_no_parameter() -> None:
    model = net(lambda net, hidden: hidden)
    table = model.table.weight.detach()
    del model.table
    model.table = lambda x: nn.functional.embedding(x, model.inner(table))
    with pytest.raises(embgrad.PointError, match=r"is no parameter of the model: it is computed in the forward pass"):
        embgrad.table_gradients(model, SMALL_IDS, embgrad.Logit(1))


def test_all_names_of_a_shared_table() -> None:
    one = ARCHITECTURES["T5"]
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**one.settings, num_layers=2)).double().eval()
    found = embgrad.table_gradients(model, one.batch(), lambda out: out.logits[:, -1].logsumexp(-1))
    assert found.lookups == 2
    assert found.names[0] == "shared.weight"
    assert set(found.names) == {
        "shared.weight",
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "lm_head.weight",
    }
    assert found.apart is not None
    assert found.apart < 1e-10


def test_types_and_positions_have_ledgers_too() -> None:
    one = ARCHITECTURES["Bert"]
    model = one.build()
    for role, path in (("type", "token_type_embeddings"), ("position", "position_embeddings")):
        found = embgrad.table_gradients(
            model, {"input_ids": IDS, "token_type_ids": TYPES}, lambda out: out[0].sum((1, 2)), at=role
        )
        assert found.names == (f"embeddings.{path}.weight",)
        assert found.apart is not None
