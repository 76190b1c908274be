"""A port written by hand in TensorFlow: FNet's masked language model as a module of variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


def matrix(size: Any) -> Any:
    """Return the matrix of the discrete Fourier transform."""
    at = tf.range(tf.cast(size, tf.float64), dtype=tf.float64)
    angles = 2 * np.pi * at[:, None] * at / tf.cast(size, tf.float64)
    return tf.cast(tf.complex(tf.cos(angles), -tf.sin(angles)), tf.complex64)


def transformed(x: Any, s: Any) -> Any:
    """Return what a Fourier transform makes of (example, position, feature)."""
    z = tf.cast(x, tf.complex64)
    if s.form == "products":
        z = tf.einsum("st,btd,de->bse", matrix(tf.shape(x)[1]), z, matrix(x.shape[-1]))
    elif s.form == "one by one":
        z = tf.transpose(tf.signal.fft(tf.transpose(tf.signal.fft(z), (0, 2, 1))), (0, 2, 1))
    elif s.axes == "features":
        z = tf.signal.fft(z)
    elif s.axes == "positions":
        z = tf.transpose(tf.signal.fft(tf.transpose(z, (0, 2, 1))), (0, 2, 1))
    else:
        z = tf.signal.fft2d(z)
    if s.unit:
        z = z / tf.cast(tf.sqrt(tf.cast(tf.size(x[0]), tf.float32)), tf.complex64)
    return {"real": tf.math.real, "imaginary": tf.math.imag, "absolute": tf.abs}[s.part](z)


def gelu(x: Any, s: Any) -> Any:
    return x if s.gelu == "none" else tf.nn.gelu(x, approximate=s.gelu == "tanh")


class VariablesFnet(tf.Module):  # type: ignore[misc]
    usual: ClassVar[Mapping[str, Any]] = {
        **{"eps": 1e-12, "form": "plane", "axes": "both", "part": "real", "unit": False, "gelu": "tanh"},
        **{"types": True, "first": 0, "projection": True, "pre_norm": False, "residual": True, "masked": False},
        **{"norm": "moments", "head_act": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        super().__init__()
        self.settings, self.depth = settings, config.num_hidden_layers
        self.p = {name: tf.Variable(value, name=name.replace(".", "_")) for name, value in state.items()}

    def dense(self, x: Any, name: str) -> Any:
        return tf.matmul(x, self.p[f"{name}.weight"], transpose_b=True) + self.p[f"{name}.bias"]

    def normed(self, x: Any, name: str, s: Any) -> Any:
        gain, bias = (self.p[f"{name}.LayerNorm.{kind}"] for kind in ("weight", "bias"))
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        if s.norm == "batch":
            return tf.nn.batch_normalization(x, mean, variance, bias, gain, s.eps)
        return (x - mean) / tf.sqrt(variance + s.eps) * gain + bias

    def __call__(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        s, name = self.settings.at(), "fnet.embeddings"
        x = tf.gather(self.p[f"{name}.word_embeddings.weight"], input_ids)
        x += tf.gather(self.p[f"{name}.position_embeddings.weight"], tf.range(s.first, tf.shape(x)[1] + s.first))
        x += tf.gather(self.p[f"{name}.token_type_embeddings.weight"], token_type_ids * int(s.types))
        x = self.normed(x, name, s)
        x = self.dense(x, f"{name}.projection") if s.projection else x
        for n in range(self.depth):
            s, name = self.settings.at(n), f"fnet.encoder.layer.{n}"
            given = x * tf.cast(attention_mask, x.dtype)[..., None] if s.masked else x
            if s.pre_norm:
                x = x + transformed(self.normed(given, f"{name}.fourier.output", s), s)
                h = self.dense(self.normed(x, f"{name}.output", s), f"{name}.intermediate.dense")
                x = x + self.dense(gelu(h, s), f"{name}.output.dense")
                continue
            y = transformed(given, s)
            x = self.normed(x + y if s.residual else y, f"{name}.fourier.output", s)
            h = self.dense(gelu(self.dense(x, f"{name}.intermediate.dense"), s), f"{name}.output.dense")
            x = self.normed(x + h, f"{name}.output", s)
        s, name = self.settings.at(), "cls.predictions"
        h = self.dense(x, f"{name}.transform.dense")
        h = self.normed(gelu(h, s) if s.head_act else h, f"{name}.transform", s)
        table = self.p["fnet.embeddings.word_embeddings.weight"]
        return tf.matmul(h, table, transpose_b=True) + self.p[f"{name}.bias"]
