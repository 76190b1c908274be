"""A generated model in PyTorch: as modules, as functions of bare parameters, or as modules with PyTorch's fused attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.contract.properties.specs import EPSILON, FUNCTIONS, OTHERS, Block, Spec, weights_of

Weights = Mapping[str, torch.Tensor]


def build(spec: Spec) -> nn.Module:
    weights = {name: torch.tensor(value, dtype=getattr(torch, spec.dtype)) for name, value in weights_of(spec).items()}
    return (_Functions if spec.form == FUNCTIONS else _Modules)(spec, weights).eval()


class _Model(nn.Module):
    """The way through the tables, the blocks and the head."""

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
        hidden = self.rows("words", input_ids)
        if self.spec.scale is not None:
            hidden = hidden * self.spec.scale
        if self.spec.positions:
            hidden = hidden + self.rows("positions", torch.arange(input_ids.shape[1]))
        if self.spec.types:
            hidden = hidden + self.rows("segments", token_type_ids)
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        for number in range(len(self.spec.blocks)):
            hidden = _mean(hidden, real) if number == self.spec.pool else hidden
            hidden = self.block(number, hidden, real)
        return self.headed(_mean(hidden, real) if len(self.spec.blocks) == self.spec.pool else hidden)


class _Functions(_Model):
    """Bare parameters."""

    def __init__(self, spec: Spec, weights: Weights) -> None:
        super().__init__(spec)
        for name, value in weights.items():
            self.register_parameter(name.replace(".", "_"), nn.Parameter(value))

    def rows(self, table: str, indices: Any) -> Any:
        padding = self.spec.padding if table == "words" else None
        return functional.embedding(indices, getattr(self, table), padding_idx=padding)

    def block(self, number: int, hidden: Any, real: Any) -> Any:
        block = self.spec.blocks[number]
        names = [name for name in dict(self.named_parameters()) if name.startswith(f"blocks_{number}_")]
        made = _made(block.kind, {name.rpartition("_")[2]: getattr(self, name) for name in names}, hidden, real)
        return hidden + made if block.residual else made

    def headed(self, hidden: Any) -> Any:
        if self.spec.head == "tied":
            return hidden @ self.words.T
        return hidden if self.spec.head == "none" else hidden @ self.head_weight + self.head_bias


class _Modules(_Model):
    """Modules of `torch.nn`."""

    def __init__(self, spec: Spec, weights: Weights) -> None:
        super().__init__(spec)
        for name in ("words", "positions", "segments"):
            if name in weights:
                padding = spec.padding if name == "words" else None
                setattr(self, name, nn.Embedding.from_pretrained(weights[name], freeze=False, padding_idx=padding))
        self.blocks = nn.ModuleList(
            _Block(block, _inside(f"blocks.{number}.", weights), spec) for number, block in enumerate(spec.blocks)
        )
        if spec.head == "linear":
            self.head = _linear(weights["head.weight"], weights["head.bias"])
        elif spec.head == "tied":
            self.head = nn.Linear(spec.width, spec.vocab, bias=False)
            self.head.weight = self.words.weight

    def rows(self, table: str, indices: Any) -> Any:
        return getattr(self, table)(indices)

    def block(self, number: int, hidden: Any, real: Any) -> Any:
        return self.blocks[number](hidden, real)

    def headed(self, hidden: Any) -> Any:
        return hidden if self.spec.head == "none" else self.head(hidden)


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
            self.inner = _Attention(weights, fused=spec.form == OTHERS)
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


def _made(kind: str, weights: Weights, hidden: Any, real: Any) -> Any:
    if kind == "linear":
        return hidden @ weights["weight"] + weights["bias"]
    if kind == "norm":
        return functional.layer_norm(hidden, hidden.shape[-1:], weights["gain"], weights["shift"], EPSILON)
    if kind == "attention":
        return _attended(*(hidden @ weights[name] for name in ("query", "key", "value")), real)
    return torch.tanh(hidden) if kind == "tanh" else hidden - hidden.mean(0) / 2


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
