"""Objects that people have in PyTorch: pipelines, encodings, nets that take one dict, and what `call=` is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline

import embgrad
from tests.frameworks.torch.checks import IDS, own_gradient

TEXTS = ["a gripping film", "the plot is thin but gripping"]
MASK = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])


@pytest.fixture
def bert() -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return BertForSequenceClassification(BertConfig(vocab_size=60, **sizes)).eval()


# Pipelines


@pytest.mark.parametrize("kind", ["text-classification", "feature-extraction"])
def test_a_pipeline_is_its_model_with_its_tokenizer(bert: Any, tokenizer: PreTrainedTokenizerFast, kind: str) -> None:
    pipe = pipeline(kind, model=bert, tokenizer=tokenizer, device="cpu")
    result = embgrad.gradients(pipe, TEXTS, embgrad.CrossEntropy([0, 1]))
    plain = embgrad.gradients(bert, TEXTS, embgrad.CrossEntropy([0, 1]), tokenizer=tokenizer)
    np.testing.assert_array_equal(result.values, plain.values)
    assert result.tokens == plain.tokens
    assert result.provenance["model"] == plain.provenance["model"]
    table = embgrad.tables.table_gradients(pipe, TEXTS, embgrad.Logit(0))
    np.testing.assert_array_equal(
        table.total, embgrad.tables.table_gradients(bert, plain_batch(tokenizer), embgrad.Logit(0)).total
    )


def plain_batch(tokenizer: PreTrainedTokenizerFast) -> embgrad.TokenBatch:
    return embgrad.encode(TEXTS, tokenizer)


# Nets that take one dict


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(20, 6)
        self.head = torch.nn.Linear(6, 3)
        self.double().eval()

    def read(self, features: dict[str, Any]) -> dict[str, Any]:
        mask = features.get("attention_mask", torch.ones_like(features["input_ids"]))[..., None]
        features["hidden"] = self.table(features["input_ids"]).tanh() * mask  # as sentence encoders do
        features["logits"] = self.head(features["hidden"].sum(1))
        return features


class Annotated(Net):
    def forward(self, input: dict[str, torch.Tensor], **kwargs: Any) -> dict[str, Any]:
        return self.read(input)


class Named(Net):
    def forward(self, batch):  # type: ignore[no-untyped-def]
        return self.read(batch)


class Chained(torch.nn.Sequential):
    """As a sentence encoder was before it had a `forward` of its own."""

    def __init__(self) -> None:
        super().__init__(Annotated())

    @property
    def table(self) -> Any:
        return self[0].table


@pytest.mark.parametrize("cls", [Annotated, Named, Chained])
@pytest.mark.parametrize("wrap", [lambda net: net, torch.nn.DataParallel, lambda net: torch.nn.Sequential(net)])
def test_a_net_that_takes_one_dict(cls: Any, wrap: Any) -> None:
    net = cls()
    native = {"input_ids": torch.tensor(IDS), "attention_mask": torch.tensor(MASK)}
    loss = lambda: net(dict(native))["logits"][:, 1].sum()  # noqa: E731
    result = embgrad.gradients(wrap(net), native, embgrad.Logit(1), check=True)
    np.testing.assert_allclose(result.values, own_gradient(loss, net.table.weight, IDS), rtol=1e-12, atol=1e-15)
    assert list(native) == ["input_ids", "attention_mask"]
    assert result.provenance["unused"] == []
