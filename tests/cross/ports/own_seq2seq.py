"""A port written by hand in Flax NNX: Marian's encoder and decoder, with positions computed and logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


def sinusoids(length: int, width: int, s: Any) -> Any:
    places = jnp.arange(length)[:, None] + s.first
    rates = s.longest ** (-jnp.arange(0, width, 2) / width)
    angles = places * rates
    if s.sines == "in turn":
        return jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(length, width)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)


def linear(state: State, name: str) -> nnx.Linear:
    kernel = state[f"{name}.weight"].T
    made = nnx.Linear(*kernel.shape, rngs=nnx.Rngs(0))
    made.kernel.value, made.bias.value = jnp.asarray(kernel), jnp.asarray(state[f"{name}.bias"])
    return made


def norm(state: State, name: str, epsilon: float) -> nnx.LayerNorm:
    made = nnx.LayerNorm(len(state[f"{name}.bias"]), epsilon=epsilon, rngs=nnx.Rngs(0))
    made.scale.value, made.bias.value = jnp.asarray(state[f"{name}.weight"]), jnp.asarray(state[f"{name}.bias"])
    return made


class Attention(nnx.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        self.heads, self.s = heads, s
        self.q, self.k, self.v, self.o = (linear(state, f"{name}.{part}_proj") for part in ("q", "k", "v", "out"))
        scale = (self.q.kernel.value.shape[1] // heads) ** -0.5
        if s.folded:  # the scale is folded into the weights of the queries
            self.q.kernel.value = self.q.kernel.value * scale
            self.q.bias.value = self.q.bias.value * (scale if s.folded == "both" else 1.0)
        self.scale = 1.0 if s.folded or s.scale == "none" else scale

    def __call__(self, x: Any, memory: Any, seen: Any) -> Any:
        def heads(y: Any) -> Any:
            return y.reshape(*y.shape[:2], self.heads, -1).swapaxes(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(memory)), heads(self.v(memory))
        weights = jax.nn.softmax(jnp.where(seen, q @ k.swapaxes(2, 3) * self.scale, -1e9), axis=-1)
        return self.o((weights @ v).swapaxes(1, 2).reshape(x.shape))


class Layer(nnx.Module):
    def __init__(self, state: State, name: str, heads: int, s: Any) -> None:
        self.s = s
        self.attention = Attention(state, f"{name}.self_attn", heads, s)
        self.attention_norm = norm(state, f"{name}.self_attn_layer_norm", s.epsilon)
        self.crosses = "decoder" in name
        if self.crosses:
            self.cross = Attention(state, f"{name}.encoder_attn", heads, s)
            self.cross_norm = norm(state, f"{name}.encoder_attn_layer_norm", s.epsilon)
        self.fc1, self.fc2 = linear(state, f"{name}.fc1"), linear(state, f"{name}.fc2")
        self.last_norm = norm(state, f"{name}.final_layer_norm", s.epsilon)

    def __call__(self, x: Any, seen: Any, memory: Any = None, across: Any = None) -> Any:
        act = {"swish": jax.nn.silu, "relu": jax.nn.relu, "gelu": jax.nn.gelu}[self.s.act]
        if self.s.pre_norm:
            h = self.attention_norm(x)
            x = x + self.attention(h, h, seen)
            x = x + self.cross(self.cross_norm(x), memory, across) if self.crosses else x
            return x + self.fc2(act(self.fc1(self.last_norm(x))))
        x = self.attention_norm(x + self.attention(x, x, seen))
        if self.crosses and self.s.crosses:
            x = self.cross_norm(x + self.cross(x, memory, across))
        return self.last_norm(x + self.fc2(act(self.fc1(x))))


class Marian(nnx.Module):
    usual: ClassVar[Mapping[str, Any]] = {
        **{"first": 0, "longest": 10000.0, "sines": "halves", "folded": "", "scale": "usual", "epsilon": 1e-5},
        **{"act": "swish", "pre_norm": False, "crosses": True, "embed_scale": 32**0.5, "logits_bias": True},
        **{"causal": True, "padded": True, "cross_padded": True},
    }

    def __init__(self, state: State, config: Any, settings: Settings) -> None:
        self.s = settings.at()
        self.shared = nnx.Embed(config.vocab_size, config.d_model, rngs=nnx.Rngs(0))
        self.shared.embedding.value = jnp.asarray(state["model.shared.weight"])
        self.logits_bias = nnx.Param(jnp.asarray(state["final_logits_bias"]))

        def layers(side: str, count: int, heads: int) -> Any:
            made = [Layer(state, f"model.{side}.layers.{n}", heads, settings.at(n)) for n in range(count)]
            return nnx.List(made) if hasattr(nnx, "List") else made

        self.encoder = layers("encoder", config.encoder_layers, config.encoder_attention_heads)
        self.decoder = layers("decoder", config.decoder_layers, config.decoder_attention_heads)

    def embed(self, ids: Any) -> Any:
        table = self.shared(ids) * self.s.embed_scale
        return table + sinusoids(ids.shape[1], table.shape[-1], self.s)

    def __call__(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any) -> Any:
        s, real = self.s, attention_mask[:, None, None] > 0
        length = decoder_input_ids.shape[1]
        ahead = jnp.tril(jnp.ones((length, length), bool)) if s.causal else jnp.ones((length, length), bool)
        x = self.embed(input_ids)
        for layer in self.encoder:
            x = layer(x, real if s.padded else jnp.ones_like(real))
        y = self.embed(decoder_input_ids)
        for layer in self.decoder:
            y = layer(y, ahead, x, real if s.cross_padded else jnp.ones_like(real))
        logits = y @ self.shared.embedding.value.T
        return logits + self.logits_bias.value if s.logits_bias else logits
