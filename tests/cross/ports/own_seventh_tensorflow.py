"""A port written by hand in TensorFlow: StarCoder2 in Keras's functional API, with calls of TensorFlow between its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]
layers = tf.keras.layers


class Attend(layers.Layer):  # type: ignore[misc]
    """Mix values of a window by turned queries and keys; it has no weights."""

    def __init__(self, size: int, s: Any, **named: Any) -> None:
        super().__init__(**named)
        self.size, self.s = size, s

    def split(self, x: Any) -> Any:
        return tf.transpose(
            tf.reshape(x, (*tf.unstack(tf.shape(x)[:2]), x.shape[-1] // self.size, self.size)), (0, 2, 1, 3)
        )

    def turned(self, x: Any, first: int = 0) -> Any:
        at = tf.range(first, tf.shape(x)[2] + first, dtype=tf.float32)
        angles = at[:, None] * self.s.base ** (-tf.range(0, self.size, 2, dtype=tf.float32) / self.size)
        angles, half = tf.concat([angles, angles], -1), self.size // 2
        return x * tf.cos(angles) + tf.concat([-x[..., half:], x[..., :half]], -1) * tf.sin(angles)

    def call(self, given: Any) -> Any:
        s, (q, k, v) = self.s, (self.split(part) for part in given)
        q, k, times = self.turned(q), self.turned(k, s.late), q.shape[1] // k.shape[1]
        at = tf.range(tf.shape(q)[2])
        apart = at[:, None] - at
        seen = (apart >= 0) & (apart < s.window)
        if s.grouped:
            shape = tf.shape(q)
            q = tf.reshape(q, (shape[0], k.shape[1], times, shape[2], self.size))
            k, v = k[:, :, None], v[:, :, None]
        else:
            k, v = (tf.tile(y, (1, times, 1, 1)) if s.tiled else tf.repeat(y, times, 1) for y in (k, v))
        scores = tf.matmul(q, k, transpose_b=True) / self.size**0.5
        if s.mask == "added":
            scores += (1 - tf.cast(seen, tf.float32)) * s.least
        else:
            scores = tf.where(seen, scores, scores.dtype.min)
        mixed = tf.matmul(tf.nn.softmax(scores), v)
        mixed = tf.reshape(mixed, (tf.shape(given[0])[0], -1, tf.shape(given[0])[1], self.size))
        return tf.reshape(tf.transpose(mixed, (0, 2, 1, 3)), tf.shape(given[0]))


def functional_starcoder(state: State, config: Any, settings: Settings) -> Any:
    """Return the functional model."""
    size, s = config.hidden_size // config.num_attention_heads, settings.at()
    pending: list[tuple[Any, list[np.ndarray]]] = []

    def dense(x: Any, name: str, own: Any) -> Any:
        weight, part = state[f"{name}.weight"], name.rsplit(".", 1)[-1]
        biased = f"{name}.bias" in state and part not in own.unbiased
        layer = layers.Dense(len(weight), use_bias=biased, name=name.replace(".", "_"))
        kernel = weight if part in own.as_stored else weight.T
        pending.append((layer, [kernel, *([state[f"{name}.bias"]] if biased else [])]))
        return layer(x)

    def norm(x: Any, name: str) -> Any:
        layer = layers.LayerNormalization(epsilon=s.eps, name=name.replace(".", "_"))
        pending.append((layer, [state[f"{name}.{kind}"] for kind in ("weight", "bias")]))
        return layer(x)

    ids = tf.keras.Input((None,), dtype=tf.int32, name="input_ids")
    table = layers.Embedding(*state["model.embed_tokens.weight"].shape, name="embed_tokens")
    pending.append((table, [state["model.embed_tokens.weight"]]))
    x = table(ids) * s.lookup
    for n in range(config.num_hidden_layers):
        own, name = settings.at(n), f"model.layers.{n}"
        h = norm(x, f"{name}.input_layernorm")
        parts = [dense(h, f"{name}.self_attn.{part}_proj", own) for part in "qkv"]
        x = layers.Add()([x, dense(Attend(size, own, name=f"attend_{n}")(parts), f"{name}.self_attn.o_proj", own)])
        h = dense(norm(x, f"{name}.post_attention_layernorm"), f"{name}.mlp.c_fc", own)
        h = tf.nn.gelu(h, approximate=own.tanh)
        x = layers.Add()([x, dense(h, f"{name}.mlp.c_proj", own)])
    x = norm(x, "model.norm")
    logits = tf.matmul(x, table.embeddings, transpose_b=True) if s.tied == "table" else dense(x, "lm_head", s)
    model = tf.keras.Model(ids, logits)
    for layer, values in pending:
        layer.set_weights(values)
    return model


functional_starcoder.usual = {  # type: ignore[attr-defined]
    **{"eps": 1e-5, "base": 1e4, "late": 0, "window": 6, "tiled": False, "grouped": False, "mask": "chosen"},
    **{"least": -1e9, "unbiased": (), "as_stored": (), "lookup": 1.0, "tanh": True, "tied": "copy"},
}
