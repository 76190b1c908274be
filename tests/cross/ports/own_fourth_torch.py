"""Ports written by hand in PyTorch: MiniLM of 1x1 convolutions, GPT-NeoX token by token, and DeBERTa."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cross.ports.own_minilm_torch import bare
from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]

GELUS: Final = {"exact": F.gelu, "tanh": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu}


def parameter(values: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.tensor(np.ascontiguousarray(values)))


def _linear(state: State, name: str) -> nn.Linear:
    weight = state[f"{name}.weight"]
    made = nn.Linear(weight.shape[1], weight.shape[0])
    made.weight, made.bias = parameter(weight), parameter(state[f"{name}.bias"])
    return made


def norm(state: State, name: str, eps: float) -> nn.LayerNorm:
    made = nn.LayerNorm(len(state[f"{name}.weight"]), eps)
    made.weight, made.bias = parameter(state[f"{name}.weight"]), parameter(state[f"{name}.bias"])
    return made


# MiniLM over (example, channel, 1, position), as Apple writes transformers for its neural engine


class ChannelNorm(nn.Module):
    """A norm over channels that adds its bias before it multiplies by its gain; the bias is divided when it is loaded."""

    def __init__(self, state: State, name: str, s: Any) -> None:
        super().__init__()
        gain, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        self.gain, self.bias = parameter(gain), parameter(bias / gain if s.bias_divided else bias)
        self.eps = s.eps

    def forward(self, x: Any) -> Any:
        centred = x - x.mean(1, keepdim=True)
        unit = centred * (centred.square().mean(1, keepdim=True) + self.eps).rsqrt()
        return (unit + self.bias.view(-1, 1, 1)) * self.gain.view(-1, 1, 1)


class AneLayer(nn.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s = heads, s
        own = {f"{part[0]}_lin": f"attention.self.{part}" for part in ("query", "key", "value")}
        own |= {"out_lin": "attention.output.dense", "lin1": "intermediate.dense", "lin2": "output.dense"}
        for part, theirs in own.items():
            kernel = state[f"{name}.{theirs}.weight"]
            conv = nn.Conv2d(kernel.shape[1], kernel.shape[0], 1, bias=part not in s.unbiased)
            conv.weight = parameter((kernel.T if part in s.as_stored else kernel)[..., None, None])
            if conv.bias is not None:
                conv.bias = parameter(state[f"{name}.{theirs}.bias"])
            setattr(self, part, conv)
        self.sa_norm = ChannelNorm(state, f"{name}.attention.output.LayerNorm", s)
        self.out_norm = ChannelNorm(state, f"{name}.output.LayerNorm", s)

    def parts(self, x: Any) -> list[Any]:
        """Return the channels of each head."""
        if self.s.strided:
            return [x[:, head :: self.heads] for head in range(self.heads)]
        return list(x.chunk(self.heads, 1))

    def attention(self, x: Any, hidden: Any) -> Any:
        s, mixed = self.s, []
        q, k, v = self.q_lin(x), self.k_lin(x), self.v_lin(x)
        if s.joined:
            q, k, v = (part.unflatten(1, (self.heads, -1)).squeeze(3) for part in (q, k, v))
            scores = torch.einsum("bncq,bnck->bnkq", q, k) * q.shape[2] ** -0.5 + hidden.squeeze(-1).unsqueeze(1)
            return torch.einsum("bnkq,bnck->bncq", scores.softmax(2), v).flatten(1, 2).unsqueeze(2)
        for query, key, value in zip(*(self.parts(part) for part in (q, k, v)), strict=True):
            scores = torch.einsum("bchq,bkhc->bkhq", query, key.transpose(1, 3))
            scores = scores * query.shape[1] ** -0.5 if s.scaled else scores
            weights = (scores + hidden).softmax(s.axis)
            mixed.append(torch.einsum("bkhq,bchk->bchq", weights, value))
        return torch.cat(mixed, 1)

    def forward(self, x: Any, hidden: Any) -> Any:
        x = self.sa_norm(x + self.out_lin(self.attention(x, hidden)))
        return self.out_norm(x + self.lin2(GELUS[self.s.gelu](self.lin1(x))))


class AneMinilm(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "bias_divided": True, "unbiased": (), "as_stored": (), "strided": False, "joined": False},
        **{"scaled": True, "axis": 1, "gelu": "exact", "mask": "keys", "pooling": "mean"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s, state = settings.at(), bare(state)
        self.s = s
        self.words, self.places, self.kinds = (
            parameter(state[f"embeddings.{name}_embeddings.weight"]) for name in ("word", "position", "token_type")
        )
        self.norm = ChannelNorm(state, "embeddings.LayerNorm", s)
        heads, numbers = config.num_attention_heads, range(config.num_hidden_layers)
        self.layers = nn.ModuleList(AneLayer(state, f"encoder.layer.{n}", heads, settings.at(n)) for n in numbers)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        s, length = self.s, input_ids.shape[1]
        x = self.words[input_ids] + self.places[:length] + self.kinds[0]
        x = self.norm(x.transpose(1, 2).unsqueeze(2))
        hidden = (1.0 - attention_mask.float()) * -1e4
        hidden = hidden[:, :, None, None] if s.mask == "keys" else hidden[:, None, None, :]
        for layer in self.layers:
            x = layer(x, hidden)
        x, real = x.squeeze(2), attention_mask[:, None].float()
        pooled = (x * real).sum(-1) / real.sum(-1) if s.pooling == "mean" else x.mean(-1)
        return F.normalize(pooled, dim=-1)


# GPT-NeoX with a cache of keys and values


class NeoxBlock(nn.Module):
    def __init__(self, state: State, name: str, config: Any, s: Any) -> None:
        super().__init__()
        self.heads, self.s = config.num_attention_heads, s
        self.size = config.hidden_size // self.heads
        self.turned = int(self.size * s.share)
        own = {"qkv": "attention.query_key_value", "proj": "attention.dense"}
        own |= {"up": "mlp.dense_h_to_4h", "down": "mlp.dense_4h_to_h"}
        for part, theirs in own.items():
            setattr(self, part, _linear(state, f"{name}.{theirs}"))
        self.ln1, self.ln2 = (norm(state, f"{name}.{part}_layernorm", s.eps) for part in ("input", "post_attention"))

    def empty(self, count: int, length: int) -> None:
        self.k_cache, self.v_cache = (torch.zeros(count, length, self.heads, self.size) for _ in range(2))

    def rotate(self, x: Any, at: Any) -> Any:
        """Return turned heads, (example, position, head, feature)."""
        s, (turned, rest) = self.s, (x[..., : self.turned], x[..., self.turned :])
        angles = torch.outer(at.float(), s.base ** (-torch.arange(0, self.turned, 2) / self.turned))
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        if s.interleaved:
            a, b = turned[..., ::2], turned[..., 1::2]
            turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        else:
            a, b = turned.chunk(2, -1)
            turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return torch.cat([turned, rest], -1)

    def attention(self, x: Any, start: int) -> Any:
        s, (count, length, _) = self.s, x.shape
        end = start + length
        fused = self.qkv(x)
        if s.split == "by head":
            q, k, v = fused.view(count, length, self.heads, 3, -1).unbind(3)
        else:
            q, k, v = fused.view(count, length, 3, self.heads, -1).unbind(2)
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
        normed = self.ln1(given) if s.one_norm else self.ln2(given)
        return x + added + self.down(GELUS[s.gelu](self.up(normed)))


class CachedNeox(nn.Module):
    """GPT-NeoX that reads a few tokens at a time, as in generation, and returns all logits."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-5, "share": 0.5, "base": 1e4, "interleaved": False, "split": "by head", "counted": True},
        **{"ahead": 0, "window": 1000, "short": 0, "feed": "parallel", "one_norm": False},
        **{"gelu": "tanh", "chunk": 1, "tied": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s, own = settings.at(), "gpt_neox"
        self.s = s
        self.embed = parameter(state[f"{own}.embed_in.weight"])
        self.head = self.embed if s.tied else parameter(state["embed_out.weight"])
        numbers = range(config.num_hidden_layers)
        self.blocks = nn.ModuleList(NeoxBlock(state, f"{own}.layers.{n}", config, settings.at(n)) for n in numbers)
        self.norm = norm(state, f"{own}.final_layer_norm", s.eps)

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


# DeBERTa, version 2


def buckets(length: int, s: Any) -> Any:
    """Return the bucket of each distance of a query from a key, (query, key)."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    half = s.buckets // 2
    far = torch.log(distance.abs().clamp(min=half) / half) / math.log((s.longest - 1) / half) * (half - 1)
    logs = distance.sign() * (torch.ceil(far) + half).long()
    places = torch.where(distance.abs() <= half, distance, logs) if s.log else distance
    return (places + s.buckets).clamp(0, 2 * s.buckets - 1)


class DebertaLayer(nn.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s, own = heads, s, f"{name}.attention.self"
        self.q, self.k, self.v = (_linear(state, f"{own}.{part}_proj") for part in ("query", "key", "value"))
        self.out, self.fc1, self.fc2 = (
            _linear(state, f"{name}.{part}.dense") for part in ("attention.output", "intermediate", "output")
        )
        self.ln1 = norm(state, f"{name}.attention.output.LayerNorm", s.eps)
        self.ln2 = norm(state, f"{name}.output.LayerNorm", s.eps)

    def split(self, x: Any) -> Any:
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def forward(self, x: Any, table: Any, places: Any, seen: Any) -> Any:
        s, q, k, v = self.s, self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        to_keys, to_queries = (self.k, self.q) if s.projected == "right" else (self.q, self.k)
        position_keys, position_queries = self.split(to_keys(table)), self.split(to_queries(table))
        scores = q @ k.transpose(-1, -2)
        if "c2p" in s.kinds and s.gathered:
            found = q @ position_keys.transpose(-1, -2)
            scores = scores + found.gather(-1, places.expand(*found.shape[:-1], -1))
        elif "c2p" in s.kinds:
            scores = scores + torch.einsum("bhid,hijd->bhij", q, position_keys[:, places])
        if "p2c" in s.kinds:
            turned = places.T if s.turned else places
            scores = scores + torch.einsum("bhjd,hijd->bhij", k, position_queries[:, turned])
        scores = scores / math.sqrt(q.shape[-1] * s.terms)
        weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
        x = self.ln1(x + self.out((weights @ v).transpose(1, 2).flatten(2)))
        return self.ln2(x + self.fc2(GELUS[s.gelu](self.fc1(x))))


class Deberta(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-7, "projected": "right", "kinds": ("c2p", "p2c"), "turned": False, "terms": 3, "gelu": "exact"},
        **{"buckets": 8, "longest": 40, "log": True, "table_norm": True, "masked": "pairs", "gathered": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s = settings.at()
        self.s, self.words = s, parameter(state["embeddings.word_embeddings.weight"])
        self.norm = norm(state, "embeddings.LayerNorm", s.eps)
        self.table, self.table_norm = parameter(state["encoder.rel_embeddings.weight"]), nn.Identity()
        if s.table_norm:
            self.table_norm = norm(state, "encoder.LayerNorm", s.eps)
        heads, numbers = config.num_attention_heads, range(config.num_hidden_layers)
        self.layers = nn.ModuleList(DebertaLayer(state, f"encoder.layer.{n}", heads, settings.at(n)) for n in numbers)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        s, real = self.s, attention_mask.bool()
        x = self.norm(self.words[input_ids])
        seen = real[:, None, None] & real[:, None, :, None] if s.masked == "pairs" else real[:, None, None]
        seen = torch.ones_like(seen) if s.masked == "none" else seen
        places = buckets(input_ids.shape[1], s)
        for layer in self.layers:
            x = layer(x, self.table_norm(self.table), places, seen)
        return x
