"""Ports written by hand in TensorFlow: encoders of `tf.Module`, ALBERT, and MiniLM with matrices in 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tests.cross.ports.by_hand import KINDS, TABLES, State, bare
from tests.cross.ports.own_settings import Settings

# ALBERT


class Dense(tf.Module):
    def __init__(self, kernel: np.ndarray, bias: np.ndarray | None) -> None:
        super().__init__()
        self.kernel = tf.Variable(kernel)
        self.bias = None if bias is None else tf.Variable(bias)

    def __call__(self, x: Any) -> Any:
        y = tf.matmul(x, self.kernel)
        return y if self.bias is None else y + self.bias


def normalised(x: Any, gamma: Any, beta: Any, epsilon: float = 1e-12) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, epsilon)


class Norm(tf.Module):
    def __init__(self, state: State, name: str, epsilon: float) -> None:
        super().__init__()
        self.gamma, self.beta = (tf.Variable(state[f"{name}.{kind}"]) for kind in KINDS)
        self.epsilon = epsilon

    def __call__(self, x: Any) -> Any:
        return normalised(x, self.gamma, self.beta, self.epsilon)


class AlbertLayer(tf.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        super().__init__()
        self.heads, self.s = heads, s

        def dense(part: str) -> Dense:
            return Dense(state[f"{name}.{part}.weight"].T, state[f"{name}.{part}.bias"])

        self.query, self.key, self.value, self.project = (
            dense(f"attention.{part}") for part in ("query", "key", "value", "dense")
        )
        self.inner, self.outer = dense("ffn"), dense("ffn_output")
        self.attention_norm = Norm(state, f"{name}.attention.LayerNorm", s.epsilon)
        self.norm = Norm(state, f"{name}.full_layer_layer_norm", s.epsilon)

    def split(self, x: Any) -> Any:
        shape = tf.shape(x)
        return tf.transpose(tf.reshape(x, [shape[0], shape[1], self.heads, -1]), [0, 2, 1, 3])

    def __call__(self, x: Any, mask: Any) -> Any:
        s = self.s
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = tf.matmul(q, k, transpose_b=True) * s.scale
        real = tf.cast(mask[:, None, None, :], x.dtype)
        if s.mask == "added":
            scores += (1.0 - real) * -10000.0
        elif s.mask == "times":
            scores *= real
        elif s.mask == "where":
            scores = tf.where(real > 0, scores, scores.dtype.min)
        mixed = tf.transpose(tf.matmul(tf.nn.softmax(scores), v), [0, 2, 1, 3])
        mixed = self.project(tf.reshape(mixed, tf.shape(x)))
        x = self.attention_norm(x + mixed)
        y = self.outer(tf.nn.gelu(self.inner(x), approximate=True))
        return self.norm(x + y if s.residual else y)


class Albert(tf.Module):
    """ALBERT without its pooler."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"epsilon": 1e-12, "scale": 8**-0.5, "mask": "added", "residual": True, "depth": 3, "types": True},
        **{"map_bias": True, "shared": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s = self.s = settings.at()
        self.words, self.positions, self.types = (
            tf.Variable(state[f"embeddings.{name}_embeddings.weight"]) for name in TABLES
        )
        self.norm = Norm(state, "embeddings.LayerNorm", s.epsilon)
        own = "encoder.embedding_hidden_mapping_in"
        self.mapping = Dense(state[f"{own}.weight"].T, state[f"{own}.bias"] if s.map_bias else None)
        own = "encoder.albert_layer_groups.0.albert_layers.0"
        count = 1 if s.shared else s.depth
        self.layers = [AlbertLayer(state, own, config.num_attention_heads, s) for _ in range(count)]

    def __call__(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        s = self.s
        types = token_type_ids if s.types else tf.zeros_like(token_type_ids)
        places = tf.range(tf.shape(input_ids)[1])
        x = tf.gather(self.words, input_ids) + tf.gather(self.positions, places) + tf.gather(self.types, types)
        x = self.mapping(self.norm(x))
        for number in range(s.depth):
            x = self.layers[number % len(self.layers)](x, attention_mask)
        return x


# MiniLM with matrices in 8 bits


def quantised(kernel: np.ndarray, s: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix (input, output) in 8 bits, and the scale of each output."""
    largest = np.abs(kernel).max(axis=None if s.scales == "one" else 0, keepdims=True)
    scale = np.broadcast_to(largest * s.share / 127, (1, kernel.shape[1])).astype(np.float32)
    return np.clip(np.rint(kernel / scale), -127, 127).astype(np.int8), scale[0]


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
            [tf.Variable(state[f"{name}.{part}.LayerNorm.{kind}"]) for kind in KINDS]
            for part in ("attention.output", "output")
        ]

    def __call__(self, x: Any, hidden: Any) -> Any:
        s, shape = self.s, tf.shape(x)
        q, k, v = (tf.reshape(part(x), [shape[0], shape[1], self.heads, -1]) for part in (self.q, self.k, self.v))
        scores = tf.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k) + hidden
        mixed = self.o(tf.reshape(tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), v), shape))
        x = normalised(x + mixed, *self.gains[0])
        act = {"gelu": lambda y: tf.nn.gelu(y, approximate=False), "silu": tf.nn.silu}[s.act]
        return normalised(x + self.down(act(self.up(x))), *self.gains[1])


class Int8Minilm(tf.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"scales": "outputs", "share": 1.0, "stored": False, "inputs": "float", "zero": 0.0, "first": False},
        **{"bias": "added", "act": "gelu", "query": None, "pooling": "ragged", "graph": False},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s, state = settings.at(), bare(state)
        self.s = s
        self.tables = [tf.Variable(state[f"embeddings.{name}_embeddings.weight"]) for name in TABLES]
        self.gains = [tf.Variable(state[f"embeddings.LayerNorm.{kind}"]) for kind in KINDS]
        self.layers = []
        for n in range(config.num_hidden_layers):
            own = settings.at(n)
            query = settings.at(n, **(own.query or {}))
            self.layers.append(QuantisedLayer(state, f"encoder.layer.{n}", config.num_attention_heads, own, query))
        self.run = tf.function(self.encode) if s.graph else self.encode

    def encode(self, ids: Any, mask: Any) -> Any:
        s, (words, places, kinds) = self.s, self.tables
        x = tf.nn.embedding_lookup(words, ids) + places[: tf.shape(ids)[1]] + kinds[0]
        x = normalised(x, *self.gains)
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
