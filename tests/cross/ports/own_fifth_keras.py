"""A port written by hand in Keras 3: mBART in the functional style, an encoder and a decoder with a tied head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


class TiedHead(layers.Layer):
    """Logits from an embedding's own table, with a bias."""

    def __init__(self, embedding: Any, **named: Any) -> None:
        super().__init__(**named)
        self.embedding = embedding

    def build(self, shape: Any) -> None:
        self.bias = self.add_weight(shape=(self.embedding.input_dim,), initializer="zeros", name="bias")

    def call(self, x: Any) -> Any:
        return ops.matmul(x, ops.transpose(self.embedding.embeddings)) + self.bias


def functional_mbart(state: State, config: Any, settings: Settings) -> Any:
    """Return mBART with its logits."""
    s, width, heads = settings.at(), config.d_model, config.encoder_attention_heads
    ids, mask, later = (
        keras.Input((None,), dtype="int32", name=name) for name in ("input_ids", "attention_mask", "decoder_input_ids")
    )
    weights: list[tuple[Any, tuple[np.ndarray, ...]]] = []

    def made(layer: Any, *values: np.ndarray) -> Any:
        weights.append((layer, values))
        return layer

    def norm(name: str, x: Any) -> Any:
        values = (state[f"{name}.{kind}"] for kind in ("weight", "bias"))
        return made(layers.LayerNormalization(epsilon=s.eps), *values)(x)

    def dense(name: str, x: Any, activation: Any = None) -> Any:
        kernel, bias = state[f"{name}.weight"].T, state[f"{name}.bias"]
        return made(layers.Dense(kernel.shape[1], activation=activation), kernel, bias)(x)

    def attend(name: str, given: Any, memory: Any, seen: Any, own: Any) -> Any:
        def split(part: str, source: Any) -> Any:
            return layers.Reshape((-1, heads, width // heads))(dense(f"{name}.{part}_proj", source))

        q, k, v = split("q", given), split("k", memory), split("v", memory)
        q = q * (width // heads) ** -0.5 if own.scaled == "queries" else q
        scores = ops.einsum("bqhd,bkhd->bhqk", q, k)
        scores = scores * (width // heads) ** -0.5 if own.scaled == "scores" else scores
        if s.masked == "added":
            scores = scores + (1.0 - ops.cast(seen, "float32")) * -1e9
        else:
            scores = ops.where(seen, scores, -1e9)
        mixed = ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores), v)
        return dense(f"{name}.out_proj", layers.Reshape((-1, width))(mixed))

    def block(name: str, x: Any, seen: Any, memory: Any, across: Any, own: Any) -> Any:
        act = lambda y: ops.gelu(y, approximate=s.tanh)  # noqa: E731

        def added(norm_name: str, x: Any, part: Any) -> Any:
            if own.pre_norm:
                return x + part(norm(f"{name}.{norm_name}", x))
            return norm(f"{name}.{norm_name}", x + part(x))

        x = added("self_attn_layer_norm", x, lambda h: attend(f"{name}.self_attn", h, h, seen, own))
        if memory is not None:
            source = (lambda h: (h, seen)) if own.memory == "decoder" else (lambda _: (memory, across))
            x = added("encoder_attn_layer_norm", x, lambda h: attend(f"{name}.encoder_attn", h, *source(h), own))
        feed = lambda h: dense(f"{name}.fc2", dense(f"{name}.fc1", h, act))  # noqa: E731
        return added("final_layer_norm", x, feed)

    table = made(layers.Embedding(config.vocab_size, width), state["model.shared.weight"])

    def embed(side: str, ids: Any) -> Any:
        values = state[f"model.{side}.embed_positions.weight"]
        places = made(layers.Embedding(*values.shape), values)
        x = table(ids) * s.embed_scale + places(ops.cumsum(ops.ones_like(ids), axis=1) - 1 + s.first)
        return norm(f"model.{side}.layernorm_embedding", x)

    real = ops.cast(mask, "bool")[:, None, None]
    x = embed("encoder", ids)
    for n in range(config.encoder_layers):
        x = block(f"model.encoder.layers.{n}", x, real, None, None, settings.at(n))
    x = norm("model.encoder.layer_norm", x) if s.memory_norm else x
    at = ops.cumsum(ops.ones_like(later), axis=1)
    ahead = (at[:, None] <= at[:, :, None])[:, None]
    across = real if s.cross_masked else ops.ones_like(real)
    shifted = ops.concatenate([ops.zeros_like(later[:, :1]) + 2, later[:, :-1]], axis=1)
    y = embed("decoder", shifted if s.shifted else later)
    for n in range(config.decoder_layers):
        y = block(f"model.decoder.layers.{n}", y, ahead, x, across, settings.at(n))
    logits = made(TiedHead(table), state["final_logits_bias"][0] * s.logits_bias)(norm("model.decoder.layer_norm", y))
    model = keras.Model({"input_ids": ids, "attention_mask": mask, "decoder_input_ids": later}, logits)
    for layer, values in weights:
        for weight, value in zip([layer.bias] if isinstance(layer, TiedHead) else layer.weights, values, strict=True):
            weight.assign(value)
    return model


functional_mbart.usual = {  # type: ignore[attr-defined]
    **{"eps": 1e-5, "scaled": "queries", "masked": "chosen", "tanh": False, "pre_norm": True, "memory": "encoder"},
    **{"embed_scale": 32**0.5, "first": 2, "memory_norm": True, "shifted": False},
    **{"cross_masked": True, "logits_bias": 1.0},
}
