"""Ports written by hand in PyTorch: RWKV in one file, and ConvBERT with its span convolutions."""

from __future__ import annotations

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


# RWKV in one file


def moved(x: Any, s: Any) -> Any:
    """Return each position's predecessor, and zeros before the first."""
    return x if s.shift == 0 else F.pad(x, (0, 0, s.shift, 0))[:, : x.shape[1]]


def shared(x: Any, mix: Any, s: Any) -> Any:
    before = moved(x, s)
    return x * (1 - mix) + before * mix if s.mix_turned else x * mix + before * (1 - mix)


def summed(k: Any, v: Any, decay: Any, first: Any, s: Any) -> Any:
    """Return the mean of values so far, weighed by keys that fade."""
    w = {"minus exp": -decay.exp(), "exp": decay.exp(), "minus": -decay.abs()}[s.decay]
    if s.form == "matrix":
        at = torch.arange(k.shape[1])
        apart = (at[:, None] - at - 1)[..., None]
        weights = torch.where(apart >= 0, apart * w, torch.where(apart == -1, first, -torch.inf))
        shares = (weights + k[:, None]).softmax(2)
        return torch.einsum("bqkd,bkd->bqd", shares, v)
    top, below, states = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0]), []
    most = k.amax(1) if s.form == "shifted" else 0.0
    for now, value in zip((k - most[:, None] if s.form == "shifted" else k).unbind(1), v.unbind(1), strict=True):
        e = (now + first if s.bonus else now).exp()
        states.append((top + e * value) / (below + e))
        top, below = top * w.exp() + now.exp() * value, below * w.exp() + now.exp()
    return torch.stack(states, 1)


class TimeMix(nn.Module):
    def __init__(self, state: State, name: str, s: Any) -> None:
        super().__init__()
        self.s = s
        self.key, self.value, self.receptance, self.output = (
            linear(state[f"{name}.{part}.weight"]) for part in ("key", "value", "receptance", "output")
        )
        self.mix_k, self.mix_v, self.mix_r = (
            parameter(state[f"{name}.time_mix_{part}"]) for part in ("key", "value", "receptance")
        )
        self.decay, self.first = parameter(state[f"{name}.time_decay"]), parameter(state[f"{name}.time_first"])

    def forward(self, x: Any) -> Any:
        s = self.s
        k, v, r = (
            part(shared(x, mix, s))
            for part, mix in ((self.key, self.mix_k), (self.value, self.mix_v), (self.receptance, self.mix_r))
        )
        return self.output((r.sigmoid() if s.receptance else r) * summed(k, v, self.decay, self.first, s))


class ChannelMix(nn.Module):
    def __init__(self, state: State, name: str, s: Any) -> None:
        super().__init__()
        self.s = s
        self.key, self.value, self.receptance = (
            linear(state[f"{name}.{part}.weight"]) for part in ("key", "value", "receptance")
        )
        self.mix_k, self.mix_r = (parameter(state[f"{name}.time_mix_{part}"]) for part in ("key", "receptance"))

    def forward(self, x: Any) -> Any:
        s, k = self.s, self.key(shared(x, self.mix_k, self.s)).relu()
        r = self.receptance(shared(x, self.mix_r, s))
        return (r.sigmoid() if s.channel_receptance else r) * self.value(k * k if s.squared else k)


class FileRwkv(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-5, "shift": 1, "mix_turned": False, "decay": "minus exp", "bonus": True, "form": "loop"},
        **{"receptance": True, "channel_receptance": True, "squared": True, "pre_norm": True, "texts": "together"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s = s = settings.at()
        self.emb = nn.Embedding.from_pretrained(torch.tensor(state["rwkv.embeddings.weight"]), freeze=False)
        self.ln0, self.ln_out = norm(state, "rwkv.blocks.0.pre_ln", s.eps), norm(state, "rwkv.ln_out", s.eps)
        self.head, self.blocks = linear(state["head.weight"]), nn.ModuleList()
        for n in range(config.num_hidden_layers):
            own, name = settings.at(n), f"rwkv.blocks.{n}"
            parts = {
                "att": TimeMix(state, f"{name}.attention", own),
                "ffn": ChannelMix(state, f"{name}.feed_forward", own),
            }
            self.blocks.append(
                nn.ModuleDict({**parts, **{f"ln{m}": norm(state, f"{name}.ln{m}", own.eps) for m in (1, 2)}})
            )

    def logits(self, idx: Any) -> Any:
        x = self.emb(idx)
        x = self.ln0(x) if self.s.pre_norm else x
        for block in self.blocks:
            x = x + block["att"](block["ln1"](x))  # type: ignore[index]
            x = x + block["ffn"](block["ln2"](x))  # type: ignore[index]
        return self.head(self.ln_out(x))

    def forward(self, input_ids: Any) -> Any:
        if self.s.texts == "alone":
            return torch.cat([self.logits(idx[None]) for idx in input_ids])
        return self.logits(input_ids)


# ConvBERT


class SpanAttention(nn.Module):
    def __init__(self, state: State, name: str, s: Any) -> None:
        super().__init__()
        self.s, own = s, f"{name}.attention.self"
        parts = ("query", "key", "value", "conv_kernel_layer", "conv_out_layer")
        self.q, self.k, self.v, self.taps, self.conv_v = (
            linear(*(state[f"{own}.{part}.{kind}"] for kind in ("weight", "bias"))) for part in parts
        )
        layer = f"{own}.key_conv_attn_layer"
        self.depth, self.point = (parameter(state[f"{layer}.{kind}wise.weight"]) for kind in ("depth", "point"))
        self.bias = parameter(state[f"{layer}.bias"] * s.span_bias)

    def spans(self, x: Any, q: Any) -> Any:
        """Return the convolutions whose kernels are made of each position's query and span."""
        s, taps = self.s, self.depth.shape[-1]
        depth = self.depth.flip(2) if s.depth_flipped else self.depth
        span = F.conv1d(x.mT, depth, padding=taps // 2, groups=x.shape[-1])
        span = F.conv1d(span, self.point, self.bias[:, 0]).mT
        kernels = self.taps(span * q if s.with_query else span)
        kernels = kernels.unflatten(-1, (taps, -1)).mT if s.taps_first else kernels.unflatten(-1, (-1, taps))
        kernels = {"taps": lambda y: y.softmax(-1), "heads": lambda y: y.softmax(-2), "none": lambda y: y}[s.over](
            kernels
        )
        before = taps - 1 if s.causal else taps // 2
        padded = F.pad(self.conv_v(x), (0, 0, before, taps - 1 - before))
        kernels = kernels.flip(-1) if s.kernel_flipped else kernels
        heads = padded.unflatten(-1, (kernels.shape[2], -1))  # (example, position, head, feature)
        if s.form == "shifted":
            length = x.shape[1]
            return sum(heads[:, n : n + length] * kernels[..., n : n + 1] for n in range(taps))
        return torch.einsum("bthdn,bthn->bthd", heads.unfold(1, taps, 1), kernels)

    def forward(self, x: Any, seen: Any) -> Any:
        s, q = self.s, self.q(x)
        spans = self.spans(x, q)
        q, k, v = (y.unflatten(-1, (spans.shape[2], -1)).transpose(1, 2) for y in (q, self.k(x), self.v(x)))
        if s.form == "fused":
            mixed = F.scaled_dot_product_attention(q, k, v, seen)
        else:
            scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
            mixed = scores.softmax(-1) @ v
        both = [mixed.transpose(1, 2), spans][:: -1 if s.spans_first else 1]
        return torch.cat(both, 3 if s.joined == "features" else 2).flatten(2)


class ConvLayer(nn.Module):
    def __init__(self, state: State, name: str, s: Any) -> None:
        super().__init__()
        self.s, self.mix = s, SpanAttention(state, name, s)
        self.proj = linear(*(state[f"{name}.attention.output.dense.{kind}"] for kind in ("weight", "bias")))
        self.ln1, self.ln2 = (norm(state, f"{name}.{of}output.LayerNorm", s.eps) for of in ("attention.", ""))
        self.w1, self.w2 = (parameter(state[f"{name}.{of}.dense.weight"]) for of in ("intermediate", "output"))
        self.b1, self.b2 = (parameter(state[f"{name}.{of}.dense.bias"]) for of in ("intermediate", "output"))

    def grouped(self, x: Any, w: Any, b: Any) -> Any:
        if self.s.grouped == "joined":
            return x @ torch.block_diag(*w) + b
        parts = x.unflatten(-1, (-1, len(w))).mT if self.s.grouped == "in turn" else x.unflatten(-1, (len(w), -1))
        return torch.einsum("btgi,gio->btgo", parts, w).flatten(2) + b

    def forward(self, x: Any, seen: Any) -> Any:
        x = self.ln1(x + self.proj(self.mix(x, seen)))
        h = F.gelu(self.grouped(x, self.w1, self.b1), approximate=self.s.gelu)
        return self.ln2(x + self.grouped(h, self.w2, self.b2))


class SpanConvBert(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "span_bias": 1.0, "depth_flipped": False, "with_query": True, "taps_first": False},
        **{"over": "taps", "causal": False, "kernel_flipped": False, "form": "unfolded", "spans_first": False},
        **{"joined": "heads", "grouped": "by group", "gelu": "none"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.words, self.places, self.types = (
            parameter(state[f"embeddings.{name}_embeddings.weight"]) for name in ("word", "position", "token_type")
        )
        self.ln = norm(state, "embeddings.LayerNorm", settings.at().eps)
        self.wide = linear(*(state[f"embeddings_project.{kind}"] for kind in ("weight", "bias")))
        numbers = range(config.num_hidden_layers)
        self.layers = nn.ModuleList(ConvLayer(state, f"encoder.layer.{n}", settings.at(n)) for n in numbers)

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        x = F.embedding(input_ids, self.words) + self.places[: input_ids.shape[1]]
        x = self.wide(self.ln(x + F.embedding(token_type_ids, self.types)))
        seen = attention_mask[:, None, None].bool()
        for layer in self.layers:
            x = layer(x, seen)
        return x
