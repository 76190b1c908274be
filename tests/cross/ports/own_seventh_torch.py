"""Ports written by hand in PyTorch: Phi-3 in one file after nanoGPT, and XLNet after the code of Transformer-XL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cross.ports.own_fifth_torch import linear
from tests.cross.ports.own_fourth_torch import norm, parameter
from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


# Phi-3 in one file


class RMSNorm(nn.Module):
    def __init__(self, weight: np.ndarray, s: Any) -> None:
        super().__init__()
        self.weight, self.s = parameter(weight), s

    def forward(self, x: Any) -> Any:
        square = x.square().mean(-1, keepdim=True)
        return x / (square.sqrt() + self.s.eps if self.s.outside else (square + self.s.eps).sqrt()) * self.weight


class CausalSelfAttention(nn.Module):
    def __init__(self, state: State, name: str, config: Any, s: Any) -> None:
        super().__init__()
        self.s, self.n_head, self.n_kv = s, config.num_attention_heads, config.num_key_value_heads
        self.size = config.hidden_size // self.n_head
        self.c_attn, self.c_proj = (linear(state[f"{name}.{part}_proj.weight"]) for part in ("qkv", "o"))

    def turned(self, x: Any) -> Any:
        """Return turned heads, (example, head, position, feature)."""
        s, own = self.s, x[..., : self.s.rotary]
        angles = torch.outer(torch.arange(x.shape[2]), s.base ** (-torch.arange(0, s.rotary, 2) / s.rotary))
        if s.turn == "complex":
            pairs = torch.complex(*(half.contiguous() for half in own.chunk(2, -1)))
            pairs = pairs * torch.polar(torch.ones_like(angles), angles)
            own = torch.cat([pairs.real, pairs.imag], -1)
        else:
            a, b = own.chunk(2, -1)
            own = torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)
        return torch.cat([own, x[..., s.rotary :]], -1)

    def attend(self, q: Any, k: Any, v: Any, seen: Any) -> Any:
        if self.s.kernel == "fused":
            return F.scaled_dot_product_attention(q, k, v, seen)
        scores = q @ k.mT / math.sqrt(self.n_head if self.s.scale == "heads" else self.size)
        scores = scores.masked_fill(~seen, -torch.inf if self.s.masked is None else self.s.masked)
        if self.s.sink:  # a key that has no value
            return torch.cat([scores, torch.zeros_like(scores[..., :1])], -1).softmax(-1)[..., :-1] @ v
        return scores.softmax(-2 if self.s.over_queries else -1) @ v

    def forward(self, x: Any) -> Any:
        s, times, at = self.s, self.n_head // self.n_kv, torch.arange(x.shape[1])
        fused = self.c_attn(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
        if s.split == "by group":
            parts = fused.unflatten(1, (self.n_kv, -1)).split([times, 1, 1], 2)
            q, k, v = (part.flatten(1, 2) for part in parts)
        else:
            q, k, v = fused.split([self.n_head, self.n_kv, self.n_kv], 1)
        q, k, v = self.turned(q), self.turned(k), self.turned(v) if s.turn_values else v
        k, v = (part.repeat_interleave(times, 1) for part in (k, v))
        apart = at[:, None] - at
        seen = (apart >= 0) & (apart < s.window)
        blocks = zip(q.split(s.block, 2), seen.split(s.block), strict=True)
        y = torch.cat([self.attend(some, k, v, rows) for some, rows in blocks], 2)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, state: State, name: str, s: Any) -> None:
        super().__init__()
        self.c_fc, self.c_proj = (linear(state[f"{name}.{part}_proj.weight"]) for part in ("gate_up", "down"))
        self.s = s

    def forward(self, x: Any) -> Any:
        gate, up = self.c_fc(x).chunk(2, -1)
        return self.c_proj(F.silu(up) * gate if self.s.up_first else F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, state: State, name: str, config: Any, s: Any) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = (
            RMSNorm(state[f"{name}.{part}_layernorm.weight"], s) for part in ("input", "post_attention")
        )
        self.attn, self.mlp = CausalSelfAttention(state, f"{name}.self_attn", config, s), MLP(state, f"{name}.mlp", s)
        self.times = s.times

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x)) * self.times
        return x + self.mlp(self.ln_2(x)) * self.times


class NanoPhi(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-5, "outside": False, "base": 1e4, "rotary": 8, "turn": "halves", "turn_values": False},
        **{"kernel": "plain", "scale": "size", "sink": False, "masked": None, "over_queries": False, "split": "by role",
            "window": 6, "block": 64},
        **{"up_first": False, "times": 1.0, "texts": "together"},
    }  # fmt: skip

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        table = state["model.embed_tokens.weight"]
        numbers = range(config.num_hidden_layers)
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding.from_pretrained(torch.tensor(table), freeze=False),
                "h": nn.ModuleList(Block(state, f"model.layers.{n}", config, settings.at(n)) for n in numbers),
                "ln_f": RMSNorm(state["model.norm.weight"], settings.at()),
            }
        )
        self.lm_head, self.alone = linear(state["lm_head.weight"]), settings.at().texts == "alone"

    def logits(self, idx: Any) -> Any:
        x = self.transformer["wte"](idx)
        for block in self.transformer["h"]:  # type: ignore[union-attr]
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))

    def forward(self, input_ids: Any) -> Any:
        return torch.cat([self.logits(idx[None]) for idx in input_ids]) if self.alone else self.logits(input_ids)


# XLNet, whose distances are gathered


class RelAttn(nn.Module):
    def __init__(self, state: State, name: str, s: Any) -> None:
        super().__init__()
        self.s, width = s, len(state[f"{name}.q"])
        self.q_net, self.k_net, self.v_net, self.r_net = (
            linear(state[f"{name}.{part}"].reshape(width, -1).T) for part in "qkvr"
        )
        o = state[f"{name}.o"]
        self.o_net = linear((o.swapaxes(1, 2) if s.features_first else o).reshape(width, -1))
        self.r_w_bias, self.r_r_bias, self.r_s_bias = (parameter(state[f"{name}.r_{part}_bias"]) for part in "wrs")
        self.seg_embed, self.layer_norm = (
            parameter(state[f"{name}.seg_embed"]),
            norm(state, f"{name}.layer_norm", s.eps),
        )

    def relative(self, q: Any, r: Any) -> Any:
        """Return the scores of distances, (example, head, query, key)."""
        s, length = self.s, q.shape[1]
        scores = torch.einsum("bihd,rhd->bhir", q, r)  # by falling distance
        if s.shift == "reshaped":
            scores = F.pad(scores, (1, 0)).view(*q.shape[:1], q.shape[2], 2 * length, length)[:, :, 1:]
            return scores.reshape(*q.shape[:1], q.shape[2], length, 2 * length - 1)[..., :length]
        at = torch.arange(length)
        places = (length - 1 - s.sign * (at[:, None] - at) + s.later).clamp(0, 2 * length - 2)
        return scores.gather(3, places.expand_as(scores[..., :length]))

    def forward(self, x: Any, r: Any, other: Any, seen: Any) -> Any:
        s, (heads, size) = self.s, self.r_w_bias.shape
        q, k, v = (part(x).unflatten(-1, (heads, size)) for part in (self.q_net, self.k_net, self.v_net))
        scores = torch.einsum("bihd,bjhd->bhij", q + self.r_w_bias if s.content_bias else q, k)
        far = self.relative(q + self.r_r_bias, self.r_net(r).unflatten(-1, (heads, size)))
        if s.segments:
            ef = torch.einsum("bihd,shd->bhis", q + self.r_s_bias, self.seg_embed)
            near = ef.gather(3, (1 - other if s.turned else other)[:, None].expand(-1, heads, -1, -1))
            scores = scores + near
        scores = scores * size**-0.5 + far if s.far_unscaled else (scores + far) * size**-0.5
        scores = scores if s.unmasked else scores.masked_fill(~seen, -1e30)
        mixed = torch.einsum("bhij,bjhd->bihd", scores.softmax(3), v)
        return self.layer_norm(x + self.o_net(mixed.flatten(2)))


class XlLayer(nn.Module):
    def __init__(self, state: State, name: str, s: Any) -> None:
        super().__init__()
        self.attn, self.gelu = RelAttn(state, f"{name}.rel_attn", s), s.gelu
        self.inner, self.outer = (
            linear(*(state[f"{name}.ff.layer_{n}.{kind}"] for kind in ("weight", "bias"))) for n in (1, 2)
        )
        self.layer_norm = norm(state, f"{name}.ff.layer_norm", s.eps)

    def forward(self, x: Any, *others: Any) -> Any:
        x = self.attn(x, *others)
        return self.layer_norm(x + self.outer(F.gelu(self.inner(x), approximate=self.gelu)))


class RelativeXlnet(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "features_first": False, "shift": "gathered", "sign": 1, "later": 0, "content_bias": True},
        **{"segments": True, "turned": False, "far_unscaled": False, "unmasked": False, "gelu": "none"},
        **{"sines": "halves", "texts": "together"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s, self.width = settings.at(), config.d_model
        self.word_emb = parameter(state["word_embedding.weight"])
        self.layers = nn.ModuleList(XlLayer(state, f"layer.{n}", settings.at(n)) for n in range(config.n_layer))

    def states(self, ids: Any, mask: Any, types: Any) -> Any:
        length = ids.shape[1]
        far = torch.arange(length - 1, -length, -1)[:, None] * 1e4 ** (-torch.arange(0, self.width, 2) / self.width)
        halves = self.s.sines == "halves"
        r = torch.cat([far.sin(), far.cos()], -1) if halves else torch.stack([far.sin(), far.cos()], -1).flatten(1)
        other = (types[:, :, None] != types[:, None]).long()
        seen = (mask[:, None].bool() | torch.eye(length, dtype=torch.bool))[:, None]
        x = F.embedding(ids, self.word_emb)
        for layer in self.layers:
            x = layer(x, r, other, seen)
        return x

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        given = (input_ids, attention_mask, token_type_ids)
        if self.s.texts == "alone":
            return torch.cat([self.states(*(part[None] for part in one)) for one in zip(*given, strict=True)])
        return self.states(*given)
