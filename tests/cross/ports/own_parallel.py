"""A port written by hand in PyTorch: Phi, with one fused projection and PyTorch's attention, as Microsoft's code writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


class RotaryEmbedding(nn.Module):
    def __init__(self, rotary: int, size: int, s: Any) -> None:
        super().__init__()
        self.s, self.rotary = s, size if s.share == "all" else rotary
        over = size if s.over == "head" else self.rotary
        self.register_buffer(
            "inv_freq", 1.0 / s.base ** (torch.arange(0, self.rotary, 2).float() / over), persistent=False
        )

    def turn(self, x: Any) -> Any:
        freqs = torch.outer(torch.arange(x.shape[-2]).float() + self.s.first, self.inv_freq)
        cos, sin = freqs.cos(), freqs.sin()
        if self.s.interleaved:
            x1, x2 = x[..., 0::2], x[..., 1::2]
            return torch.stack((x1 * cos - x2 * sin, x1 * sin + x2 * cos), -1).flatten(-2)
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), -1)

    def forward(self, x: Any) -> Any:
        if self.s.share == "last":
            kept, turned = x[..., : -self.rotary], x[..., -self.rotary :]
            return torch.cat((kept, self.turn(turned)), -1)
        return torch.cat((self.turn(x[..., : self.rotary]), x[..., self.rotary :]), -1)


class MHA(nn.Module):
    def __init__(self, config: Any, s: Any) -> None:
        super().__init__()
        self.heads, self.groups, self.s = config.num_attention_heads, config.num_key_value_heads, s
        self.size = config.hidden_size // self.heads
        self.rotary_emb = RotaryEmbedding(int(self.size * config.partial_rotary_factor), self.size, s)
        self.Wqkv = nn.Linear(config.hidden_size, (self.heads + 2 * self.groups) * self.size)
        self.out_proj = nn.Linear(config.hidden_size, config.hidden_size, bias="out_proj" not in s.unbiased)

    def forward(self, x: Any, mask: Any) -> Any:
        s, (batch, length, width) = self.s, x.shape
        q, k, v = self.Wqkv(x).split([self.heads * self.size, *[self.groups * self.size] * 2], dim=-1)
        q, k, v = (part.view(batch, length, -1, self.size).transpose(1, 2) for part in (q, k, v))
        q, k = self.rotary_emb(q), self.rotary_emb(k)
        if s.groups == "tiled":
            k, v = (part.repeat(1, self.heads // self.groups, 1, 1) for part in (k, v))
        if s.mask == "causal":
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=s.scale, enable_gqa=s.groups == "gqa")
        else:
            seen = {
                "both": torch.ones(length, length, dtype=torch.bool).tril() & mask[:, None, None].bool(),
                "padding": mask[:, None, None].bool().expand(-1, -1, length, -1),
                "inverted": torch.ones(length, length, dtype=torch.bool).triu(1)[None, None],
                "strict": torch.ones(length, length, dtype=torch.bool).tril(-1)[None, None],
            }[s.mask]
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=s.scale, enable_gqa=s.groups == "gqa")
        return self.out_proj(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    def __init__(self, config: Any, s: Any) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.act = {"tanh": nn.GELU("tanh"), "exact": nn.GELU(), "relu": nn.ReLU()}[s.act]

    def forward(self, x: Any) -> Any:
        return self.fc2(self.act(self.fc1(x)))


class ParallelBlock(nn.Module):
    def __init__(self, config: Any, s: Any) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(config.hidden_size, eps=s.eps)
        self.mixer, self.mlp, self.s = MHA(config, s), MLP(config, s), s

    def forward(self, x: Any, mask: Any) -> Any:
        if self.s.block == "sequential":
            x = x + self.mixer(self.ln(x), mask)
            return x + self.mlp(self.ln(x))
        h = self.ln(x)
        if self.s.block == "raw-mlp":
            return x + self.mixer(h, mask) + self.mlp(x)
        return x + self.mixer(h, mask) + self.mlp(h)


class Phi(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"share": "part", "over": "rotary", "base": 1e4, "first": 0, "interleaved": False, "unbiased": ()},
        **{"groups": "gqa", "mask": "causal", "scale": None, "act": "tanh", "eps": 1e-5, "block": "parallel"},
        **{"tied": False, "order": "qkv"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s = settings.at()
        self.embd = nn.Embedding(config.vocab_size, config.hidden_size)
        self.h = nn.ModuleList(ParallelBlock(config, settings.at(n)) for n in range(config.num_hidden_layers))
        self.ln = nn.LayerNorm(config.hidden_size, eps=s.eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias="head" not in s.unbiased)
        own = {
            "embd.weight": state["model.embed_tokens.weight"],
            **{f"ln.{kind}": state[f"model.final_layernorm.{kind}"] for kind in ("weight", "bias")},
            **{f"head.{kind}": state[f"lm_head.{kind}"] for kind in ("weight", "bias")},
        }
        if s.tied:
            own["head.weight"] = own["embd.weight"]
        for n in range(config.num_hidden_layers):
            theirs = f"model.layers.{n}"
            for kind in ("weight", "bias"):
                fused = [state[f"{theirs}.self_attn.{part}_proj.{kind}"] for part in settings.at(n).order]
                own[f"h.{n}.mixer.Wqkv.{kind}"] = np.concatenate(fused)
                own[f"h.{n}.mixer.out_proj.{kind}"] = state[f"{theirs}.self_attn.dense.{kind}"]
                own[f"h.{n}.ln.{kind}"] = state[f"{theirs}.input_layernorm.{kind}"]
                for part in ("fc1", "fc2"):
                    own[f"h.{n}.mlp.{part}.{kind}"] = state[f"{theirs}.mlp.{part}.{kind}"]
        left = self.load_state_dict({name: torch.tensor(value) for name, value in own.items()}, strict=False)
        assert not left.missing_keys, left

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        x = self.embd(input_ids)
        for block in self.h:
            x = block(x, attention_mask)
        return self.head(self.ln(x))
