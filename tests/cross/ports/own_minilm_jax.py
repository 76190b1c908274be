"""A port of MiniLM written by hand in JAX: a function of one text, mapped over texts and over heads by `jax.vmap`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.cross.ports.own_minilm_torch import bare
from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


def norm(p: Any, x: Any, s: Any) -> Any:
    """Return one token's features, normalised."""
    centred = x - x.mean()
    if s.spread == "deviation":
        return centred / (x.std(ddof=s.ddof) + s.eps) * p["g"] + p["b"]
    return centred / jnp.sqrt(x.var(ddof=s.ddof) + s.eps) * p["g"] + p["b"]


def head(p: Any, x: Any, mask: Any, s: Any) -> Any:
    """Return what one head of one text mixes, (position, feature)."""
    q, k, v = x @ p["wq"] + p["bq"], x @ p["wk"] + (p["bk"] if s.key_bias else 0.0), x @ p["wv"] + p["bv"]
    scores = q @ k.T * (q.shape[-1] if s.scale is None else s.scale) ** -0.5
    if s.mask == "where":
        scores = jnp.where(mask > 0, scores, jnp.finfo(scores.dtype).min)
    elif s.mask == "times":
        scores = scores * mask
    elif s.mask == "after":
        return (jax.nn.softmax(scores) * mask) @ v
    return jax.nn.softmax(scores) @ v


def layer(p: Any, x: Any, mask: Any, s: Any) -> Any:
    """Return what is behind a layer of one text."""
    mixed = jax.vmap(lambda one: head(one, x, mask, s), out_axes=1 if s.heads_first else 2)(p["heads"])
    mixed = mixed.reshape(len(x), -1) @ p["wo"] + p["bo"]
    x = jax.vmap(lambda token: norm(p["ln1"], token, s))(x + mixed)
    h = jax.nn.gelu(x @ p["w1"] + p["b1"], approximate=s.tanh) @ p["w2"] + p["b2"]
    h = x + h if s.residual else h
    return jax.vmap(lambda token: norm(p["ln2"], token, s))(h) if s.last_norm else h


def encode(settings: Settings, p: Any, ids: Any, mask: Any) -> Any:
    """Return one text's hidden states."""
    s = settings.at()
    x = p["word"][ids] + p["position"][jnp.arange(len(ids)) + s.first] + p["token_type"][s.type]
    x = jax.vmap(lambda token: norm(p["ln"], token, s))(x)
    for number, own in enumerate(p["layers"]):
        x = layer(own, x, mask, settings.at(number))
    return x


def vmap_minilm(state: State, config: Any, settings: Settings) -> Any:
    """Return the function of a batch and its parameters."""
    state, heads = bare(state), config.num_attention_heads

    def by_head(name: str) -> Any:
        values = state[name]
        return jnp.asarray(np.moveaxis(values.T.reshape(*values.T.shape[:-1], heads, -1), -2, 0))

    def normed(name: str) -> Any:
        return {"g": jnp.asarray(state[f"{name}.weight"]), "b": jnp.asarray(state[f"{name}.bias"])}

    def of_layer(own: str) -> Any:
        found: dict[str, Any] = {"heads": {}}
        for short, part in zip("qkv", ("query", "key", "value"), strict=True):
            found["heads"][f"w{short}"] = by_head(f"{own}.attention.self.{part}.weight")
            found["heads"][f"b{short}"] = by_head(f"{own}.attention.self.{part}.bias")
        for short, part in (("o", "attention.output"), ("1", "intermediate"), ("2", "output")):
            found[f"w{short}"] = jnp.asarray(state[f"{own}.{part}.dense.weight"].T)
            found[f"b{short}"] = jnp.asarray(state[f"{own}.{part}.dense.bias"])
        return {**found, "ln1": normed(f"{own}.attention.output.LayerNorm"), "ln2": normed(f"{own}.output.LayerNorm")}

    tables = {n: jnp.asarray(state[f"embeddings.{n}_embeddings.weight"]) for n in ("word", "position", "token_type")}
    layers = [of_layer(f"encoder.layer.{n}") for n in range(config.num_hidden_layers)]
    function = jax.vmap(functools.partial(encode, settings), in_axes=(None, 0, 0))
    function = jax.jit(function) if settings.at().jit else function
    return function, {**tables, "ln": normed("embeddings.LayerNorm"), "layers": layers}


vmap_minilm.usual = {  # type: ignore[attr-defined]
    **{"eps": 1e-12, "spread": "variance", "ddof": 0, "key_bias": True, "scale": None, "mask": "where", "tanh": False},
    **{"heads_first": True, "residual": True, "last_norm": True, "first": 0, "type": 0, "jit": False},
}
