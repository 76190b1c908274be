"""Ports of MiniLM written by hand in TensorFlow: of variables in one `tf.Module`, and of Keras 3 layers with einsums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from tests.cross.ports.own_minilm_torch import bare
from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


class VariablesMinilm(tf.Module):
    """An encoder of functions over a dict of variables, as in the first releases of BERT."""

    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "tanh": False, "types": True, "mask": "added", "scaled": True, "inside": False},
        **{"as_stored": (), "unbiased": (), "pooling": "mean", "unit": True, "first": 0},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.settings, self.heads, self.depth = settings, config.num_attention_heads, config.num_hidden_layers
        state = bare(state)
        self.v = {name: tf.Variable(value, name=name) for name, value in state.items() if "pooler" not in name}
        for n in range(self.depth):
            for part in settings.at(n).as_stored:
                kernel = self.v[f"encoder.layer.{n}.{part}.weight"]
                kernel.assign(tf.transpose(kernel))

    def dense(self, x: Any, name: str, s: Any) -> Any:
        y = tf.einsum("blm,nm->bln", x, self.v[f"{name}.weight"])
        return y if any(name.endswith(part) for part in s.unbiased) else y + self.v[f"{name}.bias"]

    def norm(self, x: Any, name: str, s: Any) -> Any:
        mean, variance = tf.nn.moments(x, axes=[-1], keepdims=True)
        scale = tf.math.rsqrt(variance + s.eps) * self.v[f"{name}.weight"]
        return x * scale + (self.v[f"{name}.bias"] - mean * scale)

    def split(self, x: Any, s: Any) -> Any:
        count, length, width = tf.shape(x)[0], tf.shape(x)[1], x.shape[-1]
        if s.inside:
            return tf.transpose(tf.reshape(x, [count, length, width // self.heads, self.heads]), [0, 3, 1, 2])
        return tf.transpose(tf.reshape(x, [count, length, self.heads, width // self.heads]), [0, 2, 1, 3])

    def layer(self, x: Any, mask: Any, n: int, s: Any) -> Any:
        own = f"encoder.layer.{n}"
        q, k, v = (self.split(self.dense(x, f"{own}.attention.self.{p}", s), s) for p in ("query", "key", "value"))
        scores = tf.matmul(q, k, transpose_b=True)
        scores = scores / tf.sqrt(float(q.shape[-1])) if s.scaled else scores
        hidden = tf.cast(mask if s.mask == "sign" else 1 - mask, x.dtype)[:, None, None, :]
        scores = tf.where(hidden > 0, -1e30, scores) if s.mask == "chosen" else scores - 10000.0 * hidden
        mixed = tf.reshape(tf.transpose(tf.matmul(tf.nn.softmax(scores, axis=-1), v), [0, 2, 1, 3]), tf.shape(x))
        mixed = self.dense(mixed, f"{own}.attention.output.dense", s)
        x = self.norm(x + mixed, f"{own}.attention.output.LayerNorm", s)
        h = self.dense(x, f"{own}.intermediate.dense", s)
        cdf = tf.tanh(0.7978845608 * (h + 0.044715 * h**3)) if s.tanh else tf.math.erf(h / tf.sqrt(2.0))
        return self.norm(x + self.dense(0.5 * h * (1.0 + cdf), f"{own}.output.dense", s), f"{own}.output.LayerNorm", s)

    def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
        s, v = self.settings.at(), self.v
        places = tf.range(tf.shape(input_ids)[1]) + s.first
        x = tf.gather(v["embeddings.word_embeddings.weight"], input_ids)
        x += tf.gather(v["embeddings.position_embeddings.weight"], places)
        x = x + v["embeddings.token_type_embeddings.weight"][0] if s.types else x
        x = self.norm(x, "embeddings.LayerNorm", s)
        for n in range(self.depth):
            x = self.layer(x, attention_mask, n, self.settings.at(n))
        real = tf.cast(attention_mask, x.dtype)[..., None]
        pooled = x[:, 0] if s.pooling == "first" else tf.reduce_sum(x * real, 1) / tf.reduce_sum(real, 1)
        return tf.math.l2_normalize(pooled, axis=-1) if s.unit else pooled


class Norm(keras.layers.Layer):
    def __init__(self, eps: float, **named: Any) -> None:
        super().__init__(**named)
        self.eps = eps

    def build(self, shape: Any) -> None:
        self.gamma = self.add_weight(shape=(shape[-1],), initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=(shape[-1],), initializer="zeros", name="beta")

    def call(self, x: Any) -> Any:
        mean, variance = ops.moments(x, axes=[-1], keepdims=True)
        return (x - mean) / ops.sqrt(variance + self.eps) * self.gamma + self.beta


class EinsumLayer(keras.layers.Layer):
    """A layer whose weights have an axis of heads."""

    def __init__(self, heads: int, inner: int, s: Any, **named: Any) -> None:
        super().__init__(**named)
        self.heads, self.inner, self.s = heads, inner, s
        self.ln1, self.ln2 = Norm(s.eps), Norm(s.eps)
        self.drop = keras.layers.Dropout(s.dropout)

    def build(self, shape: Any) -> None:
        width, heads = shape[-1], self.heads
        size = width // heads
        shapes = {f"w{p}": (width, heads, size) for p in "qkv"} | {f"b{p}": (heads, size) for p in "qkv"}
        shapes |= {"wo": (heads, size, width), "bo": (width,), "w1": (width, self.inner), "b1": (self.inner,)}
        for name, own in (shapes | {"w2": (self.inner, width), "b2": (width,)}).items():
            setattr(self, name, self.add_weight(shape=own, initializer="zeros", name=name))
        self.ln1.build(shape)
        self.ln2.build(shape)

    def attention(self, x: Any, mask: Any) -> Any:
        q, k, v = (ops.einsum("blm,mhd->blhd", x, getattr(self, f"w{p}")) + getattr(self, f"b{p}") for p in "qkv")
        scores = ops.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        if self.s.mask != "none":
            scores = scores + (1.0 - ops.cast(mask, x.dtype))[:, None, None, :] * self.s.least
        probabilities = ops.softmax(scores, axis=self.s.axis)
        return ops.einsum("bhqk,bkhd,hdm->bqm", probabilities, v, self.wo) + self.bo

    def call(self, x: Any, mask: Any) -> Any:
        s = self.s
        gelu = {"exact": lambda h: ops.gelu(h, approximate=False), "gelu": ops.gelu}[s.act]
        feed = lambda y: ops.einsum("bli,im->blm", gelu(ops.einsum("blm,mi->bli", y, self.w1) + self.b1), self.w2)  # noqa: E731
        if s.pre_norm:
            x = x + self.attention(self.ln1(x), mask)
            return x + feed(self.ln2(x)) + self.b2
        mixed = self.drop(self.attention(x, mask), training=s.dropout > 0)
        x = self.ln1(x + mixed if s.residual else mixed)
        return self.ln2(x + feed(x) + self.b2)


class EinsumMinilm(keras.Model):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "dropout": 0.0, "mask": "added", "least": -1e9, "axis": -1, "act": "exact", "pre_norm": False},
        **{"residual": True, "reshaped": False, "reversed": False, "embedding_norm": True, "first": 0},
        **{"pooling": "mean", "divide": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        s, state = settings.at(), bare(state)
        self.s, width, heads = s, config.hidden_size, config.num_attention_heads
        sizes = config.vocab_size, config.max_position_embeddings, config.type_vocab_size
        self.tables = [
            self.add_weight(shape=(size, width), initializer="zeros", name=name)
            for size, name in zip(sizes, ("words", "places", "types"), strict=True)
        ]
        self.norm = Norm(s.eps)
        depth = config.num_hidden_layers
        self.stack = [EinsumLayer(heads, config.intermediate_size, settings.at(n)) for n in range(depth)]
        self(dict.fromkeys(("input_ids", "attention_mask"), np.ones((1, 4), "int32")))
        for table, name in zip(self.tables, ("word", "position", "token_type"), strict=True):
            table.assign(state[f"embeddings.{name}_embeddings.weight"])
        if s.embedding_norm:
            self.norm.set_weights([state[f"embeddings.LayerNorm.{kind}"] for kind in ("weight", "bias")])
        for number, layer in enumerate(self.stack):
            own = f"encoder.layer.{depth - 1 - number if s.reversed else number}"
            for short, part in zip("qkv", ("query", "key", "value"), strict=True):
                getattr(layer, f"w{short}").assign(
                    state[f"{own}.attention.self.{part}.weight"].T.reshape(width, heads, -1)
                )
                getattr(layer, f"b{short}").assign(state[f"{own}.attention.self.{part}.bias"].reshape(heads, -1))
            for short, part in (("o", "attention.output"), ("1", "intermediate"), ("2", "output")):
                kernel = state[f"{own}.{part}.dense.weight"]
                kernel = kernel if short == "o" and s.reshaped else kernel.T
                weight = getattr(layer, f"w{short}")
                weight.assign(kernel.reshape(weight.shape))
                getattr(layer, f"b{short}").assign(state[f"{own}.{part}.dense.bias"])
            for norm, part in ((layer.ln1, "attention.output"), (layer.ln2, "output")):
                norm.set_weights([state[f"{own}.{part}.LayerNorm.{kind}"] for kind in ("weight", "bias")])

    def call(self, inputs: Any) -> Any:
        s, ids, mask = self.s, inputs["input_ids"], inputs["attention_mask"]
        words, places, types = self.tables
        x = ops.take(words, ids, axis=0) + ops.take(places, ops.arange(ops.shape(ids)[1]) + s.first, axis=0) + types[0]
        x = self.norm(x) if s.embedding_norm else x
        for layer in self.stack:
            x = layer(x, mask)
        real = ops.cast(mask, x.dtype)[..., None]
        sums = ops.sum(x * real, axis=1)
        pooled = sums / ops.sum(real, axis=1) if s.divide else sums
        pooled = ops.mean(x, axis=1) if s.pooling == "all" else pooled
        return pooled / ops.norm(pooled, axis=-1, keepdims=True)
