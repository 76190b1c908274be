"""Searches and deletion of tokens in a PyTorch model that reads lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.lengths_by_hand import TABLE, WEIGHT, expect_new_lengths


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


@pytest.mark.parametrize("name", ["lengths", "src_lengths"])
def test_lengths_follow_inserted_and_deleted_tokens(name: str) -> None:
    call = None if name == "lengths" else lambda model, inputs: model(inputs["input_ids"], inputs[name])
    expect_new_lengths(Mean().eval(), name, torch.tensor, call)
