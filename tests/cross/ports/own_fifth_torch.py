"""Ports written by hand in PyTorch: Falcon on two ranks, Qwen3 packed as servers have it, and MiniLM with adapters."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cross.ports.own_fourth_torch import norm, parameter
from tests.cross.ports.own_minilm_torch import bare
from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]

_KINDS: Final = ("weight", "bias")


def linear(weight: np.ndarray, bias: np.ndarray | None = None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight = parameter(weight)
    if bias is not None:
        made.bias = parameter(bias)
    return made


def rotated(x: Any, at: Any, s: Any) -> Any:
    """Return turned heads, (…, position, feature)."""
    size = x.shape[-1]
    angles = torch.outer(at.float(), s.base ** (-torch.arange(0, size, 2) / size))
    a, b = (x[..., ::2], x[..., 1::2]) if s.interleaved else x.chunk(2, -1)
    turned = (a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin())
    return torch.stack(turned, -1).flatten(-2) if s.interleaved else torch.cat(turned, -1)


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
        self.qkv = linear(*(shard(state[f"{fused}.{kind}"], heads, rank, s) for kind in _KINDS))
        up = (np.split(state[f"{name}.mlp.dense_h_to_4h.{kind}"], s.ranks)[rank] for kind in _KINDS)
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
        q, k = (rotated(part, torch.arange(length), s) for part in (q, k))
        size = width // self.heads if s.scale == "of rank" else q.shape[-1]
        seen = torch.ones(length, length, dtype=torch.bool).tril(s.ahead)
        if s.fused:
            k, v = k.expand_as(q), v.expand_as(q)
            y = F.scaled_dot_product_attention(q, k, v, seen, scale=size**-0.5)
        else:
            scores = (q @ k.transpose(-1, -2) * size**-0.5).masked_fill(~seen, -torch.inf)
            y = scores.softmax(-1) @ v
        return y.transpose(1, 2).flatten(2)

    def feed(self, x: Any) -> Any:
        return self.down(F.gelu(self.up(x)))


class FalconLayer(nn.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.s, self.ln = s, norm(state, f"{name}.input_layernorm", s.eps)
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
        **{"ranks": 2, "order": "qkv", "strided": False, "dense_bias": "first", "down_bias": "first", "base": 1e4},
        **{"interleaved": False, "scale": "of head", "ahead": 0, "fused": False, "eps": 1e-5, "raw_feed": False},
        **{"gathered": False, "reduced": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        own, heads, numbers = "transformer", config.num_attention_heads, range(config.num_hidden_layers)
        self.embed = parameter(state[f"{own}.word_embeddings.weight"])
        self.layers = nn.ModuleList(FalconLayer(state, f"{own}.h.{n}", heads, settings.at(n)) for n in numbers)
        self.norm = norm(state, f"{own}.ln_f", settings.at().eps)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        x = F.embedding(input_ids, self.embed)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x) @ self.embed.T


# Qwen3 of fused parameters, whose texts are packed


class AddNorm(nn.Module):
    """A norm that first adds to the residual stream, and returns both."""

    def __init__(self, weight: np.ndarray, s: Any) -> None:
        super().__init__()
        self.weight, self.s = parameter(weight), s

    def forward(self, x: Any, residual: Any = None) -> Any:
        residual = x if residual is None else x + residual
        normed = residual * (residual.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight
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
        q, k = rotated(q, at, s), rotated(k, at, s)
        if s.qk_norm == "behind":
            q, k = self.q_norm(q)[0], self.k_norm(k)[0]
        times = self.heads // self.groups
        k, v = (part.repeat(times, 1, 1) if s.tiled else part.repeat_interleave(times, 0) for part in (k, v))
        scale = (s.scale or self.size) ** -0.5
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
        **{"carried": "sum", "stored": "in turn", "gate_up": ("gate", "up"), "qk_norm": "before", "tied": False},
        **{"base": 1e6, "interleaved": False, "tiled": False, "scale": None, "texts": "apart", "places": "in text"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s, numbers = settings.at(), range(config.num_hidden_layers)
        self.s, self.embed = s, parameter(state["model.embed_tokens.weight"])
        self.layers = nn.ModuleList(ServedLayer(state, f"model.layers.{n}", config, settings.at(n)) for n in numbers)
        self.norm = AddNorm(state["model.norm.weight"], s)
        self.head = self.embed if s.tied else parameter(state["lm_head.weight"])

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        real = attention_mask.bool()
        starts = [0, *real.sum(1).cumsum(0).tolist()]
        at = (real.cumsum(1) - 1)[real] if self.s.places == "in text" else torch.arange(starts[-1])
        x, residual = F.embedding(input_ids[real], self.embed), None
        for layer in self.layers:
            x, residual = layer(x, residual, at, starts)
        logits = F.linear(self.norm(x, residual)[0], self.head)
        return logits.new_zeros(*real.shape, logits.shape[-1]).masked_scatter(real[..., None], logits)


# MiniLM with adapters

RANK: Final = 4
ALPHA: Final = 8


def adapter(number: int, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the factors of a layer's adapter, (rank, input) and (output, rank)."""
    random = np.random.default_rng([number, ord(part[0])])
    a, b = random.normal(0, 0.05, (RANK, 384)), random.normal(0, 0.1, (384, RANK))
    return a.astype(np.float32), b.astype(np.float32)


def product(number: int, part: str) -> np.ndarray:
    """Return what an adapter adds to a weight."""
    a, b = adapter(number, part)
    return ALPHA / RANK * b @ a


class LoraLinear(nn.Module):
    def __init__(self, weight: np.ndarray, bias: np.ndarray, factors: tuple[np.ndarray, np.ndarray], s: Any) -> None:
        super().__init__()
        self.base, self.s = linear(weight, bias), s
        self.lora_A, self.lora_B = (linear(factor) for factor in factors)

    def forward(self, x: Any) -> Any:
        given = F.dropout(x, self.s.dropout) if self.s.dropout else x
        return self.base(x) + self.lora_B(self.lora_A(given)) * self.s.scaling


class LoraLayer(nn.Module):
    def __init__(self, state: State, name: str, heads: int, number: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s = heads, s

        def plain(theirs: str) -> nn.Linear:
            return linear(*(state[f"{name}.{theirs}.{kind}"] for kind in _KINDS))

        def adapted(part: str) -> nn.Module:
            weight, bias = (state[f"{name}.attention.self.{part}.{kind}"] for kind in _KINDS)
            base = weight - product(number, part)
            if part not in s.targets:
                return linear(base, bias)
            a, b = adapter((number + s.further) % s.depth, part)
            merged = s.scaling * (a.T @ b.T if s.run == "transposed" else b @ a)
            base = base if s.run == "beside" else base + merged
            return LoraLinear(base, bias, (a, b), s) if s.run in ("beside", "twice") else linear(base, bias)

        self.q, self.k, self.v = adapted("query"), plain("attention.self.key"), adapted("value")
        parts = ("attention.output", "intermediate", "output")
        self.out, self.fc1, self.fc2 = (plain(f"{part}.dense") for part in parts)
        self.ln1, self.ln2 = (norm(state, f"{name}.{part}.LayerNorm", s.eps) for part in ("attention.output", "output"))

    def forward(self, x: Any, seen: Any) -> Any:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2)
        x = self.ln1(x + self.out(mixed))
        return self.ln2(x + self.fc2(F.gelu(self.fc1(x))))


class LoraMinilm(nn.Module):
    """An encoder whose queries and values have adapters beside them, or merged."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "pooling": "mean", "unit": True, "run": "beside", "further": 0, "depth": 6},
        **{"scaling": ALPHA / RANK, "targets": ("query", "value"), "dropout": 0.0},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        state, s, numbers = bare(state), settings.at(), range(config.num_hidden_layers)
        names = ("word", "position", "token_type")
        self.word, self.places, self.kinds = (parameter(state[f"embeddings.{n}_embeddings.weight"]) for n in names)
        self.s, self.ln, heads = s, norm(state, "embeddings.LayerNorm", s.eps), config.num_attention_heads
        self.layers = nn.ModuleList(LoraLayer(state, f"encoder.layer.{n}", heads, n, settings.at(n)) for n in numbers)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = F.embedding(input_ids, self.word) + self.places[: input_ids.shape[1]] + self.kinds[0]
        x, seen = self.ln(x), attention_mask[:, None, None].bool()
        for layer in self.layers:
            x = layer(x, seen)
        real = attention_mask.float()
        if self.s.pooling == "inner":  # without the first token and the last
            real = F.pad(real[:, 2:], (1, 1))
        pooled = (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        return F.normalize(pooled, dim=-1) if self.s.unit else pooled
