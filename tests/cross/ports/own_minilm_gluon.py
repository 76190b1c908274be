"""A port of MiniLM written by hand in MXNet Gluon: raw parameters and MXNet's interleaved attention, as GluonNLP has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from embgrad_gluon.importing import import_mxnet

from tests.cross.ports.own_minilm_torch import bare
from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]

mx = import_mxnet()


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
        x = F.LayerNorm(x + mixed, w["ln1_g"], w["ln1_b"], eps=s.eps)
        h = dense(x, "ffn1")
        h = (
            0.5 * h * (1 + F.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))
            if s.tanh
            else F.LeakyReLU(h, act_type="gelu")
        )
        return F.LayerNorm(x + dense(h, "ffn2"), w["ln2_g"], w["ln2_b"], eps=s.eps)


class GluonMinilm(mx.gluon.Block):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "tanh": False, "interleaved": True, "times": 1.0, "depth": None, "hybrid": False, "more": 0},
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
        for kind in ("weight", "bias"):
            parts = [state[f"{own}.attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
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
        x = nd.LayerNorm(x, self.ln_g.data(), self.ln_b.data(), eps=s.eps).transpose((1, 0, 2))
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
