"""Independent references for gradients at a lookup (finite differences, PyTorch's own gradient of the table), and models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

#: Every id stands once, so that the gradient at a position is the table's gradient at its row.
IDS = np.array([[3, 1, 4, 15], [9, 2, 6, 5]])
IDS.flags.writeable = False
VOCAB = 20


def tensor(array: np.ndarray = IDS) -> torch.Tensor:
    return torch.tensor(array)


def finite_differences(loss: Callable[[], torch.Tensor], table: torch.Tensor, ids: np.ndarray = IDS) -> np.ndarray:
    """Central differences of a float64 loss over the rows that the ids look up, shape (example, position, dim)."""
    step = 1e-6
    gradient = np.zeros((*ids.shape, table.shape[1]))
    with torch.no_grad():
        for place in np.ndindex(*gradient.shape):
            entry = table.data[int(ids[place[:2]])]  # by `data`, which changes no version
            before = entry[place[2]].item()
            entry[place[2]] = before + step
            above = float(loss())
            entry[place[2]] = before - step
            gradient[place] = (above - float(loss())) / (2 * step)
            entry[place[2]] = before
    return gradient


def own_gradient(loss: Callable[[], torch.Tensor], table: torch.nn.Parameter, ids: np.ndarray = IDS) -> np.ndarray:
    """PyTorch's own gradient of the table, at the rows that the ids look up; leaves `grad` as it was."""
    kept, trainable = table.grad, table.requires_grad
    table.grad = None
    table.requires_grad_(True)
    loss().backward(inputs=[table])
    gradient = table.grad.to_dense() if table.grad.is_sparse else table.grad
    table.grad = kept
    table.requires_grad_(trainable)
    return gradient.to(torch.float64).numpy()[ids]


class Recomputing(torch.autograd.Function):
    """Runs a part of a model again in its backward pass, and that part's backward pass, as other libraries' checkpoints do."""

    @staticmethod
    def forward(ctx: Any, rows: Any, head: Any) -> Any:
        ctx.head = head
        ctx.save_for_backward(rows)
        return head(rows)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        rows = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            again = ctx.head(rows)
        torch.autograd.backward(again, gradient)
        return rows.grad, None


class Layer(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner, self.dropout = nn.Linear(4, 4), nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        return x + self.dropout(self.inner(x).tanh()), x


class Layers(nn.Module):
    """A table, three layers, each in a gradient checkpoint if wanted, and a head."""

    def __init__(self, reentrant: bool | None = None, *, shared: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4)
        layer = Layer(dropout)
        self.layers = nn.ModuleList([layer if shared else Layer(dropout) for _ in range(3)])
        self.head = nn.Linear(4, 3)
        self.reentrant = reentrant

    def embed(self, ids: Any) -> Any:
        return self.table(ids)

    def forward(self, input_ids: Any) -> Any:
        hidden = self.embed(input_ids)
        for layer in self.layers:
            call = layer if self.reentrant is None else partial(checkpoint, layer, use_reentrant=self.reentrant)
            hidden = call(hidden)[0]
        return self.head(hidden.tanh().mean(1))
