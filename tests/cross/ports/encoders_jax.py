"""Ports written by hand in JAX: encoders of modules of Flax Linen, and of functions of one text that are mapped over texts."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from tests.cross.ports.by_hand import PARTS, TABLES, State, bare
from tests.cross.ports.by_hand_jax import attend
from tests.cross.ports.own_settings import Settings

# BERT in Linen


class Attention(linen.Module):
    width: int
    heads: int
    s: Any

    def setup(self) -> None:
        self.wq, self.wk, self.wv, self.wo = (linen.Dense(self.width) for _ in range(4))

    def __call__(self, x: Any, mask: Any) -> Any:
        shape = (*x.shape[:2], self.heads, -1)
        q, k, v = (part(x).reshape(shape) for part in (self.wq, self.wk, self.wv))
        seen = jnp.ones((x.shape[1], x.shape[1]), bool)[None, None]
        seen = seen & (mask[:, None, None] > 0) if self.s.padded else seen
        mixed = attend(q, k, v, seen, 8**-0.5, mask=self.s.mask)
        mixed = mixed.swapaxes(1, 2) if self.s.unturned else mixed
        return self.wo(mixed.reshape(x.shape))


class Block(linen.Module):
    width: int
    heads: int
    inner: int
    s: Any

    def setup(self) -> None:
        s = self.s
        self.mixer = Attention(self.width, self.heads, s)
        self.grow, self.shrink = linen.Dense(self.inner), linen.Dense(self.width)
        self.ln_a, self.ln_b = linen.LayerNorm(epsilon=s.epsilon), linen.LayerNorm(epsilon=s.epsilon)

    def __call__(self, x: Any, mask: Any) -> Any:
        act = functools.partial(jax.nn.gelu, approximate=self.s.tanh)
        if self.s.pre_norm:
            x = x + self.mixer(self.ln_a(x), mask)
            return x + self.shrink(act(self.grow(self.ln_b(x))))
        mixed = self.mixer(x, mask)
        x = self.ln_a(mixed) + x if self.s.outside else self.ln_a(x + mixed)
        return self.ln_b(x + self.shrink(act(self.grow(x))))


class Bert(linen.Module):
    """BERT without its pooler."""

    config: Any
    settings: Any

    def setup(self) -> None:
        config, s = self.config, self.settings.at()
        self.tok, self.pos, self.seg = (
            linen.Embed(count, config.hidden_size)
            for count in (config.vocab_size, config.max_position_embeddings, config.type_vocab_size)
        )
        self.ln = linen.LayerNorm(epsilon=s.epsilon)
        self.blocks = [
            Block(config.hidden_size, config.num_attention_heads, config.intermediate_size, self.settings.at(number))
            for number in range(config.num_hidden_layers)
        ]

    def __call__(self, ids: Any, mask: Any, types: Any) -> Any:
        s = self.settings.at()
        x = self.tok(ids) + self.pos(jnp.arange(ids.shape[1]))[None]
        x = x + self.seg(types if s.types else jnp.zeros_like(types))
        x = self.ln(x) if s.embedding_norm else x
        for block in self.blocks:
            x = block(x, mask)
        return x


def linen_bert(state: State, config: Any, settings: Settings) -> Any:
    """Return the module and its variables."""

    def dense(name: str) -> dict[str, Any]:
        return {"kernel": state[f"{name}.weight"].T, "bias": state[f"{name}.bias"]}

    def norm(name: str) -> dict[str, Any]:
        return {"scale": state[f"{name}.weight"], "bias": state[f"{name}.bias"]}

    def block(name: str) -> dict[str, Any]:
        own = f"{name}.attention"
        parts = {"wq": "self.query", "wk": "self.key", "wv": "self.value", "wo": "output.dense"}
        return {
            "mixer": {part: dense(f"{own}.{theirs}") for part, theirs in parts.items()},
            **{"ln_a": norm(f"{own}.output.LayerNorm"), "ln_b": norm(f"{name}.output.LayerNorm")},
            **{"grow": dense(f"{name}.intermediate.dense"), "shrink": dense(f"{name}.output.dense")},
        }

    tables = dict(zip(("tok", "pos", "seg"), TABLES, strict=True))
    parameters = {
        **{own: {"embedding": state[f"embeddings.{name}_embeddings.weight"]} for own, name in tables.items()},
        "ln": norm("embeddings.LayerNorm"),
        **{f"blocks_{number}": block(f"encoder.layer.{number}") for number in range(config.num_hidden_layers)},
    }
    return Bert(config, settings), {"params": jax.tree.map(jnp.asarray, parameters)}


linen_bert.usual = {  # type: ignore[attr-defined]
    **{"mask": "where", "padded": True, "epsilon": 1e-12, "tanh": False, "pre_norm": False, "outside": False},
    **{"types": True, "embedding_norm": True, "unturned": False},
}


# MiniLM as a function of one text


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
    return jax.nn.softmax(scores) @ v


def layer(p: Any, x: Any, mask: Any, s: Any) -> Any:
    """Return what is behind a layer of one text."""
    mixed = jax.vmap(lambda one: head(one, x, mask, s), out_axes=1 if s.heads_first else 2)(p["heads"])
    mixed = mixed.reshape(len(x), -1) @ p["wo"] + p["bo"]
    x = jax.vmap(lambda token: norm(p["ln1"], token, s))(x + mixed)
    h = jax.nn.gelu(x @ p["w1"] + p["b1"], approximate=False) @ p["w2"] + p["b2"]
    h = x + h if s.residual else h
    return jax.vmap(lambda token: norm(p["ln2"], token, s))(h) if s.last_norm else h


def encode(settings: Settings, p: Any, ids: Any, mask: Any) -> Any:
    """Return one text's hidden states."""
    s = settings.at()
    x = p["word"][ids] + p["position"][jnp.arange(len(ids))] + p["token_type"][s.type]
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
        for short, part in zip("qkv", PARTS, strict=True):
            found["heads"][f"w{short}"] = by_head(f"{own}.attention.self.{part}.weight")
            found["heads"][f"b{short}"] = by_head(f"{own}.attention.self.{part}.bias")
        for short, part in (("o", "attention.output"), ("1", "intermediate"), ("2", "output")):
            found[f"w{short}"] = jnp.asarray(state[f"{own}.{part}.dense.weight"].T)
            found[f"b{short}"] = jnp.asarray(state[f"{own}.{part}.dense.bias"])
        return {**found, "ln1": normed(f"{own}.attention.output.LayerNorm"), "ln2": normed(f"{own}.output.LayerNorm")}

    tables = {n: jnp.asarray(state[f"embeddings.{n}_embeddings.weight"]) for n in TABLES}
    layers = [of_layer(f"encoder.layer.{n}") for n in range(config.num_hidden_layers)]
    function = jax.vmap(functools.partial(encode, settings), in_axes=(None, 0, 0))
    function = jax.jit(function) if settings.at().jit else function
    return function, {**tables, "ln": normed("embeddings.LayerNorm"), "layers": layers}


vmap_minilm.usual = {  # type: ignore[attr-defined]
    **{"eps": 1e-12, "spread": "variance", "ddof": 0, "key_bias": True, "scale": None, "mask": "where"},
    **{"heads_first": True, "residual": True, "last_norm": True, "type": 0, "jit": False},
}
