"""Ports written by hand in PyTorch: decoders as they are served, in steps with a cache, on ranks, or on packed texts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cross.ports.by_hand import KINDS, State
from tests.cross.ports.by_hand_torch import (
    GELUS,
    before,
    linear,
    named_linear,
    norm,
    of_unit_square,
    parameter,
    rotated,
)
from tests.cross.ports.own_settings import Settings

# GPT-NeoX with a cache of keys and values


class NeoxBlock(nn.Module):
    def __init__(self, state: State, name: str, config: Any, s: Any) -> None:
        super().__init__()
        self.heads, self.s = config.num_attention_heads, s
        self.size = config.hidden_size // self.heads
        self.turned = int(self.size * s.share)
        self.qkv, self.proj = (named_linear(state, f"{name}.attention.{part}") for part in ("query_key_value", "dense"))
        self.up, self.down = (named_linear(state, f"{name}.mlp.dense_{part}") for part in ("h_to_4h", "4h_to_h"))
        self.ln1, self.ln2 = (norm(state, f"{name}.{part}_layernorm", 1e-5) for part in ("input", "post_attention"))

    def empty(self, count: int, length: int) -> None:
        self.k_cache, self.v_cache = (torch.zeros(count, length, self.heads, self.size) for _ in range(2))

    def rotate(self, x: Any, at: Any) -> Any:
        """Return turned heads, (example, position, head, feature)."""
        return torch.cat([rotated(x[..., : self.turned], at[:, None], 1e4), x[..., self.turned :]], -1)

    def attention(self, x: Any, start: int) -> Any:
        s, (count, length, _) = self.s, x.shape
        end = start + length
        q, k, v = self.qkv(x).view(count, length, self.heads, 3, -1).unbind(3)
        at = torch.arange(start, end) if s.counted else torch.zeros(length)
        q = self.rotate(q, at + s.ahead)
        k = self.rotate(k, at)
        self.k_cache[:, start:end], self.v_cache[:, start:end] = k, v
        first, last = max(0, end - s.window), max(end - s.short, 1)
        keys, values = self.k_cache[:, first:last], self.v_cache[:, first:last]
        scores = torch.einsum("bqhd,bkhd->bhqk", q, keys) * self.size**-0.5
        steps = torch.arange(first, last)
        if length > 1:
            scores = scores.masked_fill(steps > torch.arange(start, end)[:, None], -torch.inf)
        return self.proj(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), values).flatten(2))

    def forward(self, x: Any, start: int) -> Any:
        s, added = self.s, self.attention(self.ln1(x), start)
        given = {"parallel": x, "sequential": x + added}[s.feed]
        return x + added + self.down(GELUS["tanh"](self.up(self.ln2(given))))


class CachedNeox(nn.Module):
    """GPT-NeoX that reads a few tokens at a time, as in generation, and returns all logits."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"share": 0.5, "counted": True, "ahead": 0, "window": 1000, "short": 0, "feed": "parallel"},
        **{"chunk": 1, "tied": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s, own = settings.at(), "gpt_neox"
        self.s = s
        self.embed = parameter(state[f"{own}.embed_in.weight"])
        self.head = self.embed if s.tied else parameter(state["embed_out.weight"])
        numbers = range(config.num_hidden_layers)
        self.blocks = nn.ModuleList(NeoxBlock(state, f"{own}.layers.{n}", config, settings.at(n)) for n in numbers)
        self.norm = norm(state, f"{own}.final_layer_norm", 1e-5)

    def step(self, ids: Any, start: int) -> Any:
        x = self.embed[ids]
        for block in self.blocks:
            x = block(x, start)
        return F.linear(self.norm(x), self.head)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        for block in self.blocks:
            block.empty(*input_ids.shape)
        with torch.no_grad():
            starts = range(0, input_ids.shape[1], self.s.chunk)
            return torch.cat([self.step(input_ids[:, n : n + self.s.chunk], n) for n in starts], 1)


# Falcon on ranks whose partial outputs are added


def shard(fused: np.ndarray, heads: int, rank: int, s: Any) -> np.ndarray:
    """Return a rank's rows: its queries, and the key and the value that all heads share."""
    blocks = fused.reshape(heads + 2, -1, *fused.shape[1:])
    queries, key, value = {
        "qkv": (blocks[:-2], blocks[-2:-1], blocks[-1:]),
        "kvq": (blocks[2:], blocks[:1], blocks[1:2]),
    }[s.order]
    own = queries[rank :: s.ranks] if s.strided else np.split(queries, s.ranks)[rank]
    return np.concatenate([own, key, value]).reshape(-1, *fused.shape[1:])


class FalconRank(nn.Module):
    def __init__(self, state: State, name: str, heads: int, rank: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s = heads // s.ranks, s
        fused = f"{name}.self_attention.query_key_value"
        self.qkv = linear(*(shard(state[f"{fused}.{kind}"], heads, rank, s) for kind in KINDS))
        up = (np.split(state[f"{name}.mlp.dense_h_to_4h.{kind}"], s.ranks)[rank] for kind in KINDS)
        self.up, self.down = linear(*up), self.row_shard(state, f"{name}.mlp.dense_4h_to_h", rank, s.down_bias)
        self.dense = self.row_shard(state, f"{name}.self_attention.dense", rank, s.dense_bias)

    def row_shard(self, state: State, name: str, rank: int, biased: str) -> nn.Linear:
        own = np.split(state[f"{name}.weight"], self.s.ranks, axis=1)[rank]
        has_bias = {"first": rank == 0, "each": True, "none": False}[biased]
        return linear(own, state[f"{name}.bias"] if has_bias else None)

    def attention(self, x: Any) -> Any:
        s, (count, length, width) = self.s, x.shape
        parts = self.qkv(x).view(count, length, self.heads + 2, -1).transpose(1, 2)
        q, k, v = parts.split([self.heads, 1, 1], 1)
        q, k = (rotated(part, torch.arange(length), 1e4) for part in (q, k))
        size = width // self.heads if s.scale == "of rank" else q.shape[-1]
        scores = (q @ k.transpose(-1, -2) * size**-0.5).masked_fill(~before(length), -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)

    def feed(self, x: Any) -> Any:
        return self.down(F.gelu(self.up(x)))


class FalconLayer(nn.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.s, self.ln = s, norm(state, f"{name}.input_layernorm", 1e-5)
        self.ranks = nn.ModuleList(FalconRank(state, name, heads, rank, s) for rank in range(s.ranks))

    def forward(self, x: Any) -> Any:
        s, h = self.s, self.ln(x)
        given = x if s.raw_feed else h
        if s.gathered:
            mixed = torch.cat([rank.attention(h) for rank in self.ranks], -1)
            weight = torch.cat([rank.dense.weight for rank in self.ranks], 1)
            added = F.linear(mixed, weight, self.ranks[0].dense.bias)
        else:
            added = sum(rank.dense(rank.attention(h)) for rank in self.ranks)
        fed = [rank.feed(given) for rank in self.ranks]
        return x + added + (sum(fed) if s.reduced else fed[0])


class ParallelFalcon(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"ranks": 2, "order": "qkv", "strided": False, "dense_bias": "first", "down_bias": "first"},
        **{"scale": "of head", "raw_feed": False, "gathered": False, "reduced": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        own, heads, numbers = "transformer", config.num_attention_heads, range(config.num_hidden_layers)
        self.embed = parameter(state[f"{own}.word_embeddings.weight"])
        self.layers = nn.ModuleList(FalconLayer(state, f"{own}.h.{n}", heads, settings.at(n)) for n in numbers)
        self.norm = norm(state, f"{own}.ln_f", 1e-5)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        x = F.embedding(input_ids, self.embed)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.embed.T


# Qwen 3 of fused parameters, whose texts are packed


class AddNorm(nn.Module):
    """A norm that first adds to the residual stream, and returns both."""

    def __init__(self, weight: np.ndarray, s: Any) -> None:
        super().__init__()
        self.weight, self.s = parameter(weight), s

    def forward(self, x: Any, residual: Any = None) -> Any:
        residual = x if residual is None else x + residual
        normed = of_unit_square(residual, 1e-5) * self.weight
        return normed, normed if self.s.carried == "normed" else residual


class ServedLayer(nn.Module):
    def __init__(self, state: State, name: str, config: Any, s: Any) -> None:
        super().__init__()
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size, self.s, own = config.head_dim, s, f"{name}.self_attn"
        parts = [state[f"{own}.{part}_proj.weight"] for part in "qkv"]
        if s.stored == "by group":
            parts = [np.concatenate([part.reshape(self.groups, -1, part.shape[1]) for part in parts], 1)]
            parts = [parts[0].reshape(-1, parts[0].shape[-1])]
        self.qkv_proj, self.o_proj = linear(np.concatenate(parts)), linear(state[f"{own}.o_proj.weight"])
        self.gate_up_proj = linear(np.concatenate([state[f"{name}.mlp.{part}_proj.weight"] for part in s.gate_up]))
        self.down_proj = linear(state[f"{name}.mlp.down_proj.weight"])
        plain = type(s)(**{**vars(s), "carried": "sum"})
        self.q_norm, self.k_norm = (AddNorm(state[f"{own}.{part}_norm.weight"], plain) for part in "qk")
        self.norm1 = AddNorm(state[f"{name}.input_layernorm.weight"], s)
        self.norm2 = AddNorm(state[f"{name}.post_attention_layernorm.weight"], plain)

    def attention(self, x: Any, at: Any, starts: list[int]) -> Any:
        s = self.s
        fused = self.qkv_proj(x).unflatten(-1, (-1, self.size)).transpose(0, 1)  # (head, token, feature)
        q, k, v = fused.split([self.heads, self.groups, self.groups])
        if s.qk_norm == "before":
            q, k = self.q_norm(q)[0], self.k_norm(k)[0]
        q, k = rotated(q, at, 1e6), rotated(k, at, 1e6)
        if s.qk_norm == "behind":
            q, k = self.q_norm(q)[0], self.k_norm(k)[0]
        times = self.heads // self.groups
        k, v = (part.repeat(times, 1, 1) if s.tiled else part.repeat_interleave(times, 0) for part in (k, v))
        scale = self.size**-0.5
        if s.texts == "apart":
            pieces = [[part[None, :, a:b] for part in (q, k, v)] for a, b in itertools.pairwise(starts)]
            y = torch.cat([F.scaled_dot_product_attention(*p, is_causal=True, scale=scale)[0] for p in pieces], 1)
        else:
            text = torch.bucketize(torch.arange(len(x)), torch.tensor(starts[1:]), right=True)
            seen = (text[:, None] == text).tril()
            y = F.scaled_dot_product_attention(q[None], k[None], v[None], seen, scale=scale)[0]
        return self.o_proj(y.transpose(0, 1).flatten(1))

    def forward(self, x: Any, residual: Any, at: Any, starts: list[int]) -> Any:
        x, residual = self.norm1(x, residual)
        x, residual = self.norm2(self.attention(x, at, starts), residual)
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up), residual


class ServedQwen(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"carried": "sum", "stored": "in turn", "gate_up": ("gate", "up"), "qk_norm": "before"},
        **{"tiled": False, "texts": "apart"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s, numbers = settings.at(), range(config.num_hidden_layers)
        self.embed = parameter(state["model.embed_tokens.weight"])
        self.layers = nn.ModuleList(ServedLayer(state, f"model.layers.{n}", config, settings.at(n)) for n in numbers)
        self.norm = AddNorm(state["model.norm.weight"], s)
        self.head = parameter(state["lm_head.weight"])

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        real = attention_mask.bool()
        starts = [0, *real.sum(1).cumsum(0).tolist()]
        at = (real.cumsum(1) - 1)[real]
        x, residual = F.embedding(input_ids[real], self.embed), None
        for layer in self.layers:
            x, residual = layer(x, residual, at, starts)
        logits = F.linear(self.norm(x, residual)[0], self.head)
        return logits.new_zeros(*real.shape, logits.shape[-1]).masked_scatter(real[..., None], logits)
