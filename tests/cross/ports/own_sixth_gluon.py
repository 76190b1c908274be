"""A port written by hand in MXNet Gluon: RoBERTa with its vocabulary's logits, whose heads' projections are interleaved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from embgrad_gluon.importing import import_mxnet

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]

mx = import_mxnet()
nn = mx.gluon.nn


def interleaved(state: State, name: str, heads: int, s: Any) -> tuple[np.ndarray, ...]:
    """Return the weight and the bias of one projection, each head's query, key and value after another."""

    def fused(kind: str) -> np.ndarray:
        parts = [state[f"{name}.{part}.{kind}"] for part in s.order]
        parts = [part.reshape(heads, 1, -1, *part.shape[1:]) for part in parts]
        rows = np.stack(parts) if s.fused == "by role" else np.concatenate(parts, 1)
        return rows.reshape(-1, *state[f"{name}.key.{kind}"].shape[1:])

    return fused("weight"), fused("bias")


class RobertaCell(nn.HybridBlock):  # type: ignore[misc]
    """A layer over (position, example, feature)."""

    def __init__(self, config: Any, s: Any) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.heads, self.s, self.size = config.num_attention_heads, s, width // config.num_attention_heads
        with self.name_scope():
            self.qkv = nn.Dense(3 * width, flatten=False, in_units=width)
            self.proj = nn.Dense(width, flatten=False, in_units=width)
            self.ffn1 = nn.Dense(inner, flatten=False, in_units=width)
            self.ffn2 = nn.Dense(width, flatten=False, in_units=inner)
            self.ln1, self.ln2 = (nn.LayerNorm(epsilon=s.eps, in_channels=width) for _ in range(2))

    def attend(self, F: Any, x: Any, mask: Any) -> Any:
        s, fused = self.s, self.qkv(x)
        if s.form == "contrib":  # which scales the queries itself
            scores = F.contrib.interleaved_matmul_selfatt_qk(fused, heads=self.heads)
        else:
            parts = F.reshape(fused, (0, 0, self.heads, 3, -1))
            q, k, v = (
                F.reshape(F.transpose(part, (1, 2, 0, 3)), (-1, 0, 0), reverse=True)
                for part in F.split(parts, 3, axis=3, squeeze_axis=True)
            )
            scores = F.batch_dot(q, k, transpose_b=True) * self.size**-0.5
        scores = scores * self.size**-0.5 if s.scaled_twice else scores
        if s.masked:
            scores = F.broadcast_add(scores, (1 - F.expand_dims(mask, axis=1)) * -1e9)
        weights = F.softmax(scores, axis=-1)
        if s.form == "contrib":
            return F.contrib.interleaved_matmul_selfatt_valatt(fused, weights, heads=self.heads)
        mixed = F.reshape(F.batch_dot(weights, v), (-1, self.heads, 0, 0), reverse=True)
        return F.reshape(F.transpose(mixed, (2, 0, 1, 3)), (0, 0, -1))

    def hybrid_forward(self, F: Any, x: Any, mask: Any) -> Any:
        x = self.ln1(x + self.proj(self.attend(F, x, mask)))
        h = F.LeakyReLU(self.ffn1(x), act_type="gelu") if self.s.act == "gelu" else F.relu(self.ffn1(x))
        y = self.ffn2(h)
        return self.ln2(y + x if self.s.residual else y)


class GluonRobertaLm(nn.Block):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-5, "order": ("query", "key", "value"), "fused": "by head", "form": "contrib", "masked": True},
        **{"scaled_twice": False, "act": "gelu", "residual": True, "places": "from 2", "head_act": "gelu"},
        **{"head_norm": True, "head_bias": True, "tied": True, "hybrid": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s, self.heads = settings.at(), config.num_attention_heads
        s, width, vocab = self.s, config.hidden_size, config.vocab_size
        with self.name_scope():
            self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(config.max_position_embeddings, width)
            self.kinds, self.cells = nn.Embedding(config.type_vocab_size, width), nn.Sequential()
            self.ln, self.head_ln = (nn.LayerNorm(epsilon=s.eps, in_channels=width) for _ in range(2))
            for n in range(config.num_hidden_layers):
                self.cells.add(RobertaCell(config, settings.at(n)))
            self.head = nn.Dense(width, flatten=False, in_units=width)
            tied = {"params": self.words.params} if s.tied else {}
            self.decoder = nn.Dense(vocab, flatten=False, in_units=width, use_bias=False, **tied)
            self.bias = self.params.get("bias", shape=(vocab,), init="zeros")
        self.initialize()

        def put(block: Any, *values: Any) -> None:
            names = ("gamma", "beta") if hasattr(block, "gamma") else ("weight", "bias")
            for name, value in zip(names, values, strict=False):
                getattr(block, name).set_data(mx.nd.array(value))

        def both(name: str) -> tuple[np.ndarray, ...]:
            return tuple(state[f"{name}.{kind}"] for kind in ("weight", "bias"))

        own = "roberta.embeddings"
        for block, name in ((self.words, "word"), (self.places, "position"), (self.kinds, "token_type")):
            put(block, state[f"{own}.{name}_embeddings.weight"])
        put(self.ln, *both(f"{own}.LayerNorm"))
        for n, cell in enumerate(self.cells):
            own = f"roberta.encoder.layer.{n}"
            put(cell.qkv, *interleaved(state, f"{own}.attention.self", self.heads, settings.at(n)))
            names = {"proj": "attention.output.dense", "ln1": "attention.output.LayerNorm", "ln2": "output.LayerNorm"}
            for name, theirs in (names | {"ffn1": "intermediate.dense", "ffn2": "output.dense"}).items():
                put(getattr(cell, name), *both(f"{own}.{theirs}"))
        put(self.head, *both("lm_head.dense"))
        put(self.head_ln, *both("lm_head.layer_norm"))
        if not s.tied:
            put(self.decoder, np.random.default_rng(5).normal(0, 0.15, (vocab, width)))
        self.bias.set_data(mx.nd.array(state["lm_head.bias"] * s.head_bias))
        if s.hybrid:
            for cell in self.cells:
                cell.hybridize()

    def forward(self, ids: Any, mask: Any) -> Any:
        s, length = self.s, ids.shape[1]
        real = (ids != 1).astype("float32")
        counted = mx.nd.cumsum(real, axis=1) * real + 1
        places = counted if s.places == "from 2" else mx.nd.broadcast_like(mx.nd.arange(length).expand_dims(0), real)
        x = self.words(ids) + self.places(places) + self.kinds(mx.nd.zeros_like(ids))
        x = mx.nd.transpose(self.ln(x), (1, 0, 2))
        seen = mx.nd.repeat(mask.astype("float32"), self.heads, axis=0)
        for cell in self.cells:
            x = cell(x, seen)
        h = self.head(mx.nd.transpose(x, (1, 0, 2)))
        h = mx.nd.LeakyReLU(h, act_type="gelu") if s.head_act == "gelu" else h
        h = self.head_ln(h) if s.head_norm else h
        return mx.nd.broadcast_add(self.decoder(h), self.bias.data())
