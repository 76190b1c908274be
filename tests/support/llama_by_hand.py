"""Llama as its paper has it, with weights by Hugging Face's names, in NumPy or in any module with NumPy's functions.

With `jax.numpy` it is a function of a nest of parameters; with NumPy in float64 it is the truth of the logits.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["changed_llama", "llama_by_hand"]


def llama_by_hand(xp: Any, weights: Mapping[str, Any], config: Mapping[str, Any], ids: Any) -> Any:
    """Return the logits of texts without padding, (example, position, id).

    Args:
        xp: the module: `numpy` or `jax.numpy`.
        weights: the weights, of one dtype.
        config: Hugging Face's configuration of a Llama whose head is its table.
        ids: shape (example, position).
    """
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    table, epsilon = weights["model.embed_tokens.weight"], config["rms_norm_eps"]
    x = table[ids]
    examples, positions, dim = x.shape
    wide = dim // heads
    frequencies = config["rope_theta"] ** (-xp.arange(0, wide, 2, dtype=x.dtype) / wide)
    angles = xp.arange(positions, dtype=x.dtype)[:, None] * xp.concatenate([frequencies, frequencies])
    cos, sin = xp.cos(angles), xp.sin(angles)
    hidden = xp.where(xp.tril(xp.ones((positions, positions), bool)), 0.0, -xp.inf).astype(x.dtype)

    def norm(x: Any, name: str) -> Any:
        return weights[f"model.{name}.weight"] * x / xp.sqrt((x * x).mean(-1, keepdims=True) + epsilon)

    def split(x: Any, number: int) -> Any:
        return x.reshape(examples, positions, number, wide).swapaxes(1, 2)

    def turn(x: Any) -> Any:
        return x * cos + xp.concatenate([-x[..., wide // 2 :], x[..., : wide // 2]], -1) * sin

    for layer in range(config["num_hidden_layers"]):
        name = f"layers.{layer}"

        def linear(x: Any, part: str, name: str = name) -> Any:
            return x @ weights[f"model.{name}.{part}_proj.weight"].T

        normed = norm(x, f"{name}.input_layernorm")
        query = turn(split(linear(normed, "self_attn.q"), heads))
        key = xp.repeat(turn(split(linear(normed, "self_attn.k"), groups)), heads // groups, 1)
        value = xp.repeat(split(linear(normed, "self_attn.v"), groups), heads // groups, 1)
        scores = query @ key.swapaxes(2, 3) / wide**0.5 + hidden
        shares = xp.exp(scores - scores.max(-1, keepdims=True))
        mixed = (shares / shares.sum(-1, keepdims=True)) @ value
        x = x + linear(mixed.swapaxes(1, 2).reshape(examples, positions, dim), "self_attn.o")
        normed = norm(x, f"{name}.post_attention_layernorm")
        gate = linear(normed, "mlp.gate")
        x = x + linear(gate / (1 + xp.exp(-gate)) * linear(normed, "mlp.up"), "mlp.down")
    return norm(x, "norm") @ table.T


def changed_llama(before: str, after: str) -> Callable[..., Any]:
    """Return `llama_by_hand` with a piece of its source in the place of another; unchanged where both are empty."""
    source, names = inspect.getsource(sys.modules[__name__]), dict[str, Any]()
    assert before in source
    exec(compile(source.replace(before, after) if before else source, "a port", "exec"), names)
    decoder: Callable[..., Any] = names["llama_by_hand"]
    return decoder
