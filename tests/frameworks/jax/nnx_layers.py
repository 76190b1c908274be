"""Layers that the NNX models of the tests share: norms, and attention with its mask."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

__all__ = ["RMSNorm", "attend", "causal_mask", "normal"]


def normal(rngs: nnx.Rngs, shape: tuple[int, ...], dtype: Any, scale: float = 0.3) -> jax.Array:
    """Return random weights."""
    return scale * jax.random.normal(rngs.params(), shape, dtype)


def causal_mask(real: jax.Array) -> jax.Array:
    """Return which positions see which, (example, position, position): real ones, and not later."""
    places = jnp.arange(real.shape[1])
    return (places[:, None] >= places[None, :])[None] & (real[:, None, :] > 0)


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


class RMSNorm(nnx.Module):
    """A norm by the root of the mean square, computed in at least float32."""

    def __init__(self, dim: int, dtype: Any, rngs: nnx.Rngs) -> None:
        self.scale = nnx.Param(1 + normal(rngs, (dim,), dtype, 0.1))

    def __call__(self, x: jax.Array) -> jax.Array:
        """As x."""
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        normed = wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6)
        return (self.scale[...] * normed).astype(x.dtype)
