"""A port written by hand in PyTorch: OLMo 2 in functions with PyTorch's fused norms and attention, as inference code has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


def rope(x: Any, base: float) -> Any:
    """Return turned heads (batch, head, position, feature), by complex numbers."""
    half = x.shape[-1] // 2
    turns = torch.outer(torch.arange(x.shape[-2]).float(), base ** (-torch.arange(half) / half))
    pairs = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous())
    turned = pairs * torch.polar(torch.ones_like(turns), turns)
    return torch.cat([turned.real, turned.imag], -1)


class Layer(nn.Module):
    def __init__(self, state: State, name: str, config: Any, s: Any) -> None:
        super().__init__()
        self.heads, self.groups, self.s = config.num_attention_heads, config.num_key_value_heads, s
        self.size = config.hidden_size // self.heads

        def held(part: str) -> np.ndarray:
            values = state[f"{'layers.0' if s.held == 'again' else name}.{part}.weight"]
            if s.held == "other keys" and part == "self_attn.k_proj":
                return np.random.default_rng(0).normal(0, values.std(), values.shape).astype(values.dtype)
            return values.astype(np.float16).astype(values.dtype) if s.held == "rounded" else values

        def weight(*names: str) -> nn.Parameter:
            return nn.Parameter(torch.tensor(np.concatenate([held(part) for part in names])))

        self.qkv_w = weight(*(f"self_attn.{part}_proj" for part in s.order))
        self.out_w = weight("self_attn.o_proj")
        self.gate_up_w = weight(*(f"mlp.{part}_proj" for part in s.fused))
        self.down_w = weight("mlp.down_proj")
        self.q_norm_w, self.k_norm_w = weight("self_attn.q_norm"), weight("self_attn.k_norm")
        self.attn_norm_w, self.ff_norm_w = weight("post_attention_layernorm"), weight("post_feedforward_layernorm")

    def norm(self, x: Any, weight: Any) -> Any:
        if self.s.half:
            return F.rms_norm(x.bfloat16(), (x.shape[-1],), eps=self.s.eps).to(x.dtype) * weight
        return F.rms_norm(x, (x.shape[-1],), weight, self.s.eps)

    def split(self, x: Any) -> Any:
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def by_head(self, x: Any, weight: Any) -> Any:
        """Return heads that are normalised each by itself."""
        unit = F.rms_norm(x.unflatten(-1, (-1, self.size)), (self.size,), None, self.s.eps)
        return unit.flatten(-2) * weight

    def attention(self, x: Any) -> Any:
        s, wide, narrow = self.s, self.heads * self.size, self.groups * self.size
        q, k, v = F.linear(x, self.qkv_w).split([wide, narrow, narrow], -1)
        if s.qk_norm == "all":
            q, k = self.norm(q, self.q_norm_w), self.norm(k, self.k_norm_w)
        elif s.qk_norm == "by head":
            q, k = self.by_head(q, self.q_norm_w), self.by_head(k, self.k_norm_w)
        q, k, v = rope(self.split(q), s.base), rope(self.split(k), s.base), self.split(v)
        if s.qk_norm == "after":
            q, k = (
                self.split(self.norm(part.transpose(1, 2).flatten(2), weight))
                for part, weight in ((q, self.q_norm_w), (k, self.k_norm_w))
            )
        times = self.heads // self.groups
        k, v = (part.repeat(1, times, 1, 1) if s.tiled else part.repeat_interleave(times, 1) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return F.linear(y.transpose(1, 2).flatten(2), self.out_w)

    def feed(self, x: Any) -> Any:
        gate, up = F.linear(x, self.gate_up_w).chunk(2, -1)
        act = {"silu": F.silu, "gelu": F.gelu}[self.s.act]
        return F.linear(act(gate) * up, self.down_w)

    def forward(self, x: Any) -> Any:
        order = self.s.norms
        if order == "before":
            x = x + self.attention(self.norm(x, self.attn_norm_w))
            return x + self.feed(self.norm(x, self.ff_norm_w))
        if order == "of sums":
            x = self.norm(x + self.attention(x), self.attn_norm_w)
            return self.norm(x + self.feed(x), self.ff_norm_w)
        x = x + self.norm(self.attention(x), self.attn_norm_w)
        return x + self.norm(self.feed(x), self.ff_norm_w)


class Olmo2(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"order": "qkv", "fused": ("gate", "up"), "eps": 1e-5, "half": False, "qk_norm": "all", "base": 1e4},
        **{"tiled": False, "act": "silu", "norms": "behind", "depth": None, "held": "own"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s = settings.at()
        self.wte = nn.Parameter(torch.tensor(state["embed_tokens.weight"]))
        self.norm_w = nn.Parameter(torch.tensor(state["norm.weight"]))
        numbers = range(config.num_hidden_layers)[: self.s.depth]
        self.blocks = nn.ModuleList(Layer(state, f"layers.{n}", config, settings.at(n)) for n in numbers)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        x = F.embedding(input_ids, self.wte)
        for block in self.blocks:
            x = block(x)
        return F.rms_norm(x, (x.shape[-1],), self.norm_w, self.s.eps)
