"""PyTorch models that carry a state from call to call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.company import expect_state_of_one_number

IDS = np.array([[5, 6, 2], [7, 8, 1], [3, 3, 4]])


class OfOneNumber(nn.Module):
    """A sum of rows that begins with what it kept, in a pass of as many examples alone."""

    def __init__(self, way: str, count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)
        self.way = way
        state = torch.randn(count, 4)
        if way in ("buffer", "written buffer"):
            self.register_buffer("state", state)
        else:
            self.state = [state] if way == "list" else state

    def forward(self, ids: Any) -> Any:
        rows, state = self.table(ids).sum(1), self.state[0] if self.way == "list" else self.state
        if len(state) != len(ids):
            return self.head(rows.tanh())
        out = (rows + state.clone()).tanh()
        if self.way == "list":
            self.state[:] = [out.detach()]
        elif self.way.startswith("written"):
            state.copy_(out.detach())
        else:
            self.state = out.detach()
        return self.head(out)


@pytest.mark.parametrize("way", ["attribute", "list", "buffer", "written", "written buffer"])
def test_a_state_that_passes_of_one_number_of_examples_write(way: str) -> None:
    expect_state_of_one_number(lambda count: OfOneNumber(way, count), IDS)
