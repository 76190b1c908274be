"""Ports written by hand in JAX: Granite as a tree of dataclasses of one text, and Pegasus in Linen of stacked layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]


# Granite as a tree of dataclasses, which sees one text and is mapped over a batch


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rms:
    gain: Any

    def __call__(self, x: Any, s: Any) -> Any:
        if s.norm_dtype != "float32":
            x = x.astype(s.norm_dtype)
        unit = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + jnp.asarray(s.eps, x.dtype))
        return (unit * self.gain.astype(x.dtype)).astype("float32")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GraniteAttention:
    q: Any
    k: Any
    v: Any
    o: Any

    def __call__(self, x: Any, s: Any) -> Any:
        """Attend, with kernels (width, head, feature)."""
        length, size, times = len(x), self.q.shape[-1], self.q.shape[1] // self.k.shape[1]
        q, k, v = (jnp.einsum("td,dnh->nth", x, part) for part in (self.q, self.k, self.v))
        rates = s.base ** (-jnp.arange(0, size, 2) / size)
        angles = jnp.arange(length, dtype=s.angle_dtype)[:, None] * rates.astype(s.angle_dtype)
        cos, sin = jnp.cos(angles).astype("float32"), jnp.sin(angles).astype("float32")

        def turned(x: Any) -> Any:
            a, b = jnp.split(x, 2, -1)
            return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

        repeat = (lambda x: jnp.tile(x, (times, 1, 1))) if s.tiled else lambda x: jnp.repeat(x, times, 0)
        q, k, v = turned(q), repeat(turned(k)), repeat(v)
        scores = jnp.einsum("nth,nsh->nts", q, k) * (s.attention or size**-0.5)
        weights = jax.nn.softmax(jnp.where(jnp.tri(length, k=s.ahead, dtype=bool), scores, -jnp.inf))
        return jnp.einsum("nts,nsh,nhd->td", weights, v, self.o)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GraniteBlock:
    pre: Rms
    attention: GraniteAttention
    mid: Rms
    gate: Any
    up: Any
    down: Any

    def __call__(self, x: Any, s: Any) -> Any:
        y = self.attention(self.pre(x, s), s)
        x = (x + y) * s.residual if s.residual_of == "sum" else x + y * s.residual
        h = self.mid(x, s)
        fed = jax.nn.silu(h @ self.gate) * (h @ self.up) @ self.down
        return x + fed * (1.0 if s.residual_of == "attention" else s.residual)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Granite:
    table: Any
    blocks: Any
    norm: Rms
    head: Any


def granite_block(state: State, n: int, size: int, s: Any) -> GraniteBlock:
    own = f"model.layers.{n}"

    def kernel(name: str) -> Any:
        return jnp.asarray(state[f"{own}.{name}.weight"].T)

    def split(part: str) -> Any:
        rows = kernel(f"self_attn.{part}_proj")
        return rows.reshape(len(rows), -1, size)

    o = kernel("self_attn.o_proj")
    attention = GraniteAttention(*(split(part) for part in "qkv"), o.reshape(-1, size, o.shape[1]))
    pre, mid = (Rms(jnp.asarray(state[f"{own}.{p}_layernorm.weight"])) for p in ("input", "post_attention"))
    return GraniteBlock(pre, attention, mid, *(kernel(f"mlp.{part}_proj") for part in s.feed))


def tree_granite(state: State, config: Any, settings: Settings) -> Any:
    """Return the function of a tree and ids, and the tree."""
    s, depth = settings.at(), config.num_hidden_layers
    size = config.hidden_size // config.num_attention_heads
    table = jnp.asarray(state["model.embed_tokens.weight"])
    blocks: Any = [granite_block(state, n, size, settings.at(n)) for n in range(depth)]
    blocks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks) if s.layers == "scanned" else blocks
    lookup = table * s.embedding if s.folded else table
    head = (table / s.logits if s.folded else table).T
    tree = Granite(lookup, blocks, Rms(jnp.asarray(state["model.norm.weight"])), head)

    def text(tree: Granite, ids: Any) -> Any:
        x = tree.table[ids] * (1.0 if s.folded else s.embedding)
        if s.layers == "scanned":
            x = jax.lax.scan(lambda x, block: (block(x, s), None), x, tree.blocks)[0]
        else:
            for n, block in enumerate(tree.blocks):
                x = block(x, settings.at(n))
        logits = tree.norm(x, s) @ tree.head
        if s.folded:
            return logits
        return logits * s.logits if s.multiplied else logits / s.logits

    function = jax.vmap(text, in_axes=(None, 0))
    return jax.jit(function) if s.jit else function, tree


tree_granite.usual = {  # type: ignore[attr-defined]
    **{"eps": 1e-6, "norm_dtype": "float32", "base": 1e4, "angle_dtype": "float32", "tiled": False, "ahead": 0},
    **{"attention": 0.1, "embedding": 6.0, "residual": 0.5, "residual_of": "both", "logits": 4.0, "multiplied": False},
    **{"feed": ("gate", "up", "down"), "layers": "listed", "folded": False, "jit": True},
}


# Pegasus in Linen, whose layers are stacked and computed again


class Attend(nn.Module):
    heads: int
    s: Any

    @nn.compact
    def __call__(self, x: Any, memory: Any, seen: Any) -> Any:
        width, s = x.shape[-1], self.s
        shape = (self.heads, width // self.heads)
        q, k, v = (
            nn.DenseGeneral(shape, name=name)(given)
            for name, given in (("query", x), ("key", memory), ("value", memory))
        )
        scores = jnp.einsum("bqnh,bknh->bnqk", q * shape[1] ** -0.5, k)
        if s.masked == "added":
            scores = scores + jnp.where(seen, 0.0, -1e10)
        else:
            scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
        mixed = jnp.einsum("bnqk,bknh->bqnh", jax.nn.softmax(scores), v)
        return nn.DenseGeneral(width, axis=(-2, -1), name="out")(mixed)


class StackedLayer(nn.Module):
    config: Any
    s: Any
    decodes: bool = False

    @nn.compact
    def __call__(self, x: Any, seen: Any, memory: Any, across: Any) -> tuple[Any, None]:
        s, config = self.s, self.config

        def added(name: str, x: Any, part: Any) -> Any:
            ln = nn.LayerNorm(epsilon=s.eps, name=name)
            return x + part(ln(x)) if s.pre_norm else ln(x + part(x))

        def feed(x: Any) -> Any:
            act = {"relu": jax.nn.relu, "gelu": jax.nn.gelu}[s.act]
            return nn.Dense(config.d_model, name="wo")(act(nn.Dense(config.encoder_ffn_dim, name="wi")(x)))

        own = Attend(config.encoder_attention_heads, s, name="self_attention")
        x = added("ln_self", x, lambda h: own(h, h, seen))
        if self.decodes:
            cross = Attend(config.encoder_attention_heads, s, name="cross_attention")
            x = added("ln_cross", x, lambda h: cross(h, memory, across))
        return added("ln_feed", x, feed), None


class Stack(nn.Module):
    config: Any
    s: Any
    depth: int
    decodes: bool = False

    @nn.compact
    def __call__(self, x: Any, seen: Any, memory: Any = None, across: Any = None) -> Any:
        s = self.s
        layer = nn.remat(StackedLayer, prevent_cse=False) if s.remat else StackedLayer
        scanned = nn.scan(
            layer,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(nn.broadcast,) * 3,
            length=self.depth,
            unroll=self.depth if s.unrolled else 1,
        )
        x, _ = scanned(self.config, s, self.decodes, name="layers")(x, seen, memory, across)
        return nn.LayerNorm(epsilon=s.eps, name="ln_out")(x) if self.decodes or s.memory_norm else x


class Pegasus(nn.Module):
    config: Any
    s: Any

    @nn.compact
    def __call__(self, ids: Any, mask: Any, later: Any) -> Any:
        s, config, width = self.s, self.config, self.config.d_model
        table = self.param("table", nn.initializers.normal(), (config.vocab_size, width))
        bias = self.param("bias", nn.initializers.zeros, (config.vocab_size,))

        def embed(ids: Any) -> Any:
            rates = s.longest ** (-jnp.arange(0, width, 2) / width)
            angles = (jnp.arange(ids.shape[1]) + s.first)[:, None] * rates
            sines = jnp.sin(angles), jnp.cos(angles)
            in_turn = s.sines == "in turn"
            places = jnp.stack(sines, -1).reshape(-1, width) if in_turn else jnp.concatenate(sines, -1)
            return table[ids] * s.embed_scale + places

        real = mask.astype(bool)[:, None, None]
        memory = Stack(config, s, config.encoder_layers, name="encoder")(embed(ids), real)
        length = later.shape[1]
        seen = jnp.tri(length, dtype=bool) if s.causal else jnp.ones((length, length), bool)
        across = real if s.cross_masked else jnp.ones_like(real)
        x = Stack(config, s, config.decoder_layers, True, name="decoder")(embed(later), seen, memory, across)
        return x @ table.T + bias * s.logits_bias


def stacked_pegasus(state: State, config: Any, settings: Settings) -> Any:
    """Return the function of parameters and a batch, and the parameters."""
    s, heads = settings.at(), config.encoder_attention_heads

    def norm(name: str) -> dict[str, Any]:
        return {"scale": state[f"{name}.weight"], "bias": state[f"{name}.bias"]}

    def dense(name: str, shape: tuple[int, ...] = (), out: tuple[int, ...] = (-1,)) -> dict[str, Any]:
        kernel = state[f"{name}.weight"].T
        return {"kernel": kernel.reshape(*(shape or kernel.shape)), "bias": state[f"{name}.bias"].reshape(out)}

    def attention(name: str) -> dict[str, Any]:
        width = config.d_model
        parts = {"query": "q", "key": "k", "value": "v"}
        split = {
            mine: dense(f"{name}.{theirs}_proj", (width, heads, -1), (heads, -1)) for mine, theirs in parts.items()
        }
        return {**split, "out": dense(f"{name}.out_proj", (heads, -1, width))}

    def layer(name: str, *, decodes: bool) -> dict[str, Any]:
        own = {"self_attention": attention(f"{name}.self_attn"), "ln_self": norm(f"{name}.self_attn_layer_norm")}
        if decodes:
            own["cross_attention"] = attention(f"{name}.encoder_attn")
            own["ln_cross"] = norm(f"{name}.encoder_attn_layer_norm")
        feed = {"wi": dense(f"{name}.fc1"), "wo": dense(f"{name}.fc2"), "ln_feed": norm(f"{name}.final_layer_norm")}
        return {**own, **feed}

    def stack(side: str, depth: int) -> dict[str, Any]:
        numbers = reversed(range(depth)) if s.backwards else range(depth)
        layers = [layer(f"model.{side}.layers.{n}", decodes=side == "decoder") for n in numbers]
        has_norm = side == "decoder" or s.memory_norm
        last = {"ln_out": norm(f"model.{side}.layer_norm")} if has_norm else {}
        return {"layers": jax.tree.map(lambda *leaves: np.stack(leaves), *layers), **last}

    parameters = {
        **{"table": state["model.shared.weight"], "bias": state["final_logits_bias"][0]},
        **{"encoder": stack("encoder", config.encoder_layers), "decoder": stack("decoder", config.decoder_layers)},
    }
    apply = Pegasus(config, s).apply
    return jax.jit(apply) if s.jit else apply, {"params": jax.tree.map(jnp.asarray, parameters)}


stacked_pegasus.usual = {  # type: ignore[attr-defined]
    **{"eps": 1e-5, "masked": "chosen", "act": "relu", "pre_norm": True, "remat": True, "unrolled": False},
    **{"memory_norm": True, "longest": 1e4, "first": 0, "sines": "halves", "embed_scale": 32**0.5},
    **{"causal": True, "cross_masked": True, "logits_bias": 1.0, "backwards": False, "jit": True},
}
