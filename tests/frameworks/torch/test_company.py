"""PyTorch models that carry a state from call to call, and objectives of several examples."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.company import expect_of_own_number, expect_state_of_one_number

IDS = np.array([[5, 6, 2], [7, 8, 1], [3, 3, 4]])


class Carry(nn.Module):
    """A GRU whose state goes on from call to call, kept in one of several ways, and reset for another number of examples."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.rnn = nn.Embedding(9, 4), nn.GRU(4, 4, batch_first=True)
        self.way = way
        self.kept: Any = {"attribute": None, "dict": {}, "deque": deque(maxlen=1), "written": torch.zeros(1, 3, 4)}.get(
            way
        )
        if way == "buffer":
            self.register_buffer("memory", torch.zeros(1, 3, 4))

    @property
    def state(self) -> Any:
        if self.way == "buffer":
            return self.memory
        if self.way == "dict":
            return self.kept.get("state")
        return (self.kept[0] if self.kept else None) if self.way == "deque" else self.kept

    @state.setter
    def state(self, value: Any) -> None:
        if self.way == "buffer":
            self.memory = value
        elif self.way == "written" and value.shape == self.state.shape:
            self.state.copy_(value)
        elif self.way == "dict":
            self.kept["state"] = value
        elif self.way == "deque":
            self.kept.append(value)
        elif self.way == "attribute":
            self.kept = value

    def forward(self, ids: Any) -> Any:
        before = self.state
        if before is None or before.shape[1] != len(ids):
            before = torch.zeros(1, len(ids), 4)
        out, state = self.rnn(self.table(ids), before.clone())
        self.state = state.detach()
        return out[:, -1]


@pytest.mark.parametrize("way", ["attribute", "dict", "deque", "buffer", "written"])
def test_a_state_that_goes_on_from_call_to_call(way: str) -> None:
    model = Carry(way).eval()
    with torch.no_grad():
        model(torch.tensor(IDS[::-1].copy()))
        state = model.state.clone()
        own = model(torch.tensor(IDS))[:, 1].numpy()
        model.state = state
    # A state that is written in place stays as it is in a pass of another number of examples.
    expect_of_own_number(model, IDS, own, cut=way != "written")
    assert torch.equal(model.state, state)


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
