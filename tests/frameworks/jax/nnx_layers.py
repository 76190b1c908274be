"""Layers that the NNX models of the tests share: norms, rotary positions, attention with grouped heads, gated units."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

__all__ = ["Einsum", "GatedUnit", "RMSNorm", "Rotary", "attend", "causal_mask", "normal"]


def normal(rngs: nnx.Rngs, shape: tuple[int, ...], dtype: Any, scale: float = 0.3) -> jax.Array:
    """Return random weights."""
    return scale * jax.random.normal(rngs.params(), shape, dtype)


def causal_mask(real: jax.Array, window: int | None = None) -> jax.Array:
    """Return which positions see which, (example, position, position): real ones, not later, and no farther than the window."""
    places = jnp.arange(real.shape[1])
    distance = places[:, None] - places[None, :]
    seen = distance >= 0 if window is None else (distance >= 0) & (distance < window)
    return seen[None] & (real[:, None, :] > 0)


def rotate(x: jax.Array, places: jax.Array, base: float) -> jax.Array:
    """Return queries or keys (example, position, head, dim), turned by their positions (example, position)."""
    half = x.shape[-1] // 2
    angles = places[..., None] / base ** (jnp.arange(half) / half)
    sine, cosine = jnp.sin(angles)[:, :, None], jnp.cos(angles)[:, :, None]
    first, second = jnp.split(x, 2, axis=-1)
    turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(x.dtype)


def attend(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, bias: Any = 0) -> jax.Array:
    """Return (example, position, head, dim); each head of keys serves several of queries. Weights are at least float32.

    The mask is (example, position, source position), the bias of the scores (1, head, 1, position, source position).
    """
    examples, length, heads, dim = query.shape
    grouped = query.reshape(examples, length, key.shape[2], heads // key.shape[2], dim)
    scores = jnp.einsum("btkgd,bskd->bkgts", grouped, key) / dim**0.5 + bias
    scores = jnp.where(mask[:, None, None], scores, jnp.finfo(scores.dtype).min)
    weights = jax.nn.softmax(scores.astype(jnp.promote_types(scores.dtype, jnp.float32)), axis=-1)
    mixed = jnp.einsum("bkgts,bskd->btkgd", weights.astype(value.dtype), value)
    return mixed.reshape(examples, length, heads, dim)


class Einsum(nnx.Module):
    """A product with a weight of several axes."""

    def __init__(self, pattern: str, shape: tuple[int, ...], dtype: Any, rngs: nnx.Rngs) -> None:
        self.pattern = pattern
        self.w = nnx.Param(normal(rngs, shape, dtype))

    @jax.named_scope("einsum")
    def __call__(self, x: jax.Array) -> jax.Array:
        """The shape that the pattern says."""
        return jnp.einsum(self.pattern, x, self.w[...])


class RMSNorm(nnx.Module):
    """A norm by the root of the mean square, computed in at least float32.

    Args:
        dim: the number of entries.
        offset: what is added to the scale; Gemma's scale begins at zero, and 1 is added.
        dtype: of the scale.
        rngs: draw the scale.
    """

    def __init__(self, dim: int, offset: float, dtype: Any, rngs: nnx.Rngs) -> None:
        self.scale = nnx.Param(1 - offset + normal(rngs, (dim,), dtype, 0.1))
        self.offset = offset

    def __call__(self, x: jax.Array) -> jax.Array:
        """As x."""
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        normed = wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6)
        return ((self.offset + self.scale[...]) * normed).astype(x.dtype)


class GatedUnit(nnx.Module):
    """The gated feed-forward layer of Llama, Qwen (with SiLU) and Gemma (with GELU)."""

    def __init__(self, dim: int, hidden: int, activation: Any, dtype: Any, rngs: nnx.Rngs) -> None:
        options = {"use_bias": False, "dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.gate_proj, self.up_proj = (nnx.Linear(dim, hidden, **options) for _ in range(2))
        self.down_proj = nnx.Linear(hidden, dim, **options)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """As x."""
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class Rotary(nnx.Module):
    """Attention with rotary positions and grouped heads, with norms of queries and keys where these are asked for."""

    def __init__(
        self, dim: int, heads: int, key_heads: int, base: float, norm: float | None, dtype: Any, rngs: nnx.Rngs
    ) -> None:
        size = dim // heads
        self.q_proj = Einsum("btd,dnh->btnh", (dim, heads, size), dtype, rngs)
        self.k_proj = Einsum("bsd,dkh->bskh", (dim, key_heads, size), dtype, rngs)
        self.v_proj = Einsum("bsd,dkh->bskh", (dim, key_heads, size), dtype, rngs)
        self.o_proj = Einsum("btnh,nhd->btd", (heads, size, dim), dtype, rngs)
        self.base, self.normed = base, norm is not None
        if norm is not None:
            self.q_norm, self.k_norm = RMSNorm(size, norm, dtype, rngs), RMSNorm(size, norm, dtype, rngs)

    def __call__(self, x: jax.Array, places: jax.Array, mask: jax.Array) -> jax.Array:
        """As x."""
        query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.normed:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rotate(query, places, self.base), rotate(key, places, self.base)
        return self.o_proj(attend(query, key, value, mask))
