"""A port written by hand in MXNet Gluon: DistilBERT, as GluonNLP's scripts write an encoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from embgrad_gluon.importing import import_mxnet

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]

mx = import_mxnet()
nn = mx.gluon.nn


def gelu(x: Any, kind: str) -> Any:
    if kind == "tanh":
        return 0.5 * x * (1 + mx.nd.tanh(0.7978845608 * (x + 0.044715 * x**3)))
    if kind == "quick":
        return x * mx.nd.sigmoid(1.702 * x)
    return 0.5 * x * (1 + mx.nd.erf(x / 2**0.5))


class SelfAttention(nn.Block):  # type: ignore[misc]
    def __init__(self, width: int, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s, self.width = heads, s, width
        with self.name_scope():
            self.query_proj = nn.Dense(width, flatten=False, in_units=width)
            self.key_proj = nn.Dense(width, flatten=False, in_units=width)
            self.value_proj = nn.Dense(width, flatten=False, in_units=width)
            self.out_proj = nn.Dense(width, flatten=False, in_units=width)

    def split(self, x: Any) -> Any:
        """Return (batch * head, position, feature)."""
        if self.s.inside:
            x = x.reshape((0, 0, -1, self.heads)).transpose((0, 3, 1, 2))
        else:
            x = x.reshape((0, 0, self.heads, -1)).transpose((0, 2, 1, 3))
        return x.reshape((-1, 0, 0), reverse=True)

    def forward(self, x: Any, mask: Any) -> Any:
        s = self.s
        q, k, v = self.split(self.query_proj(x)), self.split(self.key_proj(x)), self.split(self.value_proj(x))
        q = q * (self.width // self.heads) ** -0.5 if s.scaled else q
        scores = mx.nd.batch_dot(q, k, transpose_b=True)
        if mask is not None:
            seen = mx.nd.repeat(mask.expand_dims(1), self.heads, axis=0)
            if s.mask == "before":
                scores = mx.nd.where(mx.nd.broadcast_like(seen, scores), scores, -1e18 * mx.nd.ones_like(scores))
            weights = mx.nd.softmax(scores, axis=-1)
            weights = mx.nd.broadcast_mul(weights, seen) if s.mask == "after" else weights
        else:
            weights = mx.nd.softmax(scores, axis=-1)
        weights = mx.nd.Dropout(weights, p=s.dropout, mode="always") if s.dropout else weights
        mixed = mx.nd.batch_dot(weights, v).reshape((-1, self.heads, 0, 0), reverse=True)
        return self.out_proj(mixed.transpose((0, 2, 1, 3)).reshape((0, 0, -1)))


class Cell(nn.Block):  # type: ignore[misc]
    def __init__(self, width: int, inner: int, heads: int, s: Any) -> None:
        super().__init__()
        self.s = s
        with self.name_scope():
            self.attention = SelfAttention(width, heads, s)
            self.sa_norm = nn.LayerNorm(epsilon=s.epsilon, in_channels=width)
            self.ffn_1 = nn.Dense(inner, flatten=False, in_units=width, use_bias=s.inner_bias)
            self.ffn_2 = nn.Dense(width, flatten=False, in_units=inner)
            self.out_norm = nn.LayerNorm(epsilon=s.epsilon, in_channels=width)

    def forward(self, x: Any, mask: Any) -> Any:
        x = self.sa_norm(x + self.attention(x, mask))
        return self.out_norm(x + self.ffn_2(gelu(self.ffn_1(x), self.s.gelu)))


class DistilBert(nn.Block):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"epsilon": 1e-12, "gelu": "exact", "inside": False, "scaled": True, "mask": "before", "dropout": 0.0},
        **{"inner_bias": True, "first": 0, "hidden": 0, "positions": True, "embedding_norm": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s = self.s = settings.at()
        with self.name_scope():
            self.word_embed = nn.Embedding(config.vocab_size, config.dim)
            self.position_embed = nn.Embedding(config.max_position_embeddings, config.dim)
            self.norm = nn.LayerNorm(epsilon=s.epsilon, in_channels=config.dim)
            self.cells = nn.Sequential()
            for number in range(config.n_layers):
                self.cells.add(Cell(config.dim, config.hidden_dim, config.n_heads, settings.at(number)))
        self.initialize()

        def put(block: Any, name: str) -> None:
            if hasattr(block, "gamma"):
                block.gamma.set_data(mx.nd.array(state[f"{name}.weight"]))
                block.beta.set_data(mx.nd.array(state[f"{name}.bias"]))
                return
            block.weight.set_data(mx.nd.array(state[f"{name}.weight"]))
            if getattr(block, "bias", None) is not None:
                block.bias.set_data(mx.nd.array(state[f"{name}.bias"]))

        put(self.word_embed, "embeddings.word_embeddings")
        put(self.position_embed, "embeddings.position_embeddings")
        put(self.norm, "embeddings.LayerNorm")
        for number, cell in enumerate(self.cells):
            name = f"transformer.layer.{number}"
            for own, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "out")):
                put(getattr(cell.attention, f"{own}_proj"), f"{name}.attention.{theirs}_lin")
            put(cell.ffn_1, f"{name}.ffn.lin1")
            put(cell.ffn_2, f"{name}.ffn.lin2")
            put(cell.sa_norm, f"{name}.sa_layer_norm")
            put(cell.out_norm, f"{name}.output_layer_norm")

    def forward(self, ids: Any, mask: Any) -> Any:
        s, length = self.s, ids.shape[1]
        x = self.word_embed(ids)
        if s.positions:
            x = mx.nd.broadcast_add(x, self.position_embed(mx.nd.arange(s.first, s.first + length)).expand_dims(0))
        x = self.norm(x) if s.embedding_norm else x
        lengths = mask.astype("float32").sum(axis=1) - s.hidden
        seen = mx.nd.broadcast_lesser(mx.nd.arange(length).expand_dims(0), lengths.expand_dims(1))
        for cell in self.cells:
            x = cell(x, seen if s.mask != "none" else None)
        return x
