"""Searches and deletion of tokens in PyTorch models that read lengths: as a mask, and packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import embgrad
from tests.lengths_by_hand import IDS, MASK, TABLE, TOKENS, WEIGHT, expect_new_lengths


class Mean(torch.nn.Module):
    """The mean and the last of the first rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding.from_pretrained(torch.tensor(TABLE))

    def forward(self, text: Any, lengths: Any) -> Any:
        rows = self.table(text)
        real = (torch.arange(text.shape[1]) < lengths[:, None])[..., None]
        mean = ((rows * real).sum(1) / lengths[:, None]).tanh()
        return (mean + rows[torch.arange(len(rows)), lengths - 1]) @ torch.tensor(WEIGHT)


class Packed(torch.nn.Module):
    """A recurrent network over packed rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.cell, self.head = (
            torch.nn.Embedding(9, 4),
            torch.nn.GRU(4, 4, batch_first=True),
            torch.nn.Linear(4, 2),
        )

    def forward(self, text: Any, lengths: Any) -> Any:
        packed = pack_padded_sequence(self.table(text), lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.head(self.cell(packed)[1][0])


@pytest.mark.parametrize("name", ["lengths", "src_lengths"])
def test_lengths_follow_inserted_and_deleted_tokens(name: str) -> None:
    call = None if name == "lengths" else lambda model, inputs: model(inputs["input_ids"], inputs[name])
    expect_new_lengths(Mean().eval(), name, torch.tensor, call)


@pytest.mark.parametrize("edit", ["insert", "delete"])
def test_packed_rows_are_as_many_as_the_tokens(edit: str) -> None:
    model = Packed().eval()
    batch = embgrad.TokenBatch(IDS, MASK, extras={"lengths": torch.tensor(MASK.sum(1))}, tokens=TOKENS)
    found = embgrad.search(model, batch, embgrad.Logit(1), embgrad.methods.HotFlip(steps=2, **{edit: True}))
    assert not np.array_equal(found.batch.real.sum(1), MASK.sum(1)) or edit == "delete"
    for example, real in enumerate(found.batch.real):
        text = torch.tensor(found.batch.ids[example, real][None])
        np.testing.assert_allclose(
            found.objective[example], model(text, torch.tensor([text.shape[1]]))[0, 1].item(), atol=1e-6
        )
