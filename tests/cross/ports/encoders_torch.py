"""Ports written by hand in PyTorch: encoders around its attention, of loose tensors, of convolutions, with adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cross.ports.by_hand import KINDS, PARTS, TABLES, State, bare
from tests.cross.ports.by_hand_torch import GELUS, bucket, embedding, linear, named_linear, norm, parameter, tables
from tests.cross.ports.own_settings import Settings

# BERT and RoBERTa around PyTorch's attention


class EncoderLayer(nn.Module):
    """A layer of BERT around PyTorch's own attention."""

    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.s, own = s, f"{name}.attention"
        width = len(state[f"{own}.output.dense.bias"])
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        for kind in KINDS:
            fused = np.concatenate([state[f"{own}.self.{part}.{kind}"] for part in PARTS])
            getattr(self.attn, f"in_proj_{kind}").data = torch.tensor(fused)
            getattr(self.attn.out_proj, kind).data = torch.tensor(state[f"{own}.output.dense.{kind}"])
        self.norm1 = norm(state, f"{own}.output.LayerNorm", s.epsilon)
        self.norm2 = norm(state, f"{name}.output.LayerNorm", s.epsilon)
        self.fc1, self.fc2 = (named_linear(state, f"{name}.{part}.dense") for part in ("intermediate", "output"))

    def forward(self, x: Any, mask: Any) -> Any:
        hidden = {"hidden": mask == 0, "inverted": mask == 1, "none": None}[self.s.mask]
        if self.s.pre_norm:
            normed = self.norm1(x)
            x = x + self.attn(normed, normed, normed, key_padding_mask=hidden, need_weights=False)[0]
            return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        x = self.norm1(x + self.attn(x, x, x, key_padding_mask=hidden, need_weights=False)[0])
        return self.norm2(x + self.fc2(F.gelu(self.fc1(x))))


class Encoder(nn.Module):
    """BERT or RoBERTa with PyTorch's attention, and what stands behind it: a pooled and normalised vector, or classes."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"epsilon": 1e-12, "mask": "hidden", "pre_norm": False},
        **{"first": 0, "pooling": "mean", "unit": True, "act": torch.tanh},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s, base = settings.at(), "roberta." if "classifier.dense.weight" in state else "bert."
        self.tokens, self.places, self.types = (
            embedding(state[f"{base}embeddings.{name}_embeddings.weight"]) for name in TABLES
        )
        self.norm = norm(state, f"{base}embeddings.LayerNorm", self.s.epsilon)
        self.blocks = nn.ModuleList(
            EncoderLayer(state, f"{base}encoder.layer.{number}", config.num_attention_heads, settings.at(number))
            for number in range(config.num_hidden_layers)
        )
        self.start = config.pad_token_id + 1 if base == "roberta." else 0
        if base == "roberta.":
            self.fc, self.out = (named_linear(state, f"classifier.{name}") for name in ("dense", "out_proj"))

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        places = torch.arange(input_ids.shape[1]) + self.start + self.s.first
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.norm(self.tokens(input_ids) + self.places(places) + self.types(types))
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
            "sum": lambda: (x * real).sum(1),
            "max": lambda: x.masked_fill(real == 0, -1e9).max(1).values,
        }
        return kinds[self.s.pooling]()


class Classifier(Encoder):
    usual: ClassVar[Mapping[str, Any]] = {**Encoder.usual, "epsilon": 1e-5, "pooling": "first"}


# MiniLM of loose tensors


class LooseMinilm(nn.Module):
    """An encoder whose weights are tensors in a dict, which are no parameters."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "chunks": "qkv", "view": "heads", "causal": False, "mask": "seen", "dropout": 0.0},
        **{"gelu": "none", "as_stored": (), "shift": 0, "unit": 2, "run": "eager"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.settings, self.heads, self.depth = settings, config.num_attention_heads, config.num_hidden_layers
        state, s = bare(state), settings.at()
        w: dict[str, torch.Tensor] = {}
        for own, theirs in zip(("wte", "wpe", "tte"), TABLES, strict=True):
            w[own] = torch.from_numpy(state[f"embeddings.{theirs}_embeddings.weight"])
        w["ln.g"], w["ln.b"] = (torch.from_numpy(state[f"embeddings.LayerNorm.{kind}"]) for kind in KINDS)
        for n in range(self.depth):
            own = f"encoder.layer.{max(n - s.shift, 0)}"
            for kind, suffix in zip(KINDS, ("", ".b"), strict=True):
                parts = [state[f"{own}.attention.self.{part}.{kind}"] for part in PARTS]
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
        y = F.scaled_dot_product_attention(q, k, v, seen, s.dropout, s.causal)
        y = y.transpose(1, 2).reshape(count, length, width)
        x = self.norm(x + F.linear(y, w[f"{n}.c_proj"], w[f"{n}.c_proj.b"]), f"{n}.ln_1", s)
        h = F.gelu(F.linear(x, w[f"{n}.c_fc"], w[f"{n}.c_fc.b"]), approximate=s.gelu)
        x = x + F.linear(h, w[f"{n}.c_out"], w[f"{n}.c_out.b"])
        return self.norm(x, f"{n}.ln_2", s)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        s, w = self.settings.at(), self.w
        seen = attention_mask[:, None, None, :].bool() if s.mask == "seen" else None
        x = w["wte"][input_ids] + w["wpe"][: input_ids.shape[1]] + w["tte"][0]
        x = self.norm(x, "ln", s)
        for n in range(self.depth):
            x = self.block(x, seen, n, self.settings.at(n))
        real = attention_mask.unsqueeze(-1).float()
        pooled = (x * real).sum(1) / real.sum(1)
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


# MiniLM over (example, channel, 1, position), as Apple writes transformers for its neural engine


class ChannelNorm(nn.Module):
    """A norm over channels that adds its bias before it multiplies by its gain; the bias is divided when it is loaded."""

    def __init__(self, state: State, name: str, s: Any) -> None:
        super().__init__()
        gain, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        self.gain, self.bias = parameter(gain), parameter(bias / gain if s.bias_divided else bias)

    def forward(self, x: Any) -> Any:
        centred = x - x.mean(1, keepdim=True)
        unit = centred * (centred.square().mean(1, keepdim=True) + 1e-12).rsqrt()
        return (unit + self.bias.view(-1, 1, 1)) * self.gain.view(-1, 1, 1)


class AneLayer(nn.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s = heads, s
        own = {f"{part[0]}_lin": f"attention.self.{part}" for part in PARTS}
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
            scores = scores * query.shape[1] ** -0.5
            weights = (scores + hidden).softmax(s.axis)
            mixed.append(torch.einsum("bkhq,bchk->bchq", weights, value))
        return torch.cat(mixed, 1)

    def forward(self, x: Any, hidden: Any) -> Any:
        x = self.sa_norm(x + self.out_lin(self.attention(x, hidden)))
        return self.out_norm(x + self.lin2(GELUS[self.s.gelu](self.lin1(x))))


class AneMinilm(nn.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"bias_divided": True, "unbiased": (), "as_stored": (), "strided": False, "joined": False},
        **{"axis": 1, "gelu": "exact", "mask": "keys"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s, state = settings.at(), bare(state)
        self.s, (self.words, self.places, self.kinds) = s, tables(state)
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
        pooled = (x * real).sum(-1) / real.sum(-1)
        return F.normalize(pooled, dim=-1)


# MiniLM with adapters


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

        def adapted(part: str) -> nn.Module:
            weight, bias = (state[f"{name}.attention.self.{part}.{kind}"] for kind in KINDS)
            base = weight - product(number, part)
            if part not in s.targets:
                return linear(base, bias)
            a, b = adapter(number, part)
            merged = s.scaling * (a.T @ b.T if s.run == "transposed" else b @ a)
            base = base if s.run == "beside" else base + merged
            return LoraLinear(base, bias, (a, b), s) if s.run in ("beside", "twice") else linear(base, bias)

        self.q, self.v = adapted("query"), adapted("value")
        parts = ("attention.self.key", "attention.output.dense", "intermediate.dense", "output.dense")
        self.k, self.out, self.fc1, self.fc2 = (named_linear(state, f"{name}.{part}") for part in parts)
        self.ln1, self.ln2 = (norm(state, f"{name}.{part}.LayerNorm", 1e-12) for part in ("attention.output", "output"))

    def forward(self, x: Any, seen: Any) -> Any:
        q, k, v = (part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2)
        x = self.ln1(x + self.out(mixed))
        return self.ln2(x + self.fc2(F.gelu(self.fc1(x))))


class LoraMinilm(nn.Module):
    """An encoder whose queries and values have adapters beside them, or merged."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"pooling": "mean", "run": "beside", "scaling": ALPHA / RANK, "dropout": 0.0},
        "targets": ("query", "value"),
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        state, s, numbers = bare(state), settings.at(), range(config.num_hidden_layers)
        self.word, self.places, self.kinds = tables(state)
        self.s, self.ln, heads = s, norm(state, "embeddings.LayerNorm", 1e-12), config.num_attention_heads
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
        return F.normalize(pooled, dim=-1)


# MPNet that sees keys block by block


class MpnetLayer(nn.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s, own = heads, s, f"{name}.attention"
        self.q, self.k, self.v, self.o = (named_linear(state, f"{own}.attn.{part}") for part in "qkvo")
        self.inner, self.outer = (named_linear(state, f"{name}.{part}.dense") for part in ("intermediate", "output"))
        self.first, self.second = norm(state, f"{own}.LayerNorm", 1e-12), norm(state, f"{name}.output.LayerNorm", 1e-12)

    @property
    def scale(self) -> float:
        return float((self.q.out_features // self.heads) ** -0.5)

    def block(self, q: Any, k: Any, bias: Any, seen: Any) -> Any:
        """Return the scores of a block of keys."""
        s, scores = self.s, q @ k.transpose(-1, -2)
        scores = (scores + bias) * self.scale if s.scaled == "all" else scores * self.scale + bias
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
        **{"block": 6, "passes": 1, "rescaled": True, "whole_blocks": False, "unmasked": False},
        **{"scaled": "scores", "biased": True, "sign": 1, "gelu": "none"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s, numbers, heads = settings.at(), range(config.num_hidden_layers), config.num_attention_heads
        self.words, self.places = (parameter(state[f"embeddings.{n}_embeddings.weight"]) for n in ("word", "position"))
        self.ln = norm(state, "embeddings.LayerNorm", 1e-12)
        self.apart = parameter(state["encoder.relative_attention_bias.weight"])
        self.layers = nn.ModuleList(MpnetLayer(state, f"encoder.layer.{n}", heads, settings.at(n)) for n in numbers)

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        s, at, real = self.s, torch.arange(input_ids.shape[1]), (input_ids != 1).long()
        places = real.cumsum(1) * real + 1
        x = self.ln(F.embedding(input_ids, self.words) + F.embedding(places, self.places))
        buckets = bucket((at[None] - at[:, None]) * s.sign, 32, 128, both=True)
        bias, seen = F.embedding(buckets, self.apart).permute(2, 0, 1), attention_mask[:, None, None].bool()
        for layer in self.layers:
            x = layer(x, bias, seen)
        return x
