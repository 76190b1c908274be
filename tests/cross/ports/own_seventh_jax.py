"""A port written by hand in JAX: GLM-4 of pure functions, whose parameters lie under the names of modules as Haiku's do."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


def rms(p: Any, name: str, x: Any, s: Any) -> Any:
    return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + s.eps) * p[name]["scale"]


def projected(p: Any, name: str, x: Any) -> Any:
    """Return heads, (example, position, head, feature)."""
    own = p[name]
    return jnp.einsum("btd,dhk->bthk", x, own["w"]) + own.get("b", 0.0)


def turned(x: Any, s: Any) -> Any:
    own, rest = x[..., : s.rotary], x[..., s.rotary :]
    rates = s.base ** (-jnp.arange(0, s.rotary, 2) / (x.shape[-1] if s.over == "head" else s.rotary))
    angles = (jnp.arange(x.shape[1])[:, None] * rates)[:, None]
    if s.turn == "complex":
        pairs = (own[..., ::2] + 1j * own[..., 1::2]) * jnp.exp(1j * angles)
        own = jnp.stack([pairs.real, pairs.imag], -1).reshape(own.shape)
    else:
        a, b = jnp.split(own, 2, -1) if s.turn == "halves" else (own[..., ::2], own[..., 1::2])
        pairs = (a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles))
        own = jnp.concatenate(pairs, -1) if s.turn == "halves" else jnp.stack(pairs, -1).reshape(own.shape)
    return jnp.concatenate([own, rest], -1).astype(x.dtype)


def attention(p: Any, name: str, x: Any, s: Any) -> Any:
    q, k, v = (projected(p, f"{name}/{part}", x) for part in ("query", "key", "value"))
    q, k, groups = turned(q, s), turned(k, s), k.shape[2]
    if s.grouped:
        q = q.reshape(*q.shape[:2], groups, -1, q.shape[-1])
        scores, mix = jnp.einsum("btgrk,bsgk->bgrts", q, k), "bgrts,bsgk->btgrk"
    else:
        times = q.shape[2] // groups
        k, v = (jnp.tile(y, (1, 1, times, 1)) if s.tiled else jnp.repeat(y, times, 2) for y in (k, v))
        scores, mix = jnp.einsum("bthk,bshk->bhts", q, k), "bhts,bshk->bthk"
    scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores * q.shape[-1] ** -0.5, -1e30)
    mixed = jnp.einsum(mix, jax.nn.softmax(scores, s.axis), v).reshape(*x.shape[:2], -1)
    return mixed @ p[f"{name}/output"]["w"]


def feed(p: Any, name: str, x: Any, s: Any) -> Any:
    both = x @ p[f"{name}/gate_up"]["w"]
    gate, up = jnp.split(both, 2, -1)[:: -1 if s.up_first else 1]
    return {"silu": jax.nn.silu, "gelu": jax.nn.gelu}[s.act](gate) * up @ p[f"{name}/down"]["w"]


def block(p: Any, name: str, x: Any, s: Any) -> Any:
    for part, function in (("attention", attention), ("mlp", feed)):
        y, post = function(p, f"{name}/{part}", rms(p, f"{name}/{part}_norm", x, s), s), f"{name}/post_{part}_norm"
        if s.post == "of sums":
            x = rms(p, post, x + y, s)
        else:
            x = x + (y if s.post == "none" or (s.post == "of mlp" and part == "attention") else rms(p, post, y, s))
    return x


def forward(settings: Settings, depth: int, p: Any, ids: Any) -> Any:
    s, x = settings.at(), p["glm4/embed"]["embeddings"][ids]
    for n in range(depth):
        step = functools.partial(block, name=f"glm4/~/layer_{n}", s=settings.at(n))
        x = jax.checkpoint(step)(p, x=x) if s.remat else step(p, x=x)
    head = p["glm4/embed"]["embeddings"].T if s.tied else p["glm4/head"]["w"]
    return rms(p, "glm4/norm", x, s) @ head


def haiku_glm4(state: State, config: Any, settings: Settings) -> Any:
    """Return the function of parameters and ids, and the parameters."""
    s, size, depth = settings.at(), config.head_dim, config.num_hidden_layers
    p = {
        "glm4/embed": {"embeddings": state["model.embed_tokens.weight"]},
        "glm4/head": {"w": state["lm_head.weight"].T},
    }
    norms = {"attention_norm": "input", "post_attention_norm": "post_self_attn"}
    norms |= {"mlp_norm": "post_attention", "post_mlp_norm": "post_mlp"}
    p["glm4/norm"] = {"scale": state["model.norm.weight"]}
    for n in range(depth):
        mine, theirs = f"glm4/~/layer_{n}", f"model.layers.{n}"
        for part in ("query", "key", "value"):
            weight, bias = (state[f"{theirs}.self_attn.{part[0]}_proj.{kind}"] for kind in ("weight", "bias"))
            p[f"{mine}/attention/{part}"] = {"w": weight.T.reshape(weight.shape[1], -1, size)}
            if part not in settings.at(n).unbiased:
                p[f"{mine}/attention/{part}"]["b"] = bias.reshape(-1, size)
        for name, other in (
            ("attention/output", "self_attn.o"),
            ("mlp/gate_up", "mlp.gate_up"),
            ("mlp/down", "mlp.down"),
        ):
            p[f"{mine}/{name}"] = {"w": state[f"{theirs}.{other}_proj.weight"].T}
        for name, other in norms.items():
            p[f"{mine}/{name}"] = {"scale": state[f"{theirs}.{other}_layernorm.weight"]}
    function = functools.partial(forward, settings, depth)
    if s.texts == "mapped":
        function = jax.vmap(lambda p, one: forward(settings, depth, p, one[None])[0], (None, 0))  # type: ignore[assignment]
    return jax.jit(function) if s.jit else function, jax.tree.map(jnp.asarray, p)


haiku_glm4.usual = {  # type: ignore[attr-defined]
    **{"eps": 1.5625e-7, "rotary": 8, "base": 1e4, "over": "rotary", "turn": "neighbours", "grouped": False},
    **{"tiled": False, "axis": -1, "up_first": False, "act": "silu", "post": "both", "unbiased": (), "tied": False},
    **{"remat": False, "texts": "together", "jit": True},
}
