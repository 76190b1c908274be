"""Decoders of public design in Flax NNX: Qwen 3, Gemma 3 and Llama 3, small, each with the lookup of public implementations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tests.frameworks.jax.cases import DIM, VOCAB
from tests.frameworks.jax.nnx_layers import Einsum, GatedUnit, RMSNorm, Rotary, causal_mask, normal

__all__ = ["Gemma3", "Llama3", "Qwen3"]


def _places(ids: jax.Array) -> jax.Array:
    return jnp.tile(jnp.arange(ids.shape[1]), (ids.shape[0], 1))


class QwenLayer(nnx.Module):
    """Attention with norms of queries and keys, and a gated unit, recomputed in the backward pass."""

    def __init__(self, dtype: Any, rngs: nnx.Rngs) -> None:
        self.input_layernorm = RMSNorm(DIM, 0, dtype, rngs)
        self.attn = Rotary(DIM, 4, 2, 1e6, 0, dtype, rngs)
        self.post_attention_layernorm = RMSNorm(DIM, 0, dtype, rngs)
        self.mlp = GatedUnit(DIM, 12, nnx.silu, dtype, rngs)

    def block(self, x: jax.Array, places: jax.Array, mask: jax.Array) -> jax.Array:
        """As x."""
        x = x + self.attn(self.input_layernorm(x), places, mask)
        return x + self.mlp(self.post_attention_layernorm(x))

    def __call__(self, x: jax.Array, places: jax.Array, cache: None, mask: jax.Array) -> tuple[None, jax.Array]:
        """The cache, of which there is none, and the hidden state."""
        graph, state = nnx.split(self)
        run = jax.checkpoint(lambda state, *args: nnx.merge(graph, state).block(*args))
        return cache, run(state, x, places, mask)


class QwenEmbedder(nnx.Module):
    """A table that is a parameter, indexed at a tuple of the ids, and used again as the head."""

    def __init__(self, dtype: Any, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Param(normal(rngs, (VOCAB, DIM), dtype))
        self.dtype = dtype

    @jax.named_scope("encode")
    def encode(self, tokens: jax.Array) -> jax.Array:
        """(example, position, dim)."""
        return self.embedding[...].at[(tokens,)].get(mode="clip").astype(self.dtype)

    @jax.named_scope("decode")
    def decode(self, x: jax.Array) -> jax.Array:
        """(example, position, vocab)."""
        return jnp.dot(x, self.embedding[...].T)


class Qwen3(nnx.Module):
    """Takes tokens, positions, a cache and a mask of three axes, and returns the logits and the cache."""

    def __init__(self, dtype: Any) -> None:
        rngs = nnx.Rngs(1)
        self.embedder = QwenEmbedder(dtype, rngs)
        self.layers = nnx.List([QwenLayer(dtype, rngs) for _ in range(3)])
        self.final_norm = RMSNorm(DIM, 0, dtype, rngs)

    def __call__(self, input_tokens: Any, positions: Any, cache: None, attention_mask: Any) -> tuple[jax.Array, None]:
        """Logits (example, position, vocab)."""
        x = self.embedder.encode(input_tokens)
        for layer in self.layers:
            cache, x = layer(x, positions, cache, attention_mask)
        return self.embedder.decode(self.final_norm(x)), cache

    @staticmethod
    def called(model: Any, inputs: Any) -> Any:
        """Call it on a batch."""
        ids = inputs["input_ids"]
        return model(ids, _places(ids), None, causal_mask(inputs["attention_mask"]))[0]

    def begin(self, rows: Any, ids: Any, mask: Any, places: Any) -> Any:
        """See `Case`."""
        return rows

    def behind(self, x: Any, first: int, ids: Any, mask: Any, stop: int | None = None) -> Any:
        """See `Case`."""
        for layer in list(self.layers)[first:stop]:
            x = layer.block(x, _places(ids), causal_mask(mask))
        return x if stop is not None else self.final_norm(x) @ self.embedder.embedding[...].T


class GemmaEmbedder(nnx.Module):
    """A table that is a parameter; its rows are multiplied by the root of their length."""

    def __init__(self, dtype: Any, rngs: nnx.Rngs) -> None:
        self.input_embedding = nnx.Param(normal(rngs, (VOCAB, DIM), dtype))

    def encode(self, x: Any) -> jax.Array:
        """(example, position, dim)."""
        x = self.input_embedding[(x,)]
        x *= jnp.sqrt(x.shape[-1]).astype(x.dtype)
        return x

    def decode(self, x: jax.Array) -> jax.Array:
        """(example, position, vocab)."""
        return jnp.dot(x, self.input_embedding[...].T)


class GemmaBlock(nnx.Module):
    """Norms before and after attention, and before and after the gated unit; local or global."""

    def __init__(self, window: int | None, dtype: Any, rngs: nnx.Rngs) -> None:
        self.window = window
        self.attn = Rotary(DIM, 4, 1, 1e4 if window else 1e6, 1, dtype, rngs)
        self.mlp = GatedUnit(DIM, 12, nnx.gelu, dtype, rngs)
        norms = [RMSNorm(DIM, 1, dtype, rngs) for _ in range(4)]
        self.pre_attention_norm, self.post_attention_norm, self.pre_ffw_norm, self.post_ffw_norm = norms

    @nnx.remat
    def feed(self, x: jax.Array) -> jax.Array:
        """As x, recomputed in the backward pass."""
        return self.post_ffw_norm(self.mlp(self.pre_ffw_norm(x)))

    def __call__(self, x: jax.Array, places: jax.Array, real: jax.Array) -> jax.Array:
        """As x."""
        x = x + self.post_attention_norm(self.attn(self.pre_attention_norm(x), places, causal_mask(real, self.window)))
        return x + self.feed(x)


class Gemma3(nnx.Module):
    """Two local layers and a global one, and logits whose size is bounded by a tanh."""

    def __init__(self, dtype: Any) -> None:
        rngs = nnx.Rngs(2)
        self.embedder = GemmaEmbedder(dtype, rngs)
        self.layers = nnx.List([GemmaBlock(window, dtype, rngs) for window in (2, 2, None)])
        self.final_norm = RMSNorm(DIM, 1, dtype, rngs)

    def __call__(self, input_ids: Any, attention_mask: Any = None) -> dict[str, jax.Array]:
        """Logits (example, position, vocab)."""
        real = jnp.ones_like(input_ids) if attention_mask is None else attention_mask
        x = self.embedder.encode(input_ids)
        for layer in self.layers:
            x = layer(x, _places(input_ids), real)
        return {"logits": 5 * jnp.tanh(self.embedder.decode(self.final_norm(x)) / 5)}

    def begin(self, rows: Any, ids: Any, mask: Any, places: Any) -> Any:
        """See `Case`."""
        return rows * DIM**0.5

    def behind(self, x: Any, first: int, ids: Any, mask: Any, stop: int | None = None) -> Any:
        """See `Case`."""
        for layer in list(self.layers)[first:stop]:
            x = layer(x, _places(ids), mask)
        return x if stop is not None else 5 * jnp.tanh(self.final_norm(x) @ self.embedder.input_embedding[...].T / 5)


class LlamaEmbed(nnx.Embed):
    """Looks up by `at` and `get`, without its parent's code."""

    def __call__(self, inputs: Any, out_sharding: Any = None) -> Any:
        """(example, position, dim)."""
        (embedding,) = self.promote_dtype((self.embedding[...],), dtype=self.dtype, inexact=False)
        return embedding.at[inputs].get(out_sharding=out_sharding)


class LlamaLayer(nnx.Module):
    """Attention and a gated unit."""

    def __init__(self, dtype: Any, rngs: nnx.Rngs) -> None:
        self.input_layernorm = RMSNorm(DIM, 0, dtype, rngs)
        self.self_attn = Rotary(DIM, 4, 2, 5e5, None, dtype, rngs)
        self.post_attention_layernorm = RMSNorm(DIM, 0, dtype, rngs)
        self.mlp = GatedUnit(DIM, 12, nnx.silu, dtype, rngs)

    def __call__(self, x: jax.Array, places: jax.Array, mask: jax.Array) -> jax.Array:
        """As x."""
        x = x + self.self_attn(self.input_layernorm(x), places, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama3(nnx.Module):
    """Its layers' weights are stacked and run by `nnx.scan`; the head has a weight of its own."""

    def __init__(self, dtype: Any) -> None:
        rngs = nnx.Rngs(3)
        self.embed_tokens = LlamaEmbed(VOCAB, DIM, dtype=dtype, param_dtype=dtype, rngs=rngs)
        make = nnx.split_rngs(splits=3)(nnx.vmap(lambda rngs: LlamaLayer(dtype, rngs), in_axes=0, out_axes=0))
        self.layers = make(rngs)
        self.norm = RMSNorm(DIM, 0, dtype, rngs)
        self.lm_head = Einsum("btd,dv->btv", (DIM, VOCAB), dtype, rngs)

    def __call__(self, input_ids: Any, attention_mask: Any = None) -> jax.Array:
        """Logits (example, position, vocab)."""
        real = jnp.ones_like(input_ids) if attention_mask is None else attention_mask
        places, mask = _places(input_ids), causal_mask(real)

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        def run(x: jax.Array, layer: LlamaLayer) -> jax.Array:
            return layer(x, places, mask)

        return self.lm_head(self.norm(run(self.embed_tokens(input_ids), self.layers)))

    def begin(self, rows: Any, ids: Any, mask: Any, places: Any) -> Any:
        """See `Case`."""
        return rows

    def behind(self, x: Any, first: int, ids: Any, mask: Any, stop: int | None = None) -> Any:
        """See `Case`."""
        graph, stacked = nnx.split(self.layers)
        for number in range(first, 3 if stop is None else stop):
            layer = nnx.merge(graph, jax.tree.map(lambda leaf: leaf[number], stacked))  # noqa: B023
            x = layer(x, _places(ids), causal_mask(mask))
        return x if stop is not None else self.lm_head(self.norm(x))
