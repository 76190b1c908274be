"""Ports written by hand in TensorFlow and Keras: MiniLM in 8 bits as a `tf.Module`, and ModernBERT of Keras 3 layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tests.cross.ports.own_minilm_torch import bare
from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


# MiniLM with matrices in 8 bits


def quantised(kernel: np.ndarray, s: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix (input, output) in 8 bits, and the scale of each output."""
    largest = np.abs(kernel).max(axis=None if s.scales == "one" else 0, keepdims=True)
    scale = np.broadcast_to(largest * s.share / s.levels, (1, kernel.shape[1])).astype(np.float32)
    return np.clip(np.rint(kernel / scale), -s.levels, s.levels).astype(np.int8), scale[0] * (s.levels / s.divisor)


class QuantisedDense(tf.Module):
    def __init__(self, weight: np.ndarray, bias: np.ndarray, s: Any) -> None:
        super().__init__()
        values, scale = quantised(weight if s.stored else weight.T, s)
        self.values, self.scale, self.bias, self.s = tf.Variable(values), tf.Variable(scale), tf.Variable(bias), s

    def __call__(self, x: Any) -> Any:
        s = self.s
        if s.inputs == "8 bits":  # each token with a scale of its own
            step = tf.reduce_max(tf.abs(x), -1, keepdims=True) / 127.0
            x = tf.round(x / step) * step
        kernel = tf.cast(self.values, x.dtype) - s.zero
        if s.scales == "inputs":
            return tf.matmul(x * self.scale[: x.shape[-1]], kernel) + self.bias
        if s.first:
            return tf.matmul(x, kernel * self.scale) + self.bias
        y = tf.matmul(x, kernel)
        return (y + self.bias) * self.scale if s.bias == "scaled" else y * self.scale + self.bias


class QuantisedLayer(tf.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any, query: Any) -> None:
        super().__init__()
        self.heads, self.s = heads, s

        def dense(part: str, settings: Any = s) -> QuantisedDense:
            return QuantisedDense(state[f"{name}.{part}.weight"], state[f"{name}.{part}.bias"], settings)

        self.q, self.k, self.v = (
            dense("attention.self.query", query),
            *(dense(f"attention.self.{p}") for p in ("key", "value")),
        )
        self.o, self.up, self.down = (dense(f"{p}.dense") for p in ("attention.output", "intermediate", "output"))
        self.gains = [
            [tf.Variable(state[f"{name}.{part}.LayerNorm.{kind}"]) for kind in ("weight", "bias")]
            for part in ("attention.output", "output")
        ]

    def __call__(self, x: Any, hidden: Any) -> Any:
        s, shape = self.s, tf.shape(x)
        q, k, v = (tf.reshape(part(x), [shape[0], shape[1], self.heads, -1]) for part in (self.q, self.k, self.v))
        scores = tf.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k) + hidden
        mixed = self.o(tf.reshape(tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), v), shape))
        x = normalised(x + mixed, self.gains[0], s.eps)
        act = {"gelu": lambda y: tf.nn.gelu(y, approximate=False), "silu": tf.nn.silu}[s.act]
        return normalised(x + self.down(act(self.up(x))), self.gains[1], s.eps)


def normalised(x: Any, gains: Any, eps: float) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, gains[1], gains[0], eps)


class Int8Minilm(tf.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "scales": "outputs", "levels": 127, "share": 1.0, "divisor": 127},
        **{"stored": False, "inputs": "float", "zero": 0.0, "first": False, "bias": "added"},
        **{"act": "gelu", "query": None, "pooling": "ragged", "graph": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s, state = settings.at(), bare(state)
        self.s = s
        self.tables = [
            tf.Variable(state[f"embeddings.{n}_embeddings.weight"]) for n in ("word", "position", "token_type")
        ]
        self.gains = [tf.Variable(state[f"embeddings.LayerNorm.{kind}"]) for kind in ("weight", "bias")]
        self.layers = []
        for n in range(config.num_hidden_layers):
            own = settings.at(n)
            query = settings.at(n, **(own.query or {}))
            self.layers.append(QuantisedLayer(state, f"encoder.layer.{n}", config.num_attention_heads, own, query))
        self.run = tf.function(self.encode) if s.graph else self.encode

    def encode(self, ids: Any, mask: Any) -> Any:
        s, (words, places, kinds) = self.s, self.tables
        x = tf.nn.embedding_lookup(words, ids) + places[: tf.shape(ids)[1]] + kinds[0]
        x = normalised(x, self.gains, s.eps)
        hidden = (1.0 - tf.cast(mask, x.dtype))[:, None, None] * -1e9
        for layer in self.layers:
            x = layer(x, hidden)
        if s.pooling == "ragged":
            pooled = tf.reduce_mean(tf.RaggedTensor.from_tensor(x, tf.reduce_sum(mask, 1)), 1)
        else:
            pooled = tf.reduce_mean(x, 1)
        return tf.math.l2_normalize(pooled, -1)

    def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
        return self.run(input_ids, attention_mask)


# ModernBERT of Keras 3 layers


class Rope(layers.Layer):
    """Turns heads, (example, position, head, feature)."""

    def __init__(self, base: float, s: Any, **named: Any) -> None:
        super().__init__(**named)
        self.base, self.s = base, s

    def call(self, x: Any) -> Any:
        size = x.shape[-1]
        rates = self.base ** (-ops.arange(0, size, 2, dtype=x.dtype) / size)
        angles = ops.arange(ops.shape(x)[1], dtype=x.dtype)[:, None] * rates
        if self.s.interleaved:
            angles = ops.repeat(angles, 2, -1)[:, None]
            pairs = ops.reshape(x, (*ops.shape(x)[:-1], size // 2, 2))
            other = ops.reshape(ops.stack([-pairs[..., 1], pairs[..., 0]], -1), ops.shape(x))
        else:
            angles = ops.concatenate([angles, angles], -1)[:, None]
            other = ops.concatenate([-x[..., size // 2 :], x[..., : size // 2]], -1)
        return x * ops.cos(angles) + other * ops.sin(angles)


class ModernLayer(layers.Layer):
    def __init__(self, config: Any, number: int, s: Any, **named: Any) -> None:
        super().__init__(**named)
        self.heads, self.s, width = config.num_attention_heads, s, config.hidden_size
        self.is_global = number % config.global_attn_every_n_layers == s.globals_at
        self.reach = config.local_attention // 2 if s.reach is None else s.reach
        self.rope = Rope(s.base if self.is_global else s.local_base, s)
        self.normed = number > 0 or s.first_norm
        norm = lambda: layers.LayerNormalization(epsilon=s.eps, center=False)  # noqa: E731
        self.attn_norm, self.mlp_norm = norm(), norm()
        self.qkv, self.attn_out = (layers.Dense(units, use_bias=False) for units in (3 * width, width))
        self.wi, self.wo = (layers.Dense(units, use_bias=False) for units in (2 * config.intermediate_size, width))

    def build(self, shape: Any) -> None:
        for layer in (self.attn_norm, self.mlp_norm, self.qkv, self.attn_out, self.wi):
            layer.build(shape)
        self.wo.build((*shape[:-1], self.wi.units // 2))

    def attention(self, x: Any, mask: Any) -> Any:
        s, (count, length, width) = self.s, ops.shape(x)
        if s.split == "by role":
            q, k, v = ops.unstack(ops.reshape(self.qkv(x), (count, length, 3, self.heads, -1)), axis=2)
        else:
            q, k, v = ops.unstack(ops.reshape(self.qkv(x), (count, length, self.heads, 3, -1)), axis=3)
        q, k = self.rope(q), self.rope(k)
        at = ops.arange(length)
        distance = at[:, None] - at
        near = ops.abs(distance) <= self.reach
        near = ops.logical_and(near, distance >= 0) if s.backwards else near
        seen = ops.cast(mask, "bool")[:, None, None]
        seen = ops.broadcast_to(seen, (count, 1, length, length))
        seen = seen if self.is_global else ops.logical_and(seen, near)
        if s.fused:
            mixed = ops.dot_product_attention(q, k, v, mask=ops.broadcast_to(seen, (count, self.heads, length, length)))
        else:
            scores = ops.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
            mixed = ops.einsum("bhqk,bkhd->bqhd", ops.softmax(ops.where(seen, scores, -1e9)), v)
        return self.attn_out(ops.reshape(mixed, (count, length, width)))

    def call(self, x: Any, mask: Any) -> Any:
        s = self.s
        x = x + self.attention(self.attn_norm(x) if self.normed else x, mask)
        first, second = ops.split(self.wi(self.mlp_norm(x)), 2, axis=-1)
        act = {"exact": lambda y: ops.gelu(y, approximate=False), "gelu": ops.gelu}[s.act]
        return x + self.wo(act(first) * second if s.gated else first * act(second))


class KerasModernbert(keras.Model):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-5, "interleaved": False, "globals_at": 0, "reach": None, "base": 160000.0, "local_base": 10000.0},
        **{"first_norm": False, "split": "by role", "backwards": False, "fused": True},
        **{"act": "exact", "gated": True, "final": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.s = s = settings.at()
        norm = lambda: layers.LayerNormalization(epsilon=s.eps, center=False)  # noqa: E731
        self.embed, self.norm, self.last = layers.Embedding(config.vocab_size, config.hidden_size), norm(), norm()
        self.stack = [ModernLayer(config, n, settings.at(n)) for n in range(config.num_hidden_layers)]
        self(dict.fromkeys(("input_ids", "attention_mask"), np.ones((1, 4), "int32")))
        self.embed.set_weights([state["embeddings.tok_embeddings.weight"]])
        self.norm.set_weights([state["embeddings.norm.weight"]])
        self.last.set_weights([state["final_norm.weight"]] if s.final else [])
        for number, layer in enumerate(self.stack):
            own = f"layers.{number}"
            if number:
                layer.attn_norm.set_weights([state[f"{own}.attn_norm.weight"]])
            layer.mlp_norm.set_weights([state[f"{own}.mlp_norm.weight"]])
            for part, name in (("qkv", "attn.Wqkv"), ("attn_out", "attn.Wo"), ("wi", "mlp.Wi"), ("wo", "mlp.Wo")):
                getattr(layer, part).set_weights([state[f"{own}.{name}.weight"].T])

    def call(self, inputs: Any) -> Any:
        s, x = self.s, self.norm(self.embed(inputs["input_ids"]))
        for layer in self.stack:
            x = layer(x, inputs["attention_mask"])
        return self.last(x) if s.final else x
