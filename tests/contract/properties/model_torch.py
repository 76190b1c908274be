"""A generated model in PyTorch, the alternative with PyTorch's fused attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.contract.properties.specs import EPSILON, Block, Spec, weights_of

Weights = Mapping[str, torch.Tensor]


def build(spec: Spec) -> nn.Module:
    weights = {name: torch.tensor(value, dtype=getattr(torch, spec.dtype)) for name, value in weights_of(spec).items()}
    return _Model(spec, weights).eval()


class _Model(nn.Module):
    def __init__(self, spec: Spec, weights: Weights) -> None:
        super().__init__()
        self.spec = spec
        for name in ("words", "positions", "segments"):
            if name in weights:
                padding = spec.padding if name == "words" else None
                setattr(self, name, nn.Embedding.from_pretrained(weights[name], freeze=False, padding_idx=padding))
        self.blocks = nn.ModuleList(
            _Block(block, _inside(f"blocks.{number}.", weights), spec) for number, block in enumerate(spec.blocks)
        )
        self.head: nn.Module = nn.Identity()
        if spec.head == "linear":
            self.head = _linear(weights["head.weight"], weights["head.bias"])
        elif spec.head == "tied":
            self.head = nn.Linear(spec.width, spec.vocab, bias=False)
            self.head.weight = self.words.weight

    def forward(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
        hidden = self.words(input_ids)
        if self.spec.scale is not None:
            hidden = hidden * self.spec.scale
        if self.spec.positions:
            hidden = hidden + self.positions(torch.arange(input_ids.shape[1]))
        if self.spec.types:
            hidden = hidden + self.segments(token_type_ids)
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        for number, block in enumerate(self.blocks):
            hidden = _mean(hidden, real) if number == self.spec.pool else hidden
            hidden = block(hidden, real)
        return self.head(_mean(hidden, real) if len(self.blocks) == self.spec.pool else hidden)


class _Block(nn.Module):
    def __init__(self, block: Block, weights: Weights, spec: Spec) -> None:
        super().__init__()
        self.residual = block.residual
        self.inner: nn.Module
        if block.kind == "linear":
            self.inner = _linear(weights["weight"], weights["bias"])
        elif block.kind == "norm":
            self.inner = nn.LayerNorm(spec.width, eps=EPSILON)
            self.inner.weight, self.inner.bias = nn.Parameter(weights["gain"]), nn.Parameter(weights["shift"])
        elif block.kind == "attention":
            self.inner = _Attention(weights, fused=spec.alternative)
        else:
            self.inner = nn.Tanh() if block.kind == "tanh" else _Mix()

    def forward(self, hidden: Any, real: Any) -> Any:
        made = self.inner(hidden, real) if isinstance(self.inner, _Attention) else self.inner(hidden)
        return hidden + made if self.residual else made


class _Attention(nn.Module):
    def __init__(self, weights: Weights, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.query, self.key, self.value = (_linear(weights[name], None) for name in ("query", "key", "value"))

    def forward(self, hidden: Any, real: Any) -> Any:
        query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        if self.fused:
            return functional.scaled_dot_product_attention(query, key, value, attn_mask=(real > 0)[:, None, :])
        return _attended(query, key, value, real)


class _Mix(nn.Module):
    def forward(self, hidden: Any) -> Any:
        return hidden - hidden.mean(0) / 2


def _attended(query: Any, key: Any, value: Any, real: Any) -> Any:
    scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
    return scores.masked_fill(real[:, None, :] == 0, -torch.inf).softmax(-1) @ value


def _mean(hidden: Any, real: Any) -> Any:
    real = real.to(hidden.dtype)[..., None]
    return (hidden * real).sum(1) / real.sum(1)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> nn.Linear:
    layer = nn.Linear(*weight.shape, bias=bias is not None, dtype=weight.dtype)
    layer.weight = nn.Parameter(weight.T.contiguous())
    if bias is not None:
        layer.bias = nn.Parameter(bias)
    return layer


def _inside(prefix: str, weights: Weights) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
