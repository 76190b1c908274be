"""Ports written by hand in MXNet Gluon: encoders, DistilBERT of blocks, and MiniLM with interleaved attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from embgrad_gluon.importing import import_mxnet

from tests.cross.ports.by_hand import KINDS, PARTS, State, bare
from tests.cross.ports.own_settings import Settings

mx = import_mxnet()
nn = mx.gluon.nn


def put(block: Any, state: State, name: str) -> None:
    """Give a block the weights of a name."""
    names = ("gamma", "beta") if hasattr(block, "gamma") else KINDS
    for own, kind in zip(names, KINDS, strict=True):
        if getattr(block, own, None) is not None:
            getattr(block, own).set_data(mx.nd.array(state[f"{name}.{kind}"]))


def dense(units: int, width: int) -> Any:
    return nn.Dense(units, flatten=False, in_units=width)


# DistilBERT, as GluonNLP's scripts write an encoder


class SelfAttention(nn.Block):  # type: ignore[misc]
    def __init__(self, width: int, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s, self.width = heads, s, width
        with self.name_scope():
            self.query_proj, self.key_proj, self.value_proj = (dense(width, width) for _ in range(3))
            self.out_proj = dense(width, width)

    def split(self, x: Any) -> Any:
        """Return (batch * head, position, feature)."""
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
        weights = mx.nd.Dropout(weights, p=s.dropout, mode="always") if s.dropout else weights
        mixed = mx.nd.batch_dot(weights, v).reshape((-1, self.heads, 0, 0), reverse=True)
        return self.out_proj(mixed.transpose((0, 2, 1, 3)).reshape((0, 0, -1)))


class Cell(nn.Block):  # type: ignore[misc]
    def __init__(self, width: int, inner: int, heads: int, s: Any) -> None:
        super().__init__()
        self.s = s
        with self.name_scope():
            self.attention = SelfAttention(width, heads, s)
            self.sa_norm = nn.LayerNorm(epsilon=1e-12, in_channels=width)
            self.ffn_1, self.ffn_2 = dense(inner, width), dense(width, inner)
            self.out_norm = nn.LayerNorm(epsilon=1e-12, in_channels=width)

    def forward(self, x: Any, mask: Any) -> Any:
        x = self.sa_norm(x + self.attention(x, mask))
        h = self.ffn_1(x)
        tanh = self.s.gelu == "tanh"
        act = mx.nd.tanh(0.7978845608 * (h + 0.044715 * h**3)) if tanh else mx.nd.erf(h / 2**0.5)
        return self.out_norm(x + self.ffn_2(0.5 * h * (1 + act)))


class DistilBert(nn.Block):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"gelu": "exact", "scaled": True, "mask": "before", "dropout": 0.0, "hidden": 0},
        **{"positions": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s = settings.at()
        with self.name_scope():
            self.word_embed = nn.Embedding(config.vocab_size, config.dim)
            self.position_embed = nn.Embedding(config.max_position_embeddings, config.dim)
            self.norm = nn.LayerNorm(epsilon=1e-12, in_channels=config.dim)
            self.cells = nn.Sequential()
            for number in range(config.n_layers):
                self.cells.add(Cell(config.dim, config.hidden_dim, config.n_heads, settings.at(number)))
        self.initialize()

        put(self.word_embed, state, "embeddings.word_embeddings")
        put(self.position_embed, state, "embeddings.position_embeddings")
        put(self.norm, state, "embeddings.LayerNorm")
        for number, cell in enumerate(self.cells):
            name = f"transformer.layer.{number}"
            for own, theirs in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "out")):
                put(getattr(cell.attention, f"{own}_proj"), state, f"{name}.attention.{theirs}_lin")
            put(cell.ffn_1, state, f"{name}.ffn.lin1")
            put(cell.ffn_2, state, f"{name}.ffn.lin2")
            put(cell.sa_norm, state, f"{name}.sa_layer_norm")
            put(cell.out_norm, state, f"{name}.output_layer_norm")

    def forward(self, ids: Any, mask: Any) -> Any:
        s, length = self.s, ids.shape[1]
        x = self.word_embed(ids)
        if s.positions:
            x = mx.nd.broadcast_add(x, self.position_embed(mx.nd.arange(length)).expand_dims(0))
        x = self.norm(x)
        lengths = mask.astype("float32").sum(axis=1) - s.hidden
        seen = mx.nd.broadcast_lesser(mx.nd.arange(length).expand_dims(0), lengths.expand_dims(1))
        for cell in self.cells:
            x = cell(x, seen if s.mask != "none" else None)
        return x


# MiniLM of raw parameters, with MXNet's interleaved attention, as GluonNLP has it


class Layer(mx.gluon.HybridBlock):  # type: ignore[misc]
    """A layer over (position, example, feature)."""

    def __init__(self, weights: Mapping[str, np.ndarray], heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s = heads, s
        with self.name_scope():
            for name, value in weights.items():
                setattr(self, name, self.params.get(name, shape=value.shape, init=mx.init.Constant(0.0)))

    def hybrid_forward(self, F: Any, x: Any, hidden: Any, **w: Any) -> Any:
        s, heads = self.s, self.heads
        dense = lambda y, name: F.FullyConnected(  # noqa: E731
            *(y, w[f"{name}_w"], w[f"{name}_b"]), num_hidden=self.__dict__[f"{name}_w"].shape[0], flatten=False
        )
        qkv = dense(x, "qkv")
        scores = F.contrib.interleaved_matmul_selfatt_qk(qkv, heads=heads) * s.times
        weights = F.softmax(F.broadcast_add(scores, hidden), axis=-1)
        mixed = dense(F.contrib.interleaved_matmul_selfatt_valatt(qkv, weights, heads=heads), "proj")
        x = F.LayerNorm(x + mixed, w["ln1_g"], w["ln1_b"], eps=1e-12)
        h = dense(x, "ffn1")
        tanh = F.tanh(0.7978845608 * (h + 0.044715 * h * h * h))
        h = 0.5 * h * (1 + tanh) if s.tanh else F.LeakyReLU(h, act_type="gelu")
        return F.LayerNorm(x + dense(h, "ffn2"), w["ln2_g"], w["ln2_b"], eps=1e-12)


class GluonMinilm(mx.gluon.Block):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"tanh": False, "interleaved": True, "times": 1.0, "depth": None, "hybrid": False, "more": 0},
        **{"word_scale": 1.0, "pooling": "mean", "unbiased": (), "by_length": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s, state = settings.at(), bare(state)
        self.s, self.heads, self.width = s, config.num_attention_heads, config.hidden_size
        with self.name_scope():
            own = {"word": "word_embeddings.weight", "place": "position_embeddings.weight"}
            own |= {"kind": "token_type_embeddings.weight", "ln_g": "LayerNorm.weight", "ln_b": "LayerNorm.bias"}
            for name, theirs in own.items():
                setattr(self, name, self.params.get(name, shape=state[f"embeddings.{theirs}"].shape))
            numbers = range(config.num_hidden_layers)[: s.depth]
            weights = [self.layer_weights(state, f"encoder.layer.{n}", settings.at(n)) for n in numbers]
            self.stack = mx.gluon.nn.Sequential()
            self.stack.add(*(Layer(weights[n], self.heads, settings.at(n)) for n in numbers))
        self.initialize(mx.init.Zero())
        for name, theirs in own.items():
            getattr(self, name).set_data(mx.nd.array(state[f"embeddings.{theirs}"]))
        for layer, values in zip(self.stack, weights, strict=True):
            for name, value in values.items():
                getattr(layer, name).set_data(mx.nd.array(value))
        if s.hybrid:
            self.hybridize()

    def layer_weights(self, state: State, own: str, s: Any) -> dict[str, np.ndarray]:
        found = {}
        for kind in KINDS:
            parts = [state[f"{own}.attention.self.{part}.{kind}"] for part in PARTS]
            if s.interleaved:  # of each head the rows of its query, key and value
                parts = [np.stack([part.reshape(self.heads, -1, *part.shape[1:]) for part in parts], 1)]
            found[f"qkv_{kind[0]}"] = np.concatenate(parts).reshape(
                3 * self.width, *((self.width,) * (kind == "weight"))
            )
            for name, theirs in (("proj", "attention.output"), ("ffn1", "intermediate"), ("ffn2", "output")):
                value = state[f"{own}.{theirs}.dense.{kind}"]
                found[f"{name}_{kind[0]}"] = np.zeros_like(value) if f"{name}_{kind[0]}" in s.unbiased else value
        for name, theirs in (("ln1", "attention.output"), ("ln2", "output")):
            found[f"{name}_g"] = state[f"{own}.{theirs}.LayerNorm.weight"]
            found[f"{name}_b"] = state[f"{own}.{theirs}.LayerNorm.bias"]
        return found

    def forward(self, ids: Any, mask: Any) -> Any:
        s, nd, (count, length) = self.s, mx.nd, ids.shape
        x = nd.Embedding(ids, self.word.data(), *self.word.shape) * s.word_scale
        x = nd.broadcast_add(x, self.place.data()[:length].expand_dims(0))
        x = nd.broadcast_add(x, self.kind.data()[0].reshape((1, 1, -1)))
        x = nd.LayerNorm(x, self.ln_g.data(), self.ln_b.data(), eps=1e-12).transpose((1, 0, 2))
        lengths = mask.astype("float32").sum(axis=1)
        steps = nd.arange(length).reshape((1, -1))
        seen = nd.broadcast_lesser(steps, lengths.reshape((-1, 1)) + s.more) if s.by_length else mask.astype("float32")
        hidden = nd.repeat((seen - 1) * 1e9, self.heads, axis=0).reshape((count * self.heads, 1, length))
        for layer in self.stack:
            x = layer(x, hidden)
        x = x.transpose((1, 0, 2))
        real = nd.broadcast_lesser(steps, lengths.reshape((-1, 1))).expand_dims(-1)
        if s.pooling == "max":
            pooled = (nd.broadcast_mul(x, real) + nd.broadcast_mul(nd.ones_like(x), (real - 1) * 1e9)).max(axis=1)
        else:
            pooled = nd.broadcast_div(nd.broadcast_mul(x, real).sum(axis=1), lengths.reshape((-1, 1)))
        return nd.L2Normalization(pooled, mode="instance")
