"""What ports written by hand in PyTorch are made of: weights of a reference in layers, attention, rotary positions and norms."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cross.ports.by_hand import KINDS, TABLES, State

GELUS: Final = {"exact": F.gelu, "tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu}


def parameter(values: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.tensor(np.ascontiguousarray(values)))


def linear(weight: np.ndarray, bias: np.ndarray | None = None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight = parameter(weight)
    if bias is not None:
        made.bias = parameter(bias)
    return made


def named_linear(state: State, name: str) -> nn.Linear:
    """Return a projection with the weight and the bias of a name."""
    return linear(*(state[f"{name}.{kind}"] for kind in KINDS))


def norm(state: State, name: str, eps: float) -> nn.LayerNorm:
    made = nn.LayerNorm(len(state[f"{name}.weight"]), eps)
    made.weight, made.bias = (parameter(state[f"{name}.{kind}"]) for kind in KINDS)
    return made


def embedding(values: np.ndarray) -> nn.Embedding:
    return nn.Embedding.from_pretrained(torch.tensor(values), freeze=False)


def tables(state: State) -> list[nn.Parameter]:
    """Return BERT's tables of words, positions and types."""
    return [parameter(state[f"embeddings.{name}_embeddings.weight"]) for name in TABLES]


def of_unit_square(x: Any, eps: float) -> Any:
    """Return features whose mean square is 1."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def rotated(x: Any, at: Any, base: float, *, interleaved: bool = False) -> Any:
    """Return turned heads, whose shape without features is that of the positions `at` or broadcasts to it."""
    angles = at.float()[..., None] * base ** (-torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    turned = (a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin())
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


def bucket(apart: Any, buckets: int, longest: int, *, both: bool) -> Any:
    """Return the buckets of distances, those ahead in the upper half if keys of both sides have some."""
    upper, count = ((apart > 0).long() * (buckets // 2), buckets // 2) if both else (0, buckets)
    apart = apart.abs() if both else (-apart).clamp(min=0)
    exact = count // 2
    far = exact + (torch.log(apart.clamp(min=1) / exact) / math.log(longest / exact) * (count - exact)).long()
    return upper + torch.where(apart < exact, apart, far.clamp(max=count - 1))


def before(length: int, window: int | None = None) -> Any:
    """Return whether queries see keys that are not behind them, and in a window if there is one, (query, key)."""
    apart = torch.arange(length)[:, None] - torch.arange(length)
    return apart >= 0 if window is None else (apart >= 0) & (apart < window)
