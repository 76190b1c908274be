"""A port written by hand in MXNet Gluon: RoFormer of hybrid blocks, with neighbours turned together and masked softmax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from embgrad_gluon.importing import import_mxnet

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]

mx = import_mxnet()
nn = mx.gluon.nn


class RoformerLayer(nn.HybridBlock):  # type: ignore[misc]
    def __init__(self, width: int, inner: int, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.size, self.s = heads, width // heads, s
        with self.name_scope():
            for name in ("query", "key", "value", "proj", "ffn2"):
                units = inner if name == "ffn2" else width
                setattr(self, name, nn.Dense(width, flatten=False, in_units=units))
            self.ffn1 = nn.Dense(inner, flatten=False, in_units=width)
            self.ln1, self.ln2 = (nn.LayerNorm(epsilon=s.eps, in_channels=width) for _ in range(2))

    def turn(self, F: Any, x: Any, cos: Any, sin: Any) -> Any:
        """Return turned heads (example * head, position, feature)."""
        half = self.size // 2
        if self.s.halves:
            a, b = F.slice_axis(x, axis=-1, begin=0, end=half), F.slice_axis(x, axis=-1, begin=half, end=None)
        else:
            pairs = F.reshape(x, (0, 0, half, 2))
            a, b = (F.squeeze(part, axis=-1) for part in F.split(pairs, num_outputs=2, axis=-1))
        first = F.broadcast_mul(a, cos) - F.broadcast_mul(b, sin)
        second = F.broadcast_mul(b, cos) + F.broadcast_mul(a, sin)
        if self.s.halves:
            return F.concat(first, second, dim=-1)
        return F.reshape(F.stack(first, second, axis=-1), (0, 0, -1))

    def split(self, F: Any, x: Any) -> Any:
        x = F.transpose(F.reshape(x, (0, 0, self.heads, -1)), (0, 2, 1, 3))
        return F.reshape(x, (-1, 0, 0), reverse=True)

    def hybrid_forward(self, F: Any, x: Any, cos: Any, sin: Any, lengths: Any) -> Any:
        s = self.s
        q, k, v = (self.split(F, part(x)) for part in (self.query, self.key, self.value))
        q = self.turn(F, q, cos, sin) if "q" in s.turned else q
        k = self.turn(F, k, cos, sin) if "k" in s.turned else k
        v = self.turn(F, v, cos, sin) if "v" in s.turned else v
        scores = F.batch_dot(q, k, transpose_b=True) * self.size**-0.5
        if s.masked:  # positions in front, as MXNet masks sequences
            scores = F.SequenceMask(F.transpose(scores, (2, 0, 1)), lengths, True, value=-1e9)
            scores = F.transpose(scores, (1, 2, 0))
        mixed = F.batch_dot(F.softmax(scores, axis=-1), v)
        mixed = F.transpose(F.reshape(mixed, (-1, self.heads, 0, 0), reverse=True), (0, 2, 1, 3))
        mixed = self.proj(F.reshape(mixed, (0, 0, -1)))
        x = self.ln1(x + mixed if s.residual else mixed)
        h = self.ffn1(x)
        h = {"gelu": lambda: F.LeakyReLU(h, act_type="gelu"), "relu": lambda: F.relu(h)}[s.act]()
        return self.ln2(x + self.ffn2(h))


class GluonRoformer(nn.Block):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "halves": False, "turned": "qk", "masked": True, "residual": True, "act": "gelu"},
        **{"base": 1e4, "sign": 1.0, "hybrid": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s, width, depth = settings.at(), config.hidden_size, config.num_hidden_layers
        self.s, self.heads, self.size = s, config.num_attention_heads, width // config.num_attention_heads
        with self.name_scope():
            self.words, self.kinds = nn.Embedding(config.vocab_size, width), nn.Embedding(config.type_vocab_size, width)
            self.ln = nn.LayerNorm(epsilon=s.eps, in_channels=width)
            self.cells = nn.Sequential()
            for n in range(depth):
                self.cells.add(RoformerLayer(width, config.intermediate_size, self.heads, settings.at(n)))
        self.initialize()

        def put(block: Any, name: str) -> None:
            names = ("gamma", "beta") if hasattr(block, "gamma") else ("weight", "bias")
            for own, theirs in zip(names, ("weight", "bias"), strict=True):
                if getattr(block, own, None) is not None:
                    getattr(block, own).set_data(mx.nd.array(state[f"{name}.{theirs}"]))

        put(self.words, "embeddings.word_embeddings")
        put(self.kinds, "embeddings.token_type_embeddings")
        put(self.ln, "embeddings.LayerNorm")
        for n, cell in enumerate(self.cells):
            own = f"encoder.layer.{n}"
            names = {name: f"attention.self.{name}" for name in ("query", "key", "value")}
            names |= {"proj": "attention.output.dense", "ln1": "attention.output.LayerNorm", "ln2": "output.LayerNorm"}
            for name, theirs in (names | {"ffn1": "intermediate.dense", "ffn2": "output.dense"}).items():
                put(getattr(cell, name), f"{own}.{theirs}")
        if s.hybrid:
            for cell in self.cells:
                cell.hybridize()

    def forward(self, ids: Any, mask: Any) -> Any:
        s, length = self.s, ids.shape[1]
        x = self.words(ids)
        x = self.ln(x + self.kinds(mx.nd.zeros_like(ids)))
        rates = s.base ** (-mx.nd.arange(0, self.size, 2) / self.size)
        angles = mx.nd.broadcast_mul(mx.nd.arange(length).expand_dims(1), rates.expand_dims(0)).expand_dims(0)
        lengths = mx.nd.repeat(mask.astype("float32").sum(axis=1), self.heads, axis=0)
        for cell in self.cells:
            x = cell(x, mx.nd.cos(angles), mx.nd.sin(angles) * s.sign, lengths)
        return x
