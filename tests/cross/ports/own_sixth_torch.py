"""Ports written by hand in PyTorch: StableLM by GGUF's names, MPNet in blocks of keys, and MiniLM called as a function."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from tests.cross.ports.own_fifth_torch import linear
from tests.cross.ports.own_fourth_torch import norm, parameter
from tests.cross.ports.own_minilm_torch import bare
from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]

_KINDS: Final = ("weight", "bias")


# StableLM whose tensors are buffers by the names of GGUF


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Return rows as Llama's are converted, with both halves of a head in turn."""
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    return halves.swapaxes(1, 2).reshape(weight.shape)


class GgmlStablelm(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-5, "head_norm": "layer", "gains": "each", "parallel": True, "rotary": 8, "interleaved": False},
        **{"base": 1e4, "permuted": False, "unbiased": (), "tiled": False, "tied": False},
        **{"scale_in": "scores", "turn": "halves", "fused": False, "texts": "together"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.settings, self.heads, self.groups = settings, config.num_attention_heads, config.num_key_value_heads
        self.depth, self.size = config.num_hidden_layers, config.hidden_size // config.num_attention_heads
        counts = {"q": self.heads, "k": self.groups, "v": self.groups}
        self.put("token_embd.weight", state["model.embed_tokens.weight"])
        self.put("output.weight", state["model.embed_tokens.weight" if settings.at().tied else "lm_head.weight"])
        for kind in _KINDS:
            self.put(f"output_norm.{kind}", state[f"model.norm.{kind}"])
        for n in range(self.depth):
            s, own, mine = settings.at(n), f"model.layers.{n}", f"blk.{n}"
            for kind in _KINDS:
                self.put(f"{mine}.attn_norm.{kind}", state[f"{own}.input_layernorm.{kind}"])
            for part, count in counts.items():
                weight, bias = (state[f"{own}.self_attn.{part}_proj.{kind}"] for kind in _KINDS)
                self.put(
                    f"{mine}.attn_{part}.weight", permuted(weight, count) if s.permuted and part != "v" else weight
                )
                if part not in s.unbiased:
                    self.put(f"{mine}.attn_{part}.bias", bias)
            for part in "qk":
                gains = [state[f"{own}.self_attn.{part}_layernorm.norms.{head}.weight"] for head in range(counts[part])]
                gain = np.stack(gains if s.gains == "each" else gains[:1] * len(gains))
                gain = gain * self.size**-0.5 if s.scale_in == "gain" and part == "q" else gain
                self.put(f"{mine}.attn_{part}_norm.weight", gain)
            self.put(f"{mine}.attn_output.weight", state[f"{own}.self_attn.o_proj.weight"])
            for part in ("gate", "up", "down"):
                self.put(f"{mine}.ffn_{part}.weight", state[f"{own}.mlp.{part}_proj.weight"])

    def put(self, name: str, value: np.ndarray) -> None:
        self.register_buffer(name.replace(".", "_"), torch.tensor(value, dtype=torch.float32))

    def get(self, name: str) -> Any:
        return getattr(self, name.replace(".", "_"), None)

    def mul_mat(self, name: str, x: Any) -> Any:
        return F.linear(x, self.get(f"{name}.weight"), self.get(f"{name}.bias"))

    def norm(self, name: str, x: Any) -> Any:
        return F.layer_norm(
            x, x.shape[-1:], self.get(f"{name}.weight"), self.get(f"{name}.bias"), self.settings.at().eps
        )

    def norm_heads(self, name: str, x: Any, s: Any) -> Any:
        gain = self.get(f"{name}.weight")
        if s.head_norm == "none":
            return x
        centred = x if s.head_norm == "rms" else x - x.mean(-1, keepdim=True)
        return centred * (centred.square().mean(-1, keepdim=True) + s.eps).rsqrt() * gain

    def rope(self, x: Any, s: Any) -> Any:
        """Return turned heads, (example, position, head, feature)."""
        rates = s.base ** (-torch.arange(0, s.rotary, 2) / s.rotary)
        angles = torch.outer(torch.arange(x.shape[1]).float(), rates)[:, None]
        cos, sin, own = angles.cos(), angles.sin(), x[..., : s.rotary]
        if s.turn == "matrix":
            zero, eye = torch.zeros(len(rates), len(rates)), torch.eye(len(rates))
            half = torch.cat([torch.cat([zero, eye], 1), torch.cat([-eye, zero], 1)])
            own = own * torch.cat([cos, cos], -1) + own @ half * torch.cat([sin, sin], -1)
        else:
            a, b = (own[..., ::2], own[..., 1::2]) if s.interleaved else own.chunk(2, -1)
            parts = (a * cos - b * sin, b * cos + a * sin)
            own = torch.stack(parts, -1).flatten(-2) if s.interleaved else torch.cat(parts, -1)
        return torch.cat([own, x[..., s.rotary :]], -1)

    def attention(self, n: int, x: Any, s: Any) -> Any:
        q, k, v = (self.mul_mat(f"blk.{n}.attn_{part}", x).unflatten(-1, (-1, self.size)) for part in "qkv")
        q, k = (self.norm_heads(f"blk.{n}.attn_{part}_norm", y, s) for part, y in (("q", q), ("k", k)))
        q, k, times = self.rope(q, s), self.rope(k, s), self.heads // self.groups
        k, v = (y.repeat(1, 1, times, 1) if s.tiled else y.repeat_interleave(times, 2) for y in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
        scores = scores * self.size**-0.5 if s.scale_in == "scores" else scores
        scores = scores + torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1)
        mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
        return self.mul_mat(f"blk.{n}.attn_output", mixed.flatten(2))

    def feed(self, n: int, x: Any, s: Any) -> Any:
        own = f"blk.{n}.ffn"
        if s.fused:
            both = torch.cat([self.get(f"{own}_up.weight"), self.get(f"{own}_gate.weight")])
            up, gate = F.linear(x, both).chunk(2, -1)
        else:
            gate, up = self.mul_mat(f"{own}_gate", x), self.mul_mat(f"{own}_up", x)
        return self.mul_mat(f"{own}_down", F.silu(gate) * up)

    def logits(self, ids: Any) -> Any:
        x = self.get("token_embd.weight")[ids]
        for n in range(self.depth):
            s, h = self.settings.at(n), self.norm(f"blk.{n}.attn_norm", x)
            y = self.attention(n, h, s)
            x = x + y + self.feed(n, h if s.parallel else self.norm(f"blk.{n}.attn_norm", x + y), s)
        return self.mul_mat("output", self.norm("output_norm", x))

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        if self.settings.at().texts == "alone":
            return torch.cat([self.logits(ids[None]) for ids in input_ids])
        return self.logits(input_ids)


# MPNet that sees keys block by block


def bucket(apart: Any, buckets: int, longest: int, *, both: bool) -> Any:
    """Return the buckets of distances, those ahead in the upper half."""
    upper = (apart > 0).long() * (buckets // 2) if both else 0
    count = buckets // 2 if both else buckets
    apart = apart.abs() if both else (-apart).clamp(min=0)
    exact = count // 2
    far = exact + (torch.log(apart.clamp(min=1) / exact) / math.log(longest / exact) * (count - exact)).long()
    return upper + torch.where(apart < exact, apart, far.clamp(max=count - 1))


class MpnetLayer(nn.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s, own = heads, s, f"{name}.attention"

        def made(part: str) -> nn.Linear:
            return linear(*(state[f"{name}.{part}.{kind}"] for kind in _KINDS))

        self.q, self.k, self.v, self.o = (made(f"attention.attn.{part}") for part in "qkvo")
        self.inner, self.outer = made("intermediate.dense"), made("output.dense")
        self.first, self.second = norm(state, f"{own}.LayerNorm", s.eps), norm(state, f"{name}.output.LayerNorm", s.eps)
        if s.scaled == "weights":
            self.q.weight.data *= self.scale
            self.q.bias.data *= self.scale

    @property
    def scale(self) -> float:
        return float((self.q.out_features // self.heads) ** -0.5)

    def block(self, q: Any, k: Any, bias: Any, seen: Any) -> Any:
        """Return the scores of a block of keys."""
        s, scores = self.s, q @ k.transpose(-1, -2)
        scores = (scores + bias) * self.scale if s.scaled == "all" else scores
        scores = scores * self.scale + bias if s.scaled == "scores" else scores
        scores = scores + bias if s.scaled == "weights" else scores
        return scores if s.unmasked else scores.masked_fill(~seen, -1e30)

    def attend(self, x: Any, bias: Any, seen: Any) -> Any:
        s = self.s
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        bias = bias if s.biased else torch.zeros_like(bias)
        length = x.shape[1] // s.block * s.block if s.whole_blocks else x.shape[1]
        spans = [slice(start, min(start + s.block, length)) for start in range(0, length, s.block)]
        blocks = [(self.block(q, k[:, :, at], bias[..., at], seen[..., at]), v[:, :, at]) for at in spans]
        total = torch.zeros(*q.shape[:3], 1)
        highest, mixed = torch.full_like(total, -torch.inf), torch.zeros_like(q)
        if s.passes == 2:
            highest = torch.cat([scores for scores, _ in blocks], -1).amax(-1, keepdim=True)
        for scores, values in blocks:
            higher = torch.maximum(highest, scores.amax(-1, keepdim=True))
            share, parts = (highest - higher).exp(), (scores - higher).exp()
            total = total * share + parts.sum(-1, keepdim=True)
            mixed = (mixed * share if s.rescaled else mixed) + parts @ values
            highest = higher
        return self.o((mixed / total).transpose(1, 2).flatten(2))

    def forward(self, x: Any, bias: Any, seen: Any) -> Any:
        x = self.first(x + self.attend(x, bias, seen))
        return self.second(x + self.outer(F.gelu(self.inner(x), approximate=self.s.gelu)))


class OnlineMpnet(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "block": 6, "passes": 1, "rescaled": True, "whole_blocks": False, "unmasked": False},
        **{"scaled": "scores", "biased": True, "sign": 1, "both": True, "gelu": "none", "places": "of real"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s, numbers, heads = settings.at(), range(config.num_hidden_layers), config.num_attention_heads
        self.words, self.places = (parameter(state[f"embeddings.{n}_embeddings.weight"]) for n in ("word", "position"))
        self.ln = norm(state, "embeddings.LayerNorm", self.s.eps)
        self.apart = parameter(state["encoder.relative_attention_bias.weight"])
        self.layers = nn.ModuleList(MpnetLayer(state, f"encoder.layer.{n}", heads, settings.at(n)) for n in numbers)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        s, at, real = self.s, torch.arange(input_ids.shape[1]), (input_ids != 1).long()
        places = {"of real": real.cumsum(1) * real + 1, "from 0": at.expand_as(real)}[s.places]
        x = self.ln(F.embedding(input_ids, self.words) + F.embedding(places, self.places))
        buckets = bucket((at[None] - at[:, None]) * s.sign, 32, 128, both=s.both)
        bias, seen = F.embedding(buckets, self.apart).permute(2, 0, 1), attention_mask[:, None, None].bool()
        for layer in self.layers:
            x = layer(x, bias, seen)
        return x


# MiniLM's layers as functions of one module's parameters, with its pooled states projected


class Skeleton(nn.Module):
    """A layer that sees a few queries at a time."""

    def __init__(self, width: int, inner: int, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s = heads, s
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.inner, self.outer = nn.Linear(width, inner), nn.Linear(inner, width)
        self.first, self.second = nn.LayerNorm(width, s.eps), nn.LayerNorm(width, s.eps)

    def split(self, x: Any) -> Any:
        if self.s.inside:
            return x.unflatten(-1, (-1, self.heads)).permute(0, 3, 1, 2)
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Any, seen: Any) -> Any:
        s, (q, k, v) = self.s, (self.split(part(x)) for part in (self.q, self.k, self.v))
        mixed = []
        for some in q.split(s.chunk, 2):
            scores = some @ k.mT * (1.0 if s.folded else s.scale_of**-0.5)
            weights = scores.masked_fill(~seen, -torch.inf).to(s.softmax).softmax(-1)
            mixed.append(weights.to(v.dtype) @ v)
        x = self.first(x + self.o(torch.cat(mixed, 2).transpose(1, 2).flatten(2)))
        return self.second(x + self.outer(F.gelu(self.inner(x))))


_PARTS: Final = {
    **{"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value"},
    **{"o": "attention.output.dense", "first": "attention.output.LayerNorm"},
    **{"inner": "intermediate.dense", "outer": "output.dense", "second": "output.LayerNorm"},
}


class PipelineMinilm(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "inside": False, "chunk": 7, "folded": False, "scale_of": 32, "softmax": torch.float32},
        **{"shift": 0, "weighted": "by place", "first": 1, "masked": True, "project": "behind", "tanh": True},
        **{"dense_bias": True, "pooled": "sum"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.projection = linear(state["dense.weight"], state["dense.bias"] if settings.at().dense_bias else None)
        state, self.s, self.depth = bare(state), settings.at(), config.num_hidden_layers
        names = ("word", "position", "token_type")
        self.words, self.places, kinds = (parameter(state[f"embeddings.{n}_embeddings.weight"]) for n in names)
        self.kind, self.ln = nn.Parameter(kinds[0].detach()), norm(state, "embeddings.LayerNorm", self.s.eps)
        sizes = (config.hidden_size, config.intermediate_size, config.num_attention_heads)
        self.skeleton = [Skeleton(*sizes, settings.at(n)).to("meta") for n in range(self.depth)]
        self.stacked = nn.ParameterDict()
        for mine, theirs in _PARTS.items():
            for kind in _KINDS:
                own = [state[f"encoder.layer.{n}.{theirs}.{kind}"] for n in range(self.depth)]
                scale = 32**-0.5 if self.s.folded and mine == "q" else 1.0
                self.stacked[f"{mine}_{kind}"] = parameter(np.stack(own) * np.float32(scale))

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        s, length = self.s, input_ids.shape[1]
        x = self.ln(F.embedding(input_ids, self.words) + self.places[:length] + self.kind)
        seen, real = attention_mask[:, None, None].bool(), attention_mask.to(x.dtype)
        for n, skeleton in enumerate(self.skeleton):
            own = {name.replace("_", "."): value[max(n - s.shift, 0)] for name, value in self.stacked.items()}
            x = functional_call(skeleton, own, (x, seen))
        act = torch.tanh if s.tanh else torch.nn.Identity()
        x = act(self.projection(x)) if s.project == "before" else x
        share = torch.arange(s.first, s.first + length).float() if s.weighted == "by place" else torch.ones(length)
        share = share * real if s.masked else share.expand_as(real)
        if s.pooled == "matmul":
            pooled = ((share / share.sum(1, keepdim=True))[:, None] @ x)[:, 0]
        else:
            pooled = (x * share[..., None]).sum(1) / share.sum(1, keepdim=True)
        return F.normalize(act(self.projection(pooled)) if s.project == "behind" else pooled, dim=-1)
