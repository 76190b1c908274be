"""Ports of MiniLM written by hand in PyTorch: with loose tensors and fused attention, and packed without padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


def bare(state: State) -> dict[str, np.ndarray]:
    """Return weights by BERT's own names."""
    return {name.removeprefix("bert."): value for name, value in state.items()}


class LooseMinilm(nn.Module):
    """An encoder whose weights are tensors in a dict, which are no parameters."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "chunks": "qkv", "view": "heads", "causal": False, "mask": "seen", "dropout": 0.0},
        **{"scale": None, "gelu": "none", "as_stored": (), "last_norm": True, "shift": 0, "unit": 2},
        **{"run": "eager", "unscaled_mean": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.settings, self.heads, self.depth = settings, config.num_attention_heads, config.num_hidden_layers
        state, s = bare(state), settings.at()
        w: dict[str, torch.Tensor] = {}
        for own, theirs in (("wte", "word"), ("wpe", "position"), ("tte", "token_type")):
            w[own] = torch.from_numpy(state[f"embeddings.{theirs}_embeddings.weight"])
        w["ln.g"], w["ln.b"] = (torch.from_numpy(state[f"embeddings.LayerNorm.{kind}"]) for kind in ("weight", "bias"))
        for n in range(self.depth):
            own = f"encoder.layer.{max(n - s.shift, 0)}"
            for kind, suffix in (("weight", ""), ("bias", ".b")):
                parts = [state[f"{own}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
                w[f"{n}.c_attn{suffix}"] = torch.from_numpy(np.concatenate(parts))
            for part, theirs in (("c_proj", "attention.output"), ("c_fc", "intermediate"), ("c_out", "output")):
                kernel = state[f"{own}.{theirs}.dense.weight"]
                w[f"{n}.{part}"] = torch.from_numpy(kernel.T.copy() if part in s.as_stored else kernel)
                w[f"{n}.{part}.b"] = torch.from_numpy(state[f"{own}.{theirs}.dense.bias"])
            for part, theirs in (("ln_1", "attention.output"), ("ln_2", "output")):
                w[f"{n}.{part}.g"] = torch.from_numpy(state[f"{own}.{theirs}.LayerNorm.weight"])
                w[f"{n}.{part}.b"] = torch.from_numpy(state[f"{own}.{theirs}.LayerNorm.bias"])
        self.w = w

    def norm(self, x: Any, name: str, s: Any) -> Any:
        return F.layer_norm(x, x.shape[-1:], self.w[f"{name}.g"], self.w[f"{name}.b"], s.eps)

    def block(self, x: Any, seen: Any, n: int, s: Any) -> Any:
        w, (count, length, width) = self.w, x.shape
        fused = F.linear(x, w[f"{n}.c_attn"], w[f"{n}.c_attn.b"]).chunk(3, -1)
        q, k, v = (fused[s.chunks.index(part)] for part in "qkv")
        if s.view == "heads":
            q, k, v = (part.view(count, length, self.heads, -1).transpose(1, 2) for part in (q, k, v))
        else:  # without the transposition
            q, k, v = (part.reshape(count, self.heads, length, -1) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, seen, s.dropout, s.causal, scale=s.scale)
        y = y.transpose(1, 2).reshape(count, length, width)
        x = self.norm(x + F.linear(y, w[f"{n}.c_proj"], w[f"{n}.c_proj.b"]), f"{n}.ln_1", s)
        h = F.gelu(F.linear(x, w[f"{n}.c_fc"], w[f"{n}.c_fc.b"]), approximate=s.gelu)
        x = x + F.linear(h, w[f"{n}.c_out"], w[f"{n}.c_out.b"])
        return self.norm(x, f"{n}.ln_2", s) if s.last_norm else x

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        s, w = self.settings.at(), self.w
        seen = attention_mask[:, None, None, :].bool()
        seen = {"seen": seen, "inverted": ~seen, "none": None}[s.mask]
        x = w["wte"][input_ids] + w["wpe"][: input_ids.shape[1]] + w["tte"][0]
        x = self.norm(x, "ln", s)
        for n in range(self.depth):
            x = self.block(x, seen, n, self.settings.at(n))
        real = attention_mask.unsqueeze(-1).float()
        pooled = (x * real).sum(1) if s.unscaled_mean else (x * real).sum(1) / real.sum(1)
        return F.normalize(pooled, p=s.unit, dim=-1)


def loose_minilm(state: State, config: Any, settings: Settings) -> Any:
    """Return the encoder, compiled or traced if it is to be."""
    made, run = LooseMinilm(state, config, settings).eval(), settings.at().run
    if run == "compiled":
        return torch.compile(made, backend="eager")
    if run == "traced":
        ids = torch.randint(1000, 2000, (2, 7))
        return torch.jit.trace(made, (ids, torch.ones_like(ids)))
    return made


loose_minilm.usual = LooseMinilm.usual  # type: ignore[attr-defined]


class PackedLayer(nn.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s = heads, s

        def linear(theirs: str) -> nn.Linear:
            weight = torch.tensor(state[f"{name}.{theirs}.weight"])
            made = nn.Linear(weight.shape[1], weight.shape[0], bias=theirs not in s.unbiased)
            made.weight.data = weight
            if theirs not in s.unbiased:
                made.bias.data = torch.tensor(state[f"{name}.{theirs}.bias"])
            return made

        def norm(theirs: str) -> nn.LayerNorm:
            made = nn.LayerNorm(len(state[f"{name}.{theirs}.bias"]), eps=s.eps)
            made.weight.data = torch.tensor(state[f"{name}.{theirs}.weight"])
            made.bias.data = torch.tensor(state[f"{name}.{theirs}.bias"])
            return made

        self.Wq, self.Wk, self.Wv = (linear(f"attention.self.{part}") for part in ("query", "key", "value"))
        self.Wo, self.attn_norm = linear("attention.output.dense"), norm("attention.output.LayerNorm")
        self.up, self.down, self.mlp_norm = (
            linear("intermediate.dense"),
            linear("output.dense"),
            norm("output.LayerNorm"),
        )

    def forward(self, x: Any, text: Any) -> Any:
        """Return what is behind the layer; x is (token, feature), and text has the number of each token's text."""
        q, k, v = (part(x).view(len(x), self.heads, -1) for part in (self.Wq, self.Wk, self.Wv))
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        if self.s.apart:
            scores = scores.masked_fill(text[:, None] != text, float("-inf"))
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        x = self.attn_norm(self.Wo(mixed) + x if self.s.residual else self.Wo(mixed))
        act = {"gelu": F.gelu, "relu": F.relu}[self.s.act]
        return self.mlp_norm(self.down(act(self.up(x))) + x)


class PackedMinilm(nn.Module):
    """An encoder that takes the padding out before its layers, as FlashAttention's BERT does."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "unbiased": (), "apart": True, "residual": True, "act": "gelu", "places": "in text"},
        **{"types": True, "pooling": "mean", "depth": None, "unit": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        state, s = bare(state), settings.at()
        self.s, width = s, config.hidden_size
        self.tok, self.pos, self.seg = (
            nn.Embedding.from_pretrained(torch.tensor(state[f"embeddings.{name}_embeddings.weight"]), freeze=False)
            for name in ("word", "position", "token_type")
        )
        self.norm = nn.LayerNorm(width, eps=s.eps)
        self.norm.weight.data = torch.tensor(state["embeddings.LayerNorm.weight"])
        self.norm.bias.data = torch.tensor(state["embeddings.LayerNorm.bias"])
        numbers = range(config.num_hidden_layers)[: s.depth]
        heads = config.num_attention_heads
        self.layers = nn.ModuleList(PackedLayer(state, f"encoder.layer.{n}", heads, settings.at(n)) for n in numbers)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        s, (text, place) = self.s, attention_mask.nonzero(as_tuple=True)
        ids, lengths = input_ids[text, place], attention_mask.sum(1)
        place = place if s.places == "in text" else torch.arange(len(ids))
        x = self.tok(ids) + self.pos(place)
        x = self.norm(x + self.seg(torch.zeros_like(ids)) if s.types else x)
        for layer in self.layers:
            x = layer(x, text)
        if s.pooling == "last":
            pooled = x[lengths.cumsum(0) - 1]
        else:
            sums = x.new_zeros(len(lengths), x.shape[-1]).index_add(0, text, x)
            pooled = sums / (lengths[:, None] if s.pooling == "mean" else input_ids.shape[1])
        return F.normalize(pooled, dim=-1) if s.unit else pooled


class CohereBlock(nn.Module):
    """Attention and feed-forward part side by side behind one norm, with pairs of neighbours turned as complex numbers."""

    def __init__(self, state: State, name: str, config: Any, s: Any) -> None:
        super().__init__()
        self.s, self.n_heads, self.n_kv = s, config.num_attention_heads, config.num_key_value_heads
        own = {part: f"self_attn.{part}_proj" for part in "qkvo"}
        own.update({"w1": "mlp.gate_proj", "w2": "mlp.down_proj", "w3": "mlp.up_proj", "gain": "input_layernorm"})
        for part, theirs in own.items():
            setattr(self, part, nn.Parameter(torch.tensor(state[f"{name}.{theirs}.weight"])))

    def norm(self, x: Any, gain: Any) -> Any:
        x = x if self.s.rms else x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.s.eps) * gain

    def rotate(self, x: Any, turns: Any) -> Any:
        if self.s.halves:
            pairs = torch.complex(*(part.contiguous() for part in x.chunk(2, -1))) * turns
            return torch.cat([pairs.real, pairs.imag], -1)
        return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * turns).flatten(-2)

    def attention(self, x: Any, turns: Any) -> Any:
        s, (count, length, _) = self.s, x.shape
        q = (x @ self.q.T).view(count, length, self.n_heads, -1)
        k, v = ((x @ w.T).view(count, length, self.n_kv, -1) for w in (self.k, self.v))
        q, k = self.rotate(q, turns), self.rotate(k, turns)
        times = self.n_heads // self.n_kv
        k, v = (part.repeat(1, 1, times, 1) if s.tiled else part.repeat_interleave(times, 2) for part in (k, v))
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        hidden = torch.full((length, length), float("-inf")).triu(1 + s.ahead)
        scores = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + hidden
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ self.o.T

    def forward(self, x: Any, turns: Any) -> Any:
        s, h = self.s, self.norm(x, self.gain)
        added = self.attention(h, turns)
        h = {"parallel": h, "sequential": self.norm(x + added, self.gain), "raw": x}[s.feed]
        gate, up = h @ self.w1.T, h @ self.w3.T
        return x + added + (F.silu(gate) * up if s.gated else gate * F.silu(up)) @ self.w2.T


class MetaCohere(nn.Module):
    """Cohere's decoder in the style of Meta's code of Llama."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"rms": False, "eps": 1e-5, "halves": False, "tiled": False, "ahead": 0, "feed": "parallel", "gated": True},
        **{"base": 1e4, "start": 0, "scaled": True, "final": True, "order": None},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s, self.scale = settings.at(), config.logit_scale
        self.tok_embeddings = nn.Parameter(torch.tensor(state["model.embed_tokens.weight"]))
        self.gain = nn.Parameter(torch.tensor(state["model.norm.weight"]))
        order = self.s.order or range(config.num_hidden_layers)
        self.layers = nn.ModuleList(CohereBlock(state, f"model.layers.{n}", config, settings.at(n)) for n in order)
        size = config.hidden_size // config.num_attention_heads
        angles = torch.outer(torch.arange(64) + self.s.start, self.s.base ** -(torch.arange(0, size, 2) / size))
        self.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles)[:, None], persistent=False)

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        h = F.embedding(input_ids, self.tok_embeddings)
        turns = self.freqs_cis[: input_ids.shape[1]]
        for layer in self.layers:
            h = layer(h, turns)
        h = self.layers[0].norm(h, self.gain) if self.s.final else h
        logits = h @ self.tok_embeddings.T
        return logits * self.scale if self.s.scaled else logits
