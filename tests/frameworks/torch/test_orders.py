"""Models of transformers and sentence-transformers that look up the ids in part, or in one packed row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers.models.idefics.modeling_idefics import IdeficsDecoupledEmbedding

import embgrad
from tests.unit.refusals import refused


def packed(model: Any, inputs: Any) -> Any:
    real = inputs["attention_mask"].bool()
    counts = real.sum(1)
    return model({"input_ids": inputs["input_ids"][real], "offsets": counts.cumsum(0) - counts})


def test_a_static_embedding_takes_one_row_of_ids() -> None:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "film": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu")
    batch = embgrad.TokenBatch([[1, 2], [2, 0]], [[1, 1], [1, 0]])
    objective = embgrad.Projection([1.0, 2.0, 3.0, 4.0], output="sentence_embedding")
    result = embgrad.gradients(model, batch, objective, call=packed)
    whole = np.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_allclose(result.values, [[whole / 2, whole / 2], [whole, 0 * whole]])  # a bag is a mean
    assert result.ids.tolist() == batch.ids.tolist()


def test_a_table_of_added_tokens_beside_the_table() -> None:
    torch.manual_seed(0)
    embedding = IdeficsDecoupledEmbedding(20, 3, 4, partially_freeze=False)
    torch.nn.init.normal_(embedding.additional_embedding.weight)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb = embedding

        def forward(self, input_ids: Any) -> Any:
            return self.emb(input_ids).tanh().sum(1)

    model, batch = Net(), embgrad.TokenBatch([[1, 21, 9]], tokens=[["one", "added", "nine"]])
    with refused(
        embgrad.errors.PointNotReachedError, "'emb' for the rows, or 'emb:output' where a module goes on to change them"
    ):
        embgrad.gradients(model, batch, embgrad.Logit(1))
    result = embgrad.gradients(model, batch, embgrad.Logit(1), at="emb:output")
    rows = torch.cat([embedding.weight[[1]], embedding.additional_embedding.weight[[1]], embedding.weight[[9]]])
    np.testing.assert_allclose(result.values[0, :, 1], (1 - rows.tanh() ** 2)[:, 1].detach(), atol=1e-6)
    assert result.tokens == batch.tokens
    table = embgrad.gradients(model, batch, embgrad.Logit(1), at="emb")
    assert table.ids.tolist() == [[1, 0, 9]]
    assert table.tokens is None
