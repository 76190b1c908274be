"""Ports written by hand in JAX: T5's encoder in Linen as T5X has it, and CLIP's text tower of dataclasses that are trees."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import struct

from tests.cross.ports.own_settings import Settings

State = Mapping[str, np.ndarray]

ACTIVATIONS: Final = {
    "tanh": functools.partial(jax.nn.gelu, approximate=True),
    "exact": functools.partial(jax.nn.gelu, approximate=False),
    "quick": lambda x: x * jax.nn.sigmoid(1.702 * x),
}


# T5's encoder in Linen


class T5Norm(nn.Module):
    s: Any

    @nn.compact
    def __call__(self, x: Any) -> Any:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        x = x - x.mean(-1, keepdims=True) if self.s.centred else x
        return x * jax.lax.rsqrt(jnp.mean(jax.lax.square(x), -1, keepdims=True) + self.s.eps) * scale


class RelativePositions(nn.Module):
    heads: int
    s: Any

    def bucket(self, distance: Any) -> Any:
        s, count, found = self.s, self.s.buckets, 0
        negative = -distance
        if s.bidirectional:
            count //= 2
            found = (negative < 0) * count
            negative = jnp.abs(negative)
        else:
            negative = jnp.maximum(negative, 0)
        exact = count // 2
        far = jnp.log(negative / exact + 1e-6) / np.log(s.longest / exact) * (count - exact)
        far = jnp.minimum(exact + far.astype(jnp.int32), count - 1)
        return found + jnp.where(negative < exact, negative, far)

    @nn.compact
    def __call__(self, length: int) -> Any:
        at = jnp.arange(length)
        distance = (at[None] - at[:, None]) * self.s.sign
        table = self.param("rel_embedding", nn.initializers.ones, (self.heads, self.s.buckets))
        one_hot = jax.nn.one_hot(self.bucket(distance), self.s.buckets)
        return jnp.einsum("hb,qkb->hqk", table, one_hot)[None]


class T5Attention(nn.Module):
    heads: int
    size: int
    s: Any

    @nn.compact
    def __call__(self, x: Any, bias: Any) -> Any:
        s = self.s
        make = lambda name: nn.DenseGeneral((self.heads, self.size), use_bias=False, name=name)  # noqa: E731
        q, k, v = (make(name)(x) for name in ("query", "key", "value"))
        q = q / self.size**0.5 if s.scaled else q
        if s.fused:
            mixed = nn.dot_product_attention(q * self.size**0.5, k, v, bias=bias)
        else:
            weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias)
            mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v)
        return nn.DenseGeneral(x.shape[-1], axis=(-2, -1), use_bias=False, name="out")(mixed)


class T5Layer(nn.Module):
    config: Any
    s: Any

    @nn.compact
    def __call__(self, x: Any, bias: Any) -> Any:
        s, config = self.s, self.config
        y = T5Norm(s, name="pre_attention_layer_norm")(x)
        y = T5Attention(config.num_heads, config.d_kv, s, name="attention")(y, bias)
        x = x + y
        y = T5Norm(s, name="pre_mlp_layer_norm")(x)
        gate, up = (nn.Dense(config.d_ff, use_bias=False, name=f"wi_{n}")(y) for n in (0, 1))
        act = ACTIVATIONS[s.act]
        y = nn.Dense(config.d_model, use_bias=False, name="wo")(act(gate) * up if s.gated else gate * act(up))
        return x + y


class T5Encoder(nn.Module):
    config: Any
    settings: Any

    @nn.compact
    def __call__(self, ids: Any, mask: Any) -> Any:
        s, config = self.settings.at(), self.config
        x = nn.Embed(config.vocab_size, config.d_model, name="token_embedder")(ids)
        x = x * config.d_model**0.5 if s.lookup_scaled else x
        relative = RelativePositions(config.num_heads, s, name="relpos_bias")(ids.shape[1])
        hidden = jnp.where(mask[:, None, None] > 0, 0.0, -1e10)
        for number in range(config.num_layers):
            own = relative if s.shared or number == 0 else 0.0
            bias = jnp.broadcast_to(own + hidden, (len(ids), config.num_heads, ids.shape[1], ids.shape[1]))
            x = T5Layer(config, self.settings.at(number), name=f"layers_{number}")(x, bias)
        return T5Norm(s, name="encoder_norm")(x)


def t5x_encoder(state: State, config: Any, settings: Settings) -> Any:
    """Return an encoder and its parameters."""
    width, heads = config.d_model, config.num_heads
    first = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"

    def layer(number: int) -> dict[str, Any]:
        own = f"encoder.block.{number}.layer"
        found: dict[str, Any] = {}
        for short, name in zip("qkv", ("query", "key", "value"), strict=True):
            kernel = state[f"{own}.0.SelfAttention.{short}.weight"].T
            found[name] = {"kernel": kernel.reshape(width, heads, -1)}
        found["out"] = {"kernel": state[f"{own}.0.SelfAttention.o.weight"].T.reshape(heads, -1, width)}
        feed = {name: {"kernel": state[f"{own}.1.DenseReluDense.{name}.weight"].T} for name in ("wi_0", "wi_1", "wo")}
        norms = {f"pre_{part}_layer_norm": {"scale": state[f"{own}.{n}.layer_norm.weight"]} for n, part in _PARTS}
        return {"attention": found, **feed, **norms}

    parameters: dict[str, Any] = {
        "token_embedder": {"embedding": state["shared.weight"]},
        "relpos_bias": {"rel_embedding": state[first].T},
        "encoder_norm": {"scale": state["encoder.final_layer_norm.weight"]},
        **{f"layers_{number}": layer(number) for number in range(config.num_layers)},
    }
    module, s = T5Encoder(config, settings), settings.at()
    return jax.jit(module.apply) if s.jit else module.apply, {"params": jax.tree.map(jnp.asarray, parameters)}


_PARTS: Final = ((0, "attention"), (1, "mlp"))

t5x_encoder.usual = {  # type: ignore[attr-defined]
    **{"eps": 1e-6, "centred": False, "buckets": 16, "bidirectional": True, "longest": 32, "sign": 1, "scaled": False},
    **{"fused": False, "act": "tanh", "gated": True, "lookup_scaled": False, "shared": True, "jit": False},
}


# CLIP's text tower of trees


@struct.dataclass
class Linear:
    weight: Any
    bias: Any

    def __call__(self, x: Any) -> Any:
        y = self.weight @ x  # of one token
        return y if self.bias is None else y + self.bias


@struct.dataclass
class Norm:
    weight: Any
    bias: Any
    eps: float = struct.field(pytree_node=False)

    def __call__(self, x: Any) -> Any:
        unit = (x - jnp.mean(x)) * jax.lax.rsqrt(jnp.var(x) + self.eps)
        return unit * self.weight + self.bias


@struct.dataclass
class ClipBlock:
    q: Linear
    k: Linear
    v: Linear
    out: Linear
    fc1: Linear
    fc2: Linear
    norm1: Norm
    norm2: Norm
    heads: int = struct.field(pytree_node=False)
    s: Any = struct.field(pytree_node=False)

    def attention(self, x: Any) -> Any:
        s, each = self.s, jax.vmap
        q, k, v = (each(part)(x).reshape(len(x), self.heads, -1) for part in (self.q, self.k, self.v))
        scores = jnp.einsum("qhd,khd->hqk", q, k) / jnp.sqrt(q.shape[-1])
        seen = jnp.tri(len(x), k=s.ahead, dtype=bool) if s.causal else jnp.ones((len(x), len(x)), bool)
        weights = jax.nn.softmax(scores, where=seen)
        return each(self.out)(jnp.einsum("hqk,khd->qhd", weights, v).reshape(x.shape))

    def __call__(self, x: Any) -> Any:
        s, each = self.s, jax.vmap
        feed = lambda token: self.fc2(ACTIVATIONS[s.act](self.fc1(token)))  # noqa: E731
        if s.pre_norm:
            x = x + self.attention(each(self.norm1)(x))
            return x + each(feed)(each(self.norm2)(x))
        x = each(self.norm1)(x + self.attention(x))
        return each(self.norm2)(x + each(feed)(x))


@struct.dataclass
class Clip:
    tokens: Any
    positions: Any
    blocks: tuple[ClipBlock, ...]
    final: Norm
    projection: Linear
    end: int = struct.field(pytree_node=False)
    s: Any = struct.field(pytree_node=False)

    def __call__(self, ids: Any, mask: Any) -> Any:
        """Return one text's features, of length 1."""
        s = self.s
        x = self.tokens[ids] + self.positions[jnp.arange(len(ids)) + s.first]
        for block in self.blocks:
            x = block(x)
        x = jax.vmap(self.final)(x) if s.final else x
        place = {
            "end": lambda: jnp.argmax(ids == self.end) - s.before,
            "length": lambda: mask.sum() - 1,
            "last": lambda: len(ids) - 1,
        }
        pooled = self.projection(x[place[s.pooling]()])
        return pooled / jnp.linalg.norm(pooled)


def clip_text(state: State, config: Any, settings: Settings) -> Any:
    """Return a tower that is called with a batch."""
    own, s = "clip.text_model", settings.at()

    def linear(name: str, layer: Any) -> Linear:
        weight = state[f"{name}.weight"]
        weight = weight.T if any(name.endswith(part) for part in layer.as_stored) else weight
        bias = state.get(f"{name}.bias")
        return Linear(jnp.asarray(weight), None if bias is None else jnp.asarray(bias))

    def norm(name: str, layer: Any) -> Norm:
        return Norm(jnp.asarray(state[f"{name}.weight"]), jnp.asarray(state[f"{name}.bias"]), layer.eps)

    def block(number: int) -> ClipBlock:
        name, layer = f"{own}.encoder.layers.{number}", settings.at(number)
        parts = [linear(f"{name}.self_attn.{part}_proj", layer) for part in ("q", "k", "v", "out")]
        parts += [linear(f"{name}.mlp.{part}", layer) for part in ("fc1", "fc2")]
        norms = [norm(f"{name}.layer_norm{n}", layer) for n in (1, 2)]
        return ClipBlock(*parts, *norms, config.num_attention_heads, layer)

    tables = (jnp.asarray(state[f"{own}.embeddings.{name}_embedding.weight"]) for name in ("token", "position"))
    blocks = tuple(block(number) for number in range(config.num_hidden_layers))
    final, projection = norm(f"{own}.final_layer_norm", s), linear("clip.text_projection", s)
    return Clip(*tables, blocks, final, projection, config.eos_token_id, s)


clip_text.usual = {  # type: ignore[attr-defined]
    **{"eps": 1e-5, "as_stored": (), "causal": True, "ahead": 0},
    **{"act": "quick", "pre_norm": True, "first": 0, "final": True, "pooling": "end", "before": 0, "jit": False},
}


def mapped(tower: Any, inputs: Any) -> Any:
    """Call a tower with each text, compiled if it is to be."""
    function = jax.vmap(lambda own, ids, mask: own(ids, mask), in_axes=(None, 0, 0))
    return (jax.jit(function) if tower.s.jit else function)(tower, inputs["input_ids"], inputs["attention_mask"])
