"""Ports written by hand in PyTorch: decoders of modules or functions, GPT-2, Phi-3, Gemma 2 and BLOOM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cross.ports.by_hand import State
from tests.cross.ports.by_hand_torch import GELUS, before, embedding, linear, norm, of_unit_square, parameter, rotated
from tests.cross.ports.own_settings import Settings

# GPT-2 after nanoGPT


class GptBlock(nn.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s = heads, s
        self.ln_1, self.ln_2 = norm(state, f"{name}.ln_1", s.epsilon), norm(state, f"{name}.ln_2", s.epsilon)
        parts = {"c_attn": "attn.c_attn", "c_proj": "attn.c_proj", "c_fc": "mlp.c_fc", "mlp_proj": "mlp.c_proj"}
        for own, theirs in parts.items():
            bias = None if own in s.unbiased else state[f"{name}.{theirs}.bias"]
            weight = state[f"{name}.{theirs}.weight"]
            setattr(self, own, linear(weight if own in s.as_stored else weight.T, bias))

    def attention(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = dict(zip(self.s.order, self.c_attn(x).split(width, 2), strict=True))
        if self.s.inside:
            q, k, v = (parts[name].view(batch, length, -1, self.heads).permute(0, 3, 1, 2) for name in "qkv")
        else:
            q, k, v = (parts[name].view(batch, length, self.heads, -1).transpose(1, 2) for name in "qkv")
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.s.dropout, is_causal=self.s.causal, scale=self.s.scale
        )
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))

    def forward(self, x: Any) -> Any:
        if self.s.normed_residual:
            x = self.ln_1(x)
            x = x + self.attention(x)
        else:
            x = x + self.attention(self.ln_1(x))
        added = self.mlp_proj(GELUS[self.s.gelu](self.c_fc(self.ln_2(x))))
        return x + added if self.s.residual else added


class NanoGpt(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"epsilon": 1e-5, "unbiased": (), "as_stored": (), "order": "qkv", "inside": False, "dropout": 0.0},
        **{"causal": True, "scale": None, "normed_residual": False, "gelu": "tanh", "residual": True, "first": 0},
        **{"final": True, "head": None},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s = settings.at()
        self.wte, self.wpe = (embedding(state[f"transformer.{name}.weight"]) for name in ("wte", "wpe"))
        self.h = nn.ModuleList(
            GptBlock(state, f"transformer.h.{number}", config.n_head, settings.at(number))
            for number in range(config.n_layer)
        )
        self.ln_f = norm(state, "transformer.ln_f", self.s.epsilon)
        self.lm_head = nn.Linear(*self.wte.weight.shape[::-1], bias=False)
        if self.s.head is None:
            self.lm_head.weight = self.wte.weight
        else:
            torch.manual_seed(self.s.head)
            nn.init.normal_(self.lm_head.weight, std=0.2)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1]) + self.s.first)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x) if self.s.final else x)


# Phi-3 in one file


class RMSNorm(nn.Module):
    def __init__(self, weight: np.ndarray, s: Any) -> None:
        super().__init__()
        self.weight, self.s = parameter(weight), s

    def forward(self, x: Any) -> Any:
        square = x.square().mean(-1, keepdim=True)
        return x / (square.sqrt() + 1e-5 if self.s.outside else (square + 1e-5).sqrt()) * self.weight


class CausalSelfAttention(nn.Module):
    def __init__(self, state: State, name: str, config: Any, s: Any) -> None:
        super().__init__()
        self.s, self.n_head, self.n_kv = s, config.num_attention_heads, config.num_key_value_heads
        self.size = config.hidden_size // self.n_head
        self.c_attn, self.c_proj = (linear(state[f"{name}.{part}_proj.weight"]) for part in ("qkv", "o"))

    def turned(self, x: Any) -> Any:
        """Return turned heads, (example, head, position, feature)."""
        s, own, at = self.s, x[..., : self.s.rotary], torch.arange(x.shape[2])
        if s.turn == "complex":
            angles = torch.outer(at, 1e4 ** (-torch.arange(0, s.rotary, 2) / s.rotary))
            pairs = torch.complex(*(half.contiguous() for half in own.chunk(2, -1)))
            pairs = pairs * torch.polar(torch.ones_like(angles), angles)
            own = torch.cat([pairs.real, pairs.imag], -1)
        else:
            own = rotated(own, at, 1e4)
        return torch.cat([own, x[..., s.rotary :]], -1)

    def attend(self, q: Any, k: Any, v: Any, seen: Any) -> Any:
        scores = q @ k.mT / math.sqrt(self.n_head if self.s.scale == "heads" else self.size)
        scores = scores.masked_fill(~seen, -torch.inf if self.s.masked is None else self.s.masked)
        if self.s.sink:  # a key that has no value
            return torch.cat([scores, torch.zeros_like(scores[..., :1])], -1).softmax(-1)[..., :-1] @ v
        return scores.softmax(-2 if self.s.over_queries else -1) @ v

    def forward(self, x: Any) -> Any:
        s, times, seen = self.s, self.n_head // self.n_kv, before(x.shape[1], self.s.window)
        fused = self.c_attn(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
        q, k, v = fused.split([self.n_head, self.n_kv, self.n_kv], 1)
        q, k, v = self.turned(q), self.turned(k), self.turned(v) if s.turn_values else v
        k, v = (part.repeat_interleave(times, 1) for part in (k, v))
        blocks = zip(q.split(s.block, 2), seen.split(s.block), strict=True)
        y = torch.cat([self.attend(some, k, v, rows) for some, rows in blocks], 2)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, state: State, name: str) -> None:
        super().__init__()
        self.c_fc, self.c_proj = (linear(state[f"{name}.{part}_proj.weight"]) for part in ("gate_up", "down"))

    def forward(self, x: Any) -> Any:
        gate, up = self.c_fc(x).chunk(2, -1)
        return self.c_proj(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, state: State, name: str, config: Any, s: Any) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = (
            RMSNorm(state[f"{name}.{part}_layernorm.weight"], s) for part in ("input", "post_attention")
        )
        self.attn, self.mlp = CausalSelfAttention(state, f"{name}.self_attn", config, s), MLP(state, f"{name}.mlp")
        self.times = s.times

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x)) * self.times
        return x + self.mlp(self.ln_2(x)) * self.times


class NanoPhi(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"outside": False, "rotary": 8, "turn": "halves", "turn_values": False, "scale": "size", "sink": False},
        **{"masked": None, "over_queries": False, "window": 6, "block": 64, "times": 1.0},
        **{"texts": "together"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        numbers = range(config.num_hidden_layers)
        self.transformer = nn.ModuleDict(
            {
                "wte": embedding(state["model.embed_tokens.weight"]),
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


# Gemma 2 as functions of parameters


class FunctionalGemma(nn.Module):
    """Gemma 2 as functions of a dict of parameters."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"offset": 1.0, "embed_scale": 8.0, "cap": 5.0, "logit_cap": 8.0, "sliding": 0},
        **{"post": True, "interleaved": False, "late_residual": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.settings, self.heads, self.pairs = settings, config.num_attention_heads, config.num_key_value_heads
        self.layers = config.num_hidden_layers
        kept = {name.removeprefix("model."): value for name, value in state.items() if name != "lm_head.weight"}
        self.p = nn.ParameterDict({name.replace(".", "/"): parameter(value) for name, value in kept.items()})

    def norm(self, x: Any, name: str, s: Any) -> Any:
        return of_unit_square(x, 1e-6) * (s.offset + self.p[f"{name}/weight"])

    def attention(self, x: Any, name: str, seen: Any, s: Any) -> Any:
        q, k, v = (
            F.linear(x, self.p[f"{name}/{part}_proj/weight"]).unflatten(-1, (count, -1)).transpose(1, 2)
            for part, count in (("q", self.heads), ("k", self.pairs), ("v", self.pairs))
        )
        at, times = torch.arange(x.shape[1]), self.heads // self.pairs
        q, k = (rotated(part, at, 1e4, interleaved=s.interleaved) for part in (q, k))
        k, v = (part.repeat_interleave(times, 1) for part in (k, v))
        scores = q @ k.transpose(-1, -2) * 0.25
        scores = scores if s.cap is None else torch.tanh(scores / s.cap) * s.cap
        mixed = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1) @ v
        return F.linear(mixed.transpose(1, 2).flatten(2), self.p[f"{name}/o_proj/weight"])

    def feed(self, x: Any, name: str) -> Any:
        gate, up = (F.linear(x, self.p[f"{name}/{part}_proj/weight"]) for part in ("gate", "up"))
        return F.linear(GELUS["tanh"](gate) * up, self.p[f"{name}/down_proj/weight"])

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        s = self.settings.at()
        x = F.embedding(input_ids, self.p["embed_tokens/weight"]) * s.embed_scale
        for number in range(self.layers):
            s, name = self.settings.at(number), f"layers/{number}"
            seen = before(x.shape[1], 5 if number % 2 == s.sliding else None) & attention_mask[:, None, None].bool()
            normed = self.norm(x, f"{name}/input_layernorm", s)
            added = self.attention(normed, f"{name}/self_attn", seen, s)
            added = self.norm(added, f"{name}/post_attention_layernorm", s) if s.post else added
            x = (normed if s.late_residual else x) + added
            added = self.feed(self.norm(x, f"{name}/pre_feedforward_layernorm", s), f"{name}/mlp")
            x = x + (self.norm(added, f"{name}/post_feedforward_layernorm", s) if s.post else added)
        s = self.settings.at()
        logits = F.linear(self.norm(x, "norm", s), self.p["embed_tokens/weight"])
        return logits if s.logit_cap is None else s.logit_cap * torch.tanh(logits / s.logit_cap)


# BLOOM with bare parameters, whose heads are axes of their own


def powers(count: int) -> list[float]:
    """Return the slopes of a power of two of heads."""
    ratio = 2 ** (-8 / count)
    return [ratio ** (number + 1) for number in range(count)]


def slopes(heads: int, kind: str) -> torch.Tensor:
    """Return the slope of each head."""
    whole = 2 ** math.floor(math.log2(heads))
    found = powers(whole) + powers(2 * whole)[0::2][: heads - whole]
    return torch.tensor(powers(heads) if kind == "geometric" else found)


class EinsumBloom(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"split": "by head", "slopes": "paper", "bias": "added", "sign": 1.0, "tanh": True},
        **{"embedding_norm": True, "distance": "keys"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.settings, self.heads, self.depth = settings, config.n_head, config.n_layer
        s, width = settings.at(), config.hidden_size

        def put(name: str, values: np.ndarray) -> None:
            setattr(self, name, parameter(values))

        def norm(name: str, theirs: str) -> None:
            put(f"{name}_g", state[f"{theirs}.weight"])
            put(f"{name}_b", state[f"{theirs}.bias"])

        put("table", state["word_embeddings.weight"])
        norm("ln_e", "word_embeddings_layernorm")
        norm("ln_f", "ln_f")
        for n in range(self.depth):
            own = f"h.{n}.self_attention"
            shape = (self.heads, 3, -1) if s.split == "by head" else (3, self.heads, -1)
            fused = state[f"{own}.query_key_value.weight"].reshape(*shape, width)
            bias = state[f"{own}.query_key_value.bias"].reshape(shape)
            axis = 1 if s.split == "by head" else 0
            for number, part in enumerate("qkv"):
                put(f"w_{part}{n}", fused.take(number, axis))
                put(f"b_{part}{n}", bias.take(number, axis))
            put(f"w_o{n}", state[f"{own}.dense.weight"].T.reshape(self.heads, -1, width))
            put(f"b_o{n}", state[f"{own}.dense.bias"])
            for part, name in (("up", "dense_h_to_4h"), ("down", "dense_4h_to_h")):
                put(f"w_{part}{n}", state[f"h.{n}.mlp.{name}.weight"].T)
                put(f"b_{part}{n}", state[f"h.{n}.mlp.{name}.bias"])
            norm(f"ln_a{n}", f"h.{n}.input_layernorm")
            norm(f"ln_m{n}", f"h.{n}.post_attention_layernorm")

    def norm(self, x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        unit = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return unit * getattr(self, f"{name}_g") + getattr(self, f"{name}_b")

    def attention(self, x: Any, n: int, alibi: Any, seen: Any, s: Any) -> Any:
        q, k, v = (
            torch.einsum("blm,hdm->bhld", x, getattr(self, f"w_{part}{n}")) + getattr(self, f"b_{part}{n}")[:, None]
            for part in "qkv"
        )
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        scale = q.shape[-1] ** -0.5
        scores = (scores + alibi) * scale if s.bias == "scaled" else scores * scale + alibi * (s.bias == "added")
        probabilities = scores.masked_fill(~seen, -1e9).softmax(-1)
        return torch.einsum("bhqk,bhkd,hdm->bqm", probabilities, v, getattr(self, f"w_o{n}")) + getattr(self, f"b_o{n}")

    def feed(self, x: Any, n: int, s: Any) -> Any:
        h = x @ getattr(self, f"w_up{n}") + getattr(self, f"b_up{n}")
        if s.tanh:
            h = 0.5 * h * (1 + torch.tanh(0.79788456 * h * (1 + 0.044715 * h * h)))
        else:
            h = 0.5 * h * (1 + torch.erf(h / math.sqrt(2)))
        return h @ getattr(self, f"w_down{n}") + getattr(self, f"b_down{n}")

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        s, length = self.settings.at(), input_ids.shape[1]
        at = torch.arange(length)
        places = (
            (at[None] - at[:, None])[None]
            if s.distance == "between"
            else ((attention_mask.cumsum(-1) - 1) * attention_mask)[:, None]
        )
        alibi = s.sign * slopes(self.heads, s.slopes)[:, None, None] * places[:, None].float()
        seen = before(length) & attention_mask[:, None, None].bool()
        x = self.table[input_ids]
        x = self.norm(x, "ln_e") if s.embedding_norm else x
        for n in range(self.depth):
            x = x + self.attention(self.norm(x, f"ln_a{n}"), n, alibi, seen, s)
            x = x + self.feed(self.norm(x, f"ln_m{n}"), n, s)
        return self.norm(x, "ln_f")
