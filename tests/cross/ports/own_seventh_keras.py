"""A port written by hand in Keras 3: ESM's masked language model as a subclassed model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import layers, ops

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


def turned(x: Any, s: Any) -> Any:
    """Return turned heads, (example, position, head, feature)."""
    size = x.shape[-1]
    rates = s.base ** (-ops.arange(0, size, 2, dtype="float32") / size)
    angles = (ops.arange(x.shape[1], dtype="float32")[:, None] * rates)[:, None]
    a, b = (x[..., ::2], x[..., 1::2]) if s.interleaved else ops.split(x, 2, -1)
    pairs = (a * ops.cos(angles) - b * ops.sin(angles), b * ops.cos(angles) + a * ops.sin(angles))
    return ops.reshape(ops.stack(pairs, -1), ops.shape(x)) if s.interleaved else ops.concatenate(pairs, -1)


class EsmLayer(layers.Layer):
    def __init__(self, config: Any, s: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.s, self.heads, self.size = s, config.num_attention_heads, width // config.num_attention_heads
        self.pre, self.mid = (layers.LayerNormalization(epsilon=s.eps) for _ in range(2))
        self.query, self.key, self.value, self.proj = (layers.Dense(width) for _ in range(4))
        self.inner, self.outer = layers.Dense(config.intermediate_size), layers.Dense(width)

    def call(self, x: Any, seen: Any) -> Any:
        s, h = self.s, self.pre(x)
        split = (*ops.shape(x)[:2], self.heads, self.size)
        q, k, v = (ops.reshape(part(h), split) for part in (self.query, self.key, self.value))
        q = q * self.size**-0.5 if s.scale_first else q
        q, k = turned(q, s), turned(k, s)
        if s.form == "fused":
            seen = ops.broadcast_to(seen, (ops.shape(x)[0], 1, *ops.shape(x)[1:2] * 2))
            mixed = ops.dot_product_attention(q, k, v, mask=seen, scale=1.0)
        else:
            scores = ops.einsum("bqhd,bkhd->bhqk", q, k)
            scores = scores if s.scale_first and not s.scaled_twice else scores * self.size**-0.5
            scores = scores + (1.0 - ops.cast(seen, "float32")) * -1e9 if s.added else ops.where(seen, scores, -1e30)
            mixed = ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores), v)
        x = (h if s.carried == "normed" else x) + self.proj(ops.reshape(mixed, ops.shape(x)))
        h = self.inner(self.mid(x) if s.mid_norm else x)
        h = h * 0.5 * (1 + ops.erf(h * 2**-0.5)) if s.gelu == "erf" else ops.gelu(h, approximate=s.gelu == "tanh")
        return x + self.outer(h)


class KerasEsm(keras.Model):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "base": 1e4, "interleaved": False, "scale_first": True, "scaled_twice": False,
            "form": "einsum"},
        **{"added": False, "carried": "sum", "mid_norm": True, "gelu": "exact", "lookup": 0.88, "seen": "keys"},
        **{"last_norm": True, "head_act": True, "head_bias": 1.0, "as_stored": ()},
    }  # fmt: skip

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s = s = settings.at()
        width, numbers = config.hidden_size, range(config.num_hidden_layers)
        self.table = layers.Embedding(config.vocab_size, width)
        self.blocks = [EsmLayer(config, settings.at(n)) for n in numbers]
        self.last, self.head_norm = (layers.LayerNormalization(epsilon=s.eps) for _ in range(2))
        self.dense = layers.Dense(width)
        self.bias = self.add_weight(shape=(config.vocab_size,), initializer="zeros", name="bias")
        self(np.full((1, 4), 5, "int32"), np.ones((1, 4), "int32"))

        def put(layer: Any, name: str, own: Any = s) -> None:
            if isinstance(layer, layers.LayerNormalization) and not layer.built:
                layer.build((None, None, width))
            as_stored = any(name.endswith(part) for part in own.as_stored)
            weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
            for variable, value in zip(layer.weights, (weight if as_stored else weight.T, bias), strict=True):
                variable.assign(value)

        self.table.embeddings.assign(state["esm.embeddings.word_embeddings.weight"])
        self.bias.assign(state["lm_head.bias"] * s.head_bias)
        put(self.last, "esm.encoder.emb_layer_norm_after")
        put(self.dense, "lm_head.dense")
        put(self.head_norm, "lm_head.layer_norm")
        for n, block in enumerate(self.blocks):
            own = f"esm.encoder.layer.{n}"
            for part in ("query", "key", "value"):
                put(getattr(block, part), f"{own}.attention.self.{part}", settings.at(n))
            put(block.proj, f"{own}.attention.output.dense", settings.at(n))
            put(block.pre, f"{own}.attention.LayerNorm")
            put(block.mid, f"{own}.LayerNorm")
            put(block.inner, f"{own}.intermediate.dense")
            put(block.outer, f"{own}.output.dense")

    def call(self, input_ids: Any, attention_mask: Any) -> Any:
        s, real = self.s, ops.cast(attention_mask, "bool")
        x = self.table(input_ids) * s.lookup * ops.cast(attention_mask, "float32")[..., None]
        seen = {"keys": real[:, None, None], "queries": real[:, None, :, None]}[s.seen]
        for block in self.blocks:
            x = block(x, seen)
        h = self.dense(self.last(x) if s.last_norm else x)
        h = self.head_norm(ops.gelu(h, approximate=False) if s.head_act else h)
        return ops.matmul(h, ops.transpose(self.table.embeddings)) + self.bias
