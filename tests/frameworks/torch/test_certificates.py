"""Certificates of PyTorch's models: tables whose gradient is no sum, hooks, autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import embgrad

IDS = np.random.default_rng(0).integers(1, 30, (5, 6))
OBJECTIVE = embgrad.CrossEntropy([0, 1, 2, 1, 0])


class Net(torch.nn.Module):
    """A small classifier; `turn` is what becomes of the gradient of its rows on the way up."""

    def __init__(self, turn: Callable[[Any], Any] = lambda g: g, detached: bool = False, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(30, 8, **options)
        self.layer = torch.nn.Linear(8, 16)
        self.head = torch.nn.Linear(16, 3)
        self.turn, self.detached = turn, detached
        self.kinked = False

    def forward(self, input_ids: Any) -> Any:
        table = self.table.weight.detach()
        rows = torch.nn.functional.embedding(input_ids, table) if self.detached else self.table(input_ids)
        hidden = self.layer(_Turned.apply(rows, self.turn))
        return self.head(torch.relu(hidden).amax(1) if self.kinked else torch.tanh(hidden).mean(1))


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, turn: Any) -> Any:
        ctx.turn = turn
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return ctx.turn(g), None


def test_a_detached_table_is_refused() -> None:
    with pytest.raises(embgrad.errors.CertificationError, match=r"of the table differ by .* is detached from a lookup"):
        embgrad.gradients(Net(detached=True).double().eval(), IDS, OBJECTIVE, check=True)


def test_a_hook_that_changes_a_tables_gradient_is_refused() -> None:
    model = Net().double().eval()
    model.table.weight.register_hook(lambda g: 1.5 * g)
    with pytest.raises(
        embgrad.errors.CertificationError, match=r"the framework's own gradient of the table differ by 0\.33"
    ):
        embgrad.gradients(model, IDS, OBJECTIVE, check=True)
