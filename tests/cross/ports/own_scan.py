"""Ports written by hand in JAX with the layers' weights stacked: OPT over `jax.lax.scan`, Mistral over Linen's `nn.scan`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


# OPT as a function of a tree of arrays


def load_opt(state: State, config: Any, s: Any) -> dict[str, Any]:
    """Return OPT's weights; those of blocks have an axis of layers in front."""
    names = [f"decoder.layers.{number}" for number in range(config.num_hidden_layers)]
    names = sorted(names) if s.sorted else names
    names = names[: s.depth]

    def stack(name: str) -> np.ndarray:
        values = np.stack([state[f"{prefix}.{name}"] for prefix in names])
        square = values.ndim == 3 and values.shape[1] == values.shape[2]
        return values if values.ndim == 2 or (square and name in s.as_stored) else values.swapaxes(1, 2)

    parts = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.out_proj"}
    parts |= {"up": "fc1", "down": "fc2", "ln1": "self_attn_layer_norm", "ln2": "final_layer_norm"}
    blocks = {
        own: {kind: stack(f"{theirs}.{full}") for kind, full in (("w", "weight"), ("b", "bias"))}
        for own, theirs in parts.items()
    }
    for part in s.unbiased:
        blocks[part]["b"] = np.zeros_like(blocks[part]["b"])
    tree = {
        "tokens": state["decoder.embed_tokens.weight"],
        "positions": state["decoder.embed_positions.weight"],
        "blocks": blocks,
        "ln_f": {"w": state["decoder.final_layer_norm.weight"], "b": state["decoder.final_layer_norm.bias"]},
    }
    return jax.tree.map(jnp.asarray, tree)


def layer_norm(x: Any, p: Any, eps: float) -> Any:
    mean = jnp.mean(x, axis=-1, keepdims=True)
    var = jnp.var(x, axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(var + eps) * p["w"] + p["b"]


def linear(x: Any, p: Any) -> Any:
    return jnp.dot(x, p["w"]) + p["b"]


def opt_block(s: Any, heads: int, bias: Any, x: Any, p: Any) -> Any:
    batch, length, width = x.shape
    act = {"relu": jax.nn.relu, "gelu": jax.nn.gelu}[s.act]

    def attention(h: Any) -> Any:
        if s.inside:
            q, k, v = (linear(h, p[n]).reshape(batch, length, -1, heads).swapaxes(2, 3) for n in "qkv")
        else:
            q, k, v = (linear(h, p[n]).reshape(batch, length, heads, -1) for n in "qkv")
        scores = jnp.einsum("bqhd,bkhd->bhqk", q * s.scale, k * s.key_scale) + bias
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, axis=-1), v)
        return linear(mixed.reshape(batch, length, width), p["o"])

    if s.pre_norm:
        x = x + attention(layer_norm(x, p["ln1"], s.eps))
        return x + linear(act(linear(layer_norm(x, p["ln2"], s.eps), p["up"])), p["down"])
    x = layer_norm(x + attention(x), p["ln1"], s.eps)
    return layer_norm(x + linear(act(linear(x, p["up"])), p["down"]), p["ln2"], s.eps)


def opt(s: Any, heads: int, params: Any, ids: Any, mask: Any) -> Any:
    length = ids.shape[1]
    places = jnp.cumsum(mask, axis=1) * mask - 1 + s.offset if s.from_mask else jnp.arange(length)[None] + s.offset
    x = params["tokens"][ids] + params["positions"][places]
    seen = jnp.tril(jnp.ones((length, length), bool))[None] & (mask[:, None] > 0)
    bias = jnp.where(seen, 0.0, s.least)[:, None]
    body = functools.partial(opt_block, s, heads, bias)
    if s.unrolled:
        for number in range(params["blocks"]["q"]["w"].shape[0]):
            x = body(x, jax.tree.map(lambda leaf, number=number: leaf[number], params["blocks"]))
    else:
        x, _ = jax.lax.scan(lambda carry, p: (body(carry, p), None), x, params["blocks"])
    return layer_norm(x, params["ln_f"], s.eps) if s.final else x


def scanned_opt(state: State, config: Any, settings: Settings) -> Any:
    s = settings.at()
    return functools.partial(opt, s, config.num_attention_heads), load_opt(state, config, s)


scanned_opt.usual = {  # type: ignore[attr-defined]
    **{"sorted": False, "depth": None, "as_stored": (), "unbiased": (), "eps": 1e-5, "act": "relu", "inside": False},
    **{"scale": 8**-0.5, "key_scale": 1.0, "pre_norm": True, "offset": 2, "from_mask": True, "least": -1e9},
    **{"unrolled": False, "final": True},
}


# Mistral in Linen


class RMSNorm(nn.Module):
    eps: float

    @nn.compact
    def __call__(self, x: Any) -> Any:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.eps) * scale


def rope_table(length: int, size: int, s: Any) -> tuple[Any, Any]:
    """Return cosines and sines, (position, half a head)."""
    frequencies = 1.0 / (s.base ** (jnp.arange(0, size, 2, dtype=jnp.float32) / size))
    frequencies = frequencies.astype(jnp.bfloat16).astype(jnp.float32) if s.rounded else frequencies
    angles = jnp.outer(jnp.arange(length) + s.start, frequencies)
    return jnp.cos(angles), jnp.sin(angles)


def apply_rope(x: Any, cos: Any, sin: Any, s: Any) -> Any:
    cos, sin = cos[None, :, None], sin[None, :, None]
    if s.interleaved:
        even, odd = x[..., 0::2], x[..., 1::2]
        return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)
    x1, x2 = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)


class MistralAttention(nn.Module):
    heads: int
    groups: int
    size: int
    s: Any

    @nn.compact
    def __call__(self, x: Any, rope: Any, seen: Any) -> Any:
        s, times = self.s, self.heads // self.groups
        q = nn.DenseGeneral((self.heads, self.size), use_bias=False, name="wq")(x)
        k = nn.DenseGeneral((self.groups, self.size), use_bias=False, name="wk")(x)
        v = nn.DenseGeneral((self.groups, self.size), use_bias=False, name="wv")(x)
        q, k = apply_rope(q, *rope, s), apply_rope(k, *rope, s)
        batch, length = x.shape[:2]
        # grouped without copies: the queries of a group have an axis of their own
        if s.tiled:
            q = q.reshape(batch, length, times, self.groups, self.size).swapaxes(2, 3)
        else:
            q = q.reshape(batch, length, self.groups, times, self.size)
        scores = jnp.einsum("bqgtd,bkgd->bgtqk", q, k) * s.scale
        scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
        out = jnp.einsum("bgtqk,bkgd->bqgtd", jax.nn.softmax(scores, axis=s.axis), v)
        out = out.swapaxes(2, 3) if s.tiled else out
        return nn.Dense(x.shape[-1], use_bias=False, name="wo")(out.reshape(batch, length, -1))


class MistralBlock(nn.Module):
    heads: int
    groups: int
    size: int
    inner: int
    s: Any

    @nn.compact
    def __call__(self, x: Any, rope: Any, seen: Any) -> tuple[Any, None]:
        s = self.s
        attention = MistralAttention(self.heads, self.groups, self.size, s, name="attention")
        x = x + attention(RMSNorm(s.eps, name="attention_norm")(x), rope, seen)
        h = RMSNorm(s.eps, name="ffn_norm")(x)
        w1, w3 = (nn.Dense(self.inner, use_bias=False, name=name)(h) for name in ("w1", "w3"))
        gated = nn.silu(w1) * w3 if s.gated else w1 * nn.silu(w3)
        return x + nn.Dense(x.shape[-1], use_bias=False, name="w2")(gated), None


class Mistral(nn.Module):
    config: Any
    s: Any

    @nn.compact
    def __call__(self, ids: Any, mask: Any) -> Any:
        c, s, length = self.config, self.s, ids.shape[1]
        x = nn.Embed(c.vocab_size, c.hidden_size, name="tok_embeddings")(ids)
        rope = rope_table(length, c.head_dim, s)
        distance = jnp.arange(length)[:, None] - jnp.arange(length)[None]
        seen = (distance >= 0) if s.window is None else (distance >= 0) & (distance < s.window)
        seen = jnp.broadcast_to(seen, (ids.shape[0], length, length))
        if s.padded:  # a row of padding sees itself, as it would have no weights otherwise
            seen = seen & ((mask[:, None] > 0) | jnp.eye(length, dtype=bool))
        blocks = nn.scan(
            MistralBlock,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(nn.broadcast, nn.broadcast),
            length=c.num_hidden_layers,
        )
        sizes = c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.intermediate_size
        x, _ = blocks(*sizes, s, name="layers")(x, rope, seen)
        return RMSNorm(s.eps, name="norm")(x)


def linen_mistral(state: State, config: Any, settings: Settings) -> Any:
    """Return the module with its variables."""

    def stack(name: str, heads: int | None = None) -> np.ndarray:
        values = np.stack([state[f"layers.{n}.{name}.weight"] for n in range(config.num_hidden_layers)])
        values = values.swapaxes(1, 2) if values.ndim == 3 else values
        return values if heads is None else values.reshape(*values.shape[:2], heads, -1)

    heads, groups = config.num_attention_heads, config.num_key_value_heads
    layers = {
        "attention": {
            **{
                f"w{part}": {"kernel": stack(f"self_attn.{part}_proj", count)}
                for part, count in zip("qkv", (heads, groups, groups), strict=True)
            },
            "wo": {"kernel": stack("self_attn.o_proj")},
        },
        "attention_norm": {"scale": stack("input_layernorm")},
        "ffn_norm": {"scale": stack("post_attention_layernorm")},
        **{own: {"kernel": stack(f"mlp.{name}_proj")} for own, name in (("w1", "gate"), ("w2", "down"), ("w3", "up"))},
    }
    params = {
        "tok_embeddings": {"embedding": state["embed_tokens.weight"]},
        "layers": layers,
        "norm": {"scale": state["norm.weight"]},
    }
    return Mistral(config, settings.at()), {"params": jax.tree.map(jnp.asarray, params)}


linen_mistral.usual = {  # type: ignore[attr-defined]
    **{"eps": 1e-5, "base": 1e4, "rounded": False, "start": 0, "interleaved": False, "tiled": False, "scale": 0.25},
    **{"axis": -1, "gated": True, "window": 6, "padded": True},
}
