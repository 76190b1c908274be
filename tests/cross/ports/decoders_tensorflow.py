"""A port written by hand in TensorFlow: GPT-J in functions of a dict of variables, in a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from tests.cross.ports.by_hand import State
from tests.cross.ports.own_settings import Settings


def norm(w: Any, name: str, x: Any) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def matmul(w: Any, name: str, x: Any) -> Any:
    y = tf.tensordot(x, w[f"{name}.weight"], [[-1], [1]])
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def rotated(x: Any, s: Any, start: int = 0) -> Any:
    """Return heads of which some features are turned, (example, position, head, feature)."""
    rates = 1e4 ** (-tf.range(0, 8, 2, tf.float32) / 8)
    angles = (tf.range(tf.shape(x)[1], dtype=tf.float32) + start)[:, None] * rates
    cos, sin = tf.cos(angles)[:, None], tf.sin(angles)[:, None]
    own, rest = x[..., :8], x[..., 8:]
    a, b = tf.split(own, 2, -1) if s.form == "halves" else (own[..., ::2], own[..., 1::2])
    if s.form == "complex":
        turned = tf.complex(a, b) * tf.complex(cos, sin)
        parts = tf.math.real(turned), tf.math.imag(turned)
    else:
        parts = a * cos - b * sin, b * cos + a * sin
    own = tf.concat(parts, -1) if s.form == "halves" else tf.reshape(tf.stack(parts, -1), tf.shape(own))
    return tf.concat([own, rest], -1)


def attention(w: Any, name: str, x: Any, heads: int, s: Any) -> Any:
    shape = tf.shape(x)
    q, k, v = (
        tf.reshape(matmul(w, f"{name}.{part}_proj", x), [shape[0], shape[1], heads, x.shape[-1] // heads])
        for part in "qkv"
    )
    q = rotated(q, s, s.query_start)
    k = rotated(k, s) if "k" in s.turned else k
    scores = tf.einsum("bqhd,bkhd->bhqk", q, k) * (s.scale_of or q.shape[-1]) ** -0.5
    whole = tf.ones([shape[1], shape[1]])
    below = tf.linalg.band_part(whole, -1, 0)
    seen = {"below": below, "above": tf.linalg.band_part(whole, 0, -1), "before": below - tf.eye(shape[1])}[s.seen]
    weights = tf.nn.softmax(scores + (1.0 - seen) * -1e9)
    mixed = tf.reshape(tf.einsum("bhqk,bkhd->bqhd", weights, v), shape)
    return matmul(w, f"{name}.out_proj", mixed)


def block(w: Any, name: str, x: Any, heads: int, s: Any) -> Any:
    h = norm(w, f"{name}.ln_1", x)
    inner = tf.nn.gelu(matmul(w, f"{name}.mlp.fc_in", h), approximate=True)
    return x * s.residual + attention(w, f"{name}.attn", h, heads, s) + matmul(w, f"{name}.mlp.fc_out", inner)


class GptJ(tf.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"form": "pairs", "turned": "qk", "query_start": 0, "scale_of": None, "seen": "below", "residual": 1.0},
        **{"unbiased": (), "head_bias": True, "run": "graph"},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.settings, self.heads, self.depth = settings, config.n_head, config.n_layer
        left_out = {f"transformer.h.{n}.{part}.bias" for n in range(self.depth) for part in settings.at(n).unbiased}
        left_out |= set() if settings.at().head_bias else {"lm_head.bias"}
        self.w = {name: tf.Variable(value) for name, value in state.items() if name not in left_out}
        run = settings.at().run
        self.run = self.logits if run == "eager" else tf.function(self.logits, jit_compile=run == "xla")

    def logits(self, ids: Any) -> Any:
        w = self.w
        x = tf.gather(w["transformer.wte.weight"], ids)
        for n in range(self.depth):
            x = block(w, f"transformer.h.{n}", x, self.heads, self.settings.at(n))
        return matmul(w, "lm_head", norm(w, "transformer.ln_f", x))


def called(model: Any, inputs: Any) -> Any:
    """Call a module with ids."""
    return model.run(inputs["input_ids"])
