"""What ports written by hand in JAX are made of: activations, norms, rotary positions, attention, and modules of Flax NNX."""

from __future__ import annotations

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tests.cross.ports.by_hand import State

ACTIVATIONS: Final = {
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=True),
    "exact": lambda x: jax.nn.gelu(x, approximate=False),
    "relu": jax.nn.relu,
    "none": lambda x: x,
}


def multiplied(
    x: Any, weight: Any, epsilon: float, *, offset: float = 0.0, centred: bool = False, half: bool = False
) -> Any:
    """Return features whose mean square is 1, times a gain."""
    given = x.astype(jnp.bfloat16) if half else x
    given = given - given.mean(-1, keepdims=True) if centred else given
    unit = given * jax.lax.rsqrt((given**2).mean(-1, keepdims=True) + epsilon)
    return unit.astype(x.dtype) * (weight + offset)


def rotated(
    x: Any, base: float, start: int = 0, *, interleaved: bool = False, backwards: bool = False, half: bool = False
) -> Any:
    """Return turned heads; x is (example, position, head, feature)."""
    rates = base ** (jnp.arange(0, x.shape[-1], 2) / x.shape[-1])
    rates = 1 / (1 / rates).astype(jnp.bfloat16).astype(jnp.float32) if half else rates
    angles = (jnp.arange(x.shape[1]) + start)[:, None] / rates
    cosine, sine = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None] * (-1 if backwards else 1)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else jnp.split(x, 2, -1)
    turned = (a * cosine - b * sine, b * cosine + a * sine)
    return jnp.stack(turned, -1).reshape(x.shape) if interleaved else jnp.concatenate(turned, -1)


def before(length: int, ahead: int = 0) -> Any:
    """Return whether queries see keys, (query, key): those that are so far ahead at most."""
    return jnp.arange(length)[:, None] - jnp.arange(length) >= -ahead


def attend(
    q: Any, k: Any, v: Any, seen: Any, scale: float, *, mask: str = "where", axis: int = -1, tile: bool = False
) -> Any:
    """Return (example, position, head, feature)."""
    times = q.shape[2] // k.shape[2]
    if times > 1:
        k, v = (jnp.tile(x, (1, 1, times, 1)) if tile else jnp.repeat(x, times, 2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if mask == "where":
        scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
    elif mask in ("added", "sign"):
        scores = scores + (1e4 if mask == "sign" else -1e4) * (1 - seen)
    weights = jax.nn.softmax(scores, axis)
    weights = weights * seen if mask == "after" else weights
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


class Gain(nnx.Module):
    """A norm without mean."""

    def __init__(self, weight: np.ndarray, epsilon: float, **options: Any) -> None:
        self.g, self.epsilon, self.options = nnx.Param(jnp.asarray(weight)), epsilon, options

    def __call__(self, x: Any) -> Any:
        return multiplied(x, self.g.value, self.epsilon, **self.options)


def dense(state: State, name: str, *, biased: bool = True) -> nnx.Linear:
    """Return a projection with the weights of a name."""
    weight = state[f"{name}.weight"].T
    made = nnx.Linear(*weight.shape, use_bias=biased and f"{name}.bias" in state, rngs=nnx.Rngs(0))
    made.kernel.value = jnp.asarray(weight)
    if made.bias is not None:
        made.bias.value = jnp.asarray(state[f"{name}.bias"])
    return made


def listed(modules: list[Any]) -> Any:
    """Return modules in the list that this version of NNX takes."""
    return nnx.List(modules) if hasattr(nnx, "List") else modules
