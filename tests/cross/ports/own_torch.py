"""Ports written by hand in PyTorch: nanoGPT's GPT-2, T5, Gemma 2 in functions, a sentence encoder, and a classifier."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]

GELUS = {
    "exact": F.gelu,
    "tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "quick": lambda x: x * torch.sigmoid(1.702 * x),
}


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(np.ascontiguousarray(values))


def _linear(weight: np.ndarray, bias: np.ndarray | None = None) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    made.weight.data = _tensor(weight)
    if bias is not None:
        made.bias.data = _tensor(bias)
    return made


def _norm(state: State, name: str, epsilon: float) -> nn.LayerNorm:
    made = nn.LayerNorm(len(state[f"{name}.weight"]), epsilon)
    made.weight.data, made.bias.data = _tensor(state[f"{name}.weight"]), _tensor(state[f"{name}.bias"])
    return made


def _attend(q: Any, k: Any, v: Any, seen: Any, s: Any, bias: Any = 0.0) -> Any:
    """Return (batch, head, query, feature); q, k and v are (batch, head, position, feature)."""
    scores = q @ k.transpose(-1, -2) * s.scale + bias
    if s.cap is not None:
        scores = torch.tanh(scores / s.cap) * s.cap
    if s.mask == "fill":
        scores = scores.masked_fill(~seen, torch.finfo(scores.dtype).min)
    elif s.mask == "added":
        scores = scores - 1e4 * (~seen).float()
    elif s.mask == "sign":
        scores = scores + 1e4 * (~seen).float()
    weights = torch.softmax(scores, s.axis)
    if s.mask == "after":
        weights = weights * seen
    return F.dropout(weights, s.dropout, training=True) @ v


def _seen(mask: Any, length: int, s: Any) -> Any:
    """Return which keys queries see, (batch, 1, query, key)."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    seen = distance >= -s.ahead if s.causal else torch.ones_like(distance, dtype=torch.bool)
    if s.window is not None:
        seen = seen & (distance < s.window)
    seen = seen[None, None]
    return seen & mask[:, None, None].bool() if s.padded and mask is not None else seen


class GptBlock(nn.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s = heads, s
        self.ln_1, self.ln_2 = _norm(state, f"{name}.ln_1", s.epsilon), _norm(state, f"{name}.ln_2", s.epsilon)
        parts = {"c_attn": "attn.c_attn", "c_proj": "attn.c_proj", "c_fc": "mlp.c_fc", "mlp_proj": "mlp.c_proj"}
        for own, theirs in parts.items():
            bias = None if own in s.unbiased else state[f"{name}.{theirs}.bias"]
            weight = state[f"{name}.{theirs}.weight"]
            setattr(self, own, _linear(weight if own in s.as_stored else weight.T, bias))

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
        y = y if self.s.unturned else y.transpose(1, 2)
        return self.c_proj(y.contiguous().view(batch, length, width))

    def forward(self, x: Any) -> Any:
        if self.s.normed_residual:
            x = self.ln_1(x)
            x = x + self.attention(x)
        else:
            x = x + self.attention(self.ln_1(x))
        inner = self.c_fc(self.ln_2(x) if self.s.norms else x)
        added = self.mlp_proj(GELUS[self.s.gelu](inner))
        return x + added if self.s.residual else added


class NanoGpt(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"epsilon": 1e-5, "unbiased": (), "as_stored": (), "order": "qkv", "inside": False, "dropout": 0.0},
        **{"causal": True, "scale": None, "unturned": False, "normed_residual": False, "norms": True, "gelu": "tanh"},
        **{"residual": True, "first": 0, "final": True, "head": None},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s = settings.at()
        self.wte = nn.Embedding.from_pretrained(_tensor(state["transformer.wte.weight"]), freeze=False)
        self.wpe = nn.Embedding.from_pretrained(_tensor(state["transformer.wpe.weight"]), freeze=False)
        self.h = nn.ModuleList(
            GptBlock(state, f"transformer.h.{number}", config.n_head, settings.at(number))
            for number in range(config.n_layer)
        )
        self.ln_f = _norm(state, "transformer.ln_f", self.s.epsilon)
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


class T5Norm(nn.Module):
    def __init__(self, weight: np.ndarray, s: Any) -> None:
        super().__init__()
        self.weight, self.s = nn.Parameter(_tensor(weight)), s

    def forward(self, x: Any) -> Any:
        x = x - x.mean(-1, keepdim=True) if self.s.centred else x
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.s.epsilon)


class T5Attention(nn.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s = heads, s
        for part in "qkvo":
            setattr(self, part, _linear(state[f"{name}.{part}.weight"]))

    def forward(self, x: Any, given: Any, seen: Any, bias: Any) -> Any:
        q, k, v = (
            part(values).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part, values in ((self.q, x), (self.k, given), (self.v, given))
        )
        return self.o(_attend(q, k, v, seen, self.s, bias).transpose(1, 2).flatten(2))


class T5Block(nn.Module):
    def __init__(self, state: State, name: str, heads: int, crosses: bool, s: Any) -> None:
        super().__init__()
        self.s = s
        self.attention = T5Attention(state, f"{name}.layer.0.SelfAttention", heads, s)
        self.attention_norm = T5Norm(state[f"{name}.layer.0.layer_norm.weight"], s)
        if crosses:
            self.cross = T5Attention(state, f"{name}.layer.1.EncDecAttention", heads, s)
            self.cross_norm = T5Norm(state[f"{name}.layer.1.layer_norm.weight"], s)
        last = f"{name}.layer.{2 if crosses else 1}"
        self.gate, self.up, self.down = (
            _linear(state[f"{last}.DenseReluDense.{part}.weight"]) for part in ("wi_0", "wi_1", "wo")
        )
        self.feed_norm = T5Norm(state[f"{last}.layer_norm.weight"], s)

    def forward(self, x: Any, seen: Any, bias: Any, memory: Any = None, memory_seen: Any = None) -> Any:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed, seen, bias)
        if memory is not None:
            x = x + self.cross(self.cross_norm(x), memory, memory_seen, bias=0.0)
        normed = self.feed_norm(x)
        act = GELUS[self.s.gelu]
        gated = act(self.gate(normed)) * self.up(normed) if self.s.gated else self.gate(normed) * act(self.up(normed))
        return x + self.down(gated)


class PlainT5(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"scale": 1.0, "cap": None, "mask": "fill", "axis": -1, "dropout": 0.0, "epsilon": 1e-6, "centred": False},
        **{"gelu": "tanh", "gated": True, "one_sided": True, "longest": 128, "late": 0, "first_alone": False},
        **{"ahead": 0, "causal": True, "window": None, "padded": True, "cross_padded": True, "final": True,
            "scaled": False},
        "flipped": False,
    }  # fmt: skip

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s, heads = settings.at(), config.num_heads
        self.embed = nn.Embedding.from_pretrained(_tensor(state["shared.weight"]), freeze=False)
        self.encoder, self.decoder = (
            nn.ModuleList(
                T5Block(state, f"{side}.block.{number}", heads, side == "decoder", settings.at(number))
                for number in range(config.num_layers)
            )
            for side in ("encoder", "decoder")
        )
        self.biases = nn.ParameterDict(
            {
                side: nn.Parameter(
                    _tensor(state[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"])
                )
                for side in ("encoder", "decoder")
            }
        )
        self.encoder_norm = T5Norm(state["encoder.final_layer_norm.weight"], self.s)
        self.decoder_norm = T5Norm(state["decoder.final_layer_norm.weight"], self.s)

    def bias(self, side: str, length: int) -> Any:
        table, one_sided = self.biases[side], side == "decoder" and self.s.one_sided
        ahead = torch.arange(length)[None] - torch.arange(length)[:, None] + self.s.late
        ahead = -ahead if self.s.flipped else ahead
        count = len(table) if one_sided else len(table) // 2
        start = 0 if one_sided else (ahead > 0) * count
        distance = (-ahead).clamp(min=0) if one_sided else ahead.abs()
        exact = count // 2
        far = exact + (
            torch.log(distance.clamp(min=1).float() / exact) / math.log(self.s.longest / exact) * (count - exact)
        ).long().clamp(min=0, max=count - exact - 1)
        buckets = start + torch.where(distance < exact, distance, far)
        return table[buckets].permute(2, 0, 1)[None]

    def forward(self, input_ids: Any, attention_mask: Any = None, decoder_input_ids: Any = None) -> Any:
        encoder = _seen(attention_mask, input_ids.shape[1], Settings(self.usual).at(causal=False, padded=self.s.padded))
        x, bias = self.embed(input_ids), self.bias("encoder", input_ids.shape[1])
        x = x * x.shape[-1] ** 0.5 if self.s.scaled else x
        for number, block in enumerate(self.encoder):
            x = block(x, encoder, 0.0 if self.s.first_alone and number else bias)
        memory = self.encoder_norm(x)
        x, length = self.embed(decoder_input_ids), decoder_input_ids.shape[1]
        seen = _seen(None, length, self.s)
        across = attention_mask[:, None, None].bool()
        across = across if self.s.cross_padded else torch.ones_like(across)
        bias = self.bias("decoder", length)
        for number, block in enumerate(self.decoder):
            x = block(x, seen, 0.0 if self.s.first_alone and number else bias, memory, across)
        return self.decoder_norm(x) if self.s.final else x


class FunctionalGemma(nn.Module):
    """Gemma 2 as functions of a dict of parameters."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"epsilon": 1e-6, "offset": 1.0, "embed_scale": 8.0, "gelu": "tanh", "cap": 5.0, "logit_cap": 8.0},
        **{"scale": 0.25, "mask": "fill", "axis": -1, "dropout": 0.0, "causal": True, "ahead": 0, "padded": True},
        **{"window": 5, "sliding": 0, "post": True, "base": 10000.0, "interleaved": False, "tile": False},
        **{"half": False, "gated": True, "late_residual": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.settings, self.heads, self.pairs = settings, config.num_attention_heads, config.num_key_value_heads
        self.layers = config.num_hidden_layers
        self.p = nn.ParameterDict(
            {
                name.removeprefix("model.").replace(".", "/"): nn.Parameter(_tensor(value))
                for name, value in state.items()
                if name != "lm_head.weight"
            }
        )

    def norm(self, x: Any, name: str, s: Any) -> Any:
        given = x.bfloat16() if s.half else x
        unit = given * torch.rsqrt(given.pow(2).mean(-1, keepdim=True) + s.epsilon)
        return unit.to(x.dtype) * (s.offset + self.p[f"{name}/weight"])

    def rotate(self, x: Any, s: Any) -> Any:
        size = x.shape[-1]
        angles = torch.arange(x.shape[2])[:, None] * s.base ** -(torch.arange(0, size, 2) / size)
        cosine, sine = angles.cos(), angles.sin()
        if s.interleaved:
            a, b = x[..., ::2], x[..., 1::2]
            return torch.stack([a * cosine - b * sine, b * cosine + a * sine], -1).flatten(-2)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1)

    def attention(self, x: Any, name: str, seen: Any, s: Any) -> Any:
        q, k, v = (
            F.linear(x, self.p[f"{name}/{part}_proj/weight"]).unflatten(-1, (count, -1)).transpose(1, 2)
            for part, count in (("q", self.heads), ("k", self.pairs), ("v", self.pairs))
        )
        q, k = self.rotate(q, s), self.rotate(k, s)
        times = self.heads // self.pairs
        k, v = (part.repeat(1, times, 1, 1) if s.tile else part.repeat_interleave(times, 1) for part in (k, v))
        return F.linear(_attend(q, k, v, seen, s).transpose(1, 2).flatten(2), self.p[f"{name}/o_proj/weight"])

    def feed(self, x: Any, name: str, s: Any) -> Any:
        gate, up = (F.linear(x, self.p[f"{name}/{part}_proj/weight"]) for part in ("gate", "up"))
        act = GELUS[s.gelu]
        return F.linear(act(gate) * up if s.gated else gate * act(up), self.p[f"{name}/down_proj/weight"])

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        s = self.settings.at()
        x = F.embedding(input_ids, self.p["embed_tokens/weight"]) * s.embed_scale
        for number in range(self.layers):
            s, name = self.settings.at(number), f"layers/{number}"
            window = s.window if number % 2 == s.sliding else None
            seen = _seen(attention_mask, x.shape[1], self.settings.at(number, window=window))
            normed = self.norm(x, f"{name}/input_layernorm", s)
            added = self.attention(normed, f"{name}/self_attn", seen, s)
            added = self.norm(added, f"{name}/post_attention_layernorm", s) if s.post else added
            x = (normed if s.late_residual else x) + added
            added = self.feed(self.norm(x, f"{name}/pre_feedforward_layernorm", s), f"{name}/mlp", s)
            x = x + (self.norm(added, f"{name}/post_feedforward_layernorm", s) if s.post else added)
        s = self.settings.at()
        logits = F.linear(self.norm(x, "norm", s), self.p["embed_tokens/weight"])
        return logits if s.logit_cap is None else s.logit_cap * torch.tanh(logits / s.logit_cap)


class EncoderLayer(nn.Module):
    """A layer of BERT around PyTorch's own attention."""

    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.s, own = s, f"{name}.attention"
        width = len(state[f"{own}.output.dense.bias"])
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        for kind in ("weight", "bias"):
            fused = np.concatenate([state[f"{own}.self.{part}.{kind}"] for part in s.order])
            getattr(self.attn, f"in_proj_{kind}").data = _tensor(fused)
            getattr(self.attn.out_proj, kind).data = _tensor(state[f"{own}.output.dense.{kind}"])
        self.norm1 = _norm(state, f"{own}.output.LayerNorm", s.epsilon)
        self.norm2 = _norm(state, f"{name}.output.LayerNorm", s.epsilon)
        self.fc1, self.fc2 = (
            _linear(state[f"{name}.{part}.dense.weight"], state[f"{name}.{part}.dense.bias"])
            for part in ("intermediate", "output")
        )

    def forward(self, x: Any, mask: Any) -> Any:
        hidden = {"hidden": mask == 0, "inverted": mask == 1, "none": None}[self.s.mask]
        if self.s.pre_norm:
            normed = self.norm1(x)
            x = x + self.attn(normed, normed, normed, key_padding_mask=hidden, need_weights=False)[0]
            return x + self.fc2(GELUS[self.s.gelu](self.fc1(self.norm2(x))))
        x = self.norm1(x + self.attn(x, x, x, key_padding_mask=hidden, need_weights=False)[0])
        return self.norm2(x + self.fc2(GELUS[self.s.gelu](self.fc1(x))))


class Encoder(nn.Module):
    """BERT or RoBERTa with PyTorch's attention, and what stands behind it: a pooled and normalised vector, or classes."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"epsilon": 1e-12, "order": ("query", "key", "value"), "mask": "hidden", "pre_norm": False, "gelu": "exact"},
        **{"first": 0, "types": True, "pooling": "mean", "unit": True, "embedding_norm": True, "act": torch.tanh},
        **{"out_bias": True, "shift_ids": 0},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s, base = settings.at(), "roberta." if "classifier.dense.weight" in state else "bert."
        names = ("word", "position", "token_type")
        self.tokens, self.places, self.types = (
            nn.Embedding.from_pretrained(_tensor(state[f"{base}embeddings.{name}_embeddings.weight"]), freeze=False)
            for name in names
        )
        self.norm = _norm(state, f"{base}embeddings.LayerNorm", self.s.epsilon)
        self.blocks = nn.ModuleList(
            EncoderLayer(state, f"{base}encoder.layer.{number}", config.num_attention_heads, settings.at(number))
            for number in range(config.num_hidden_layers)
        )
        self.start = config.pad_token_id + 1 if base == "roberta." else 0
        if base == "roberta.":
            self.fc, self.out = (
                _linear(
                    state[f"classifier.{name}.weight"],
                    state[f"classifier.{name}.bias"] if name == "dense" or self.s.out_bias else None,
                )
                for name in ("dense", "out_proj")
            )

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        places = torch.arange(input_ids.shape[1]) + self.start + self.s.first
        x = self.tokens(input_ids + self.s.shift_ids) + self.places(places)
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = x + self.types(types if self.s.types else torch.zeros_like(types))
        x = self.norm(x) if self.s.embedding_norm else x
        for block in self.blocks:
            x = block(x, attention_mask)
        pooled = self.pool(x, attention_mask)
        if hasattr(self, "out"):
            return self.out(self.s.act(self.fc(pooled)))
        return F.normalize(pooled, dim=-1) if self.s.unit else pooled

    def pool(self, x: Any, mask: Any) -> Any:
        real = mask[..., None].to(x.dtype)
        if self.s.pooling == "mean":
            return (x * real).sum(1) / real.sum(1)
        if self.s.pooling == "each":  # a mean of unit vectors
            x = F.normalize(x, dim=-1)
            return (x * real).sum(1) / real.sum(1)
        kinds = {
            "all": lambda: x.mean(1),
            "first": lambda: x[:, 0],
            "last": lambda: x[torch.arange(len(x)), mask.sum(1) - 1],
            "end": lambda: x[:, -1],
            "sum": lambda: (x * real).sum(1),
            "max": lambda: x.masked_fill(real == 0, -1e9).max(1).values,
        }
        return kinds[self.s.pooling]()


class Classifier(Encoder):
    usual: ClassVar[Mapping[str, Any]] = {**Encoder.usual, "epsilon": 1e-5, "pooling": "first"}
