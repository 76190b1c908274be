"""A small BERT in Flax NNX, with the layers that its users take: what the tests explain."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

__all__ = ["Encoder"]

VOCAB, POSITIONS, TYPES, DIM, HEADS, CLASSES = 97, 16, 2, 24, 4, 3


class Embeddings(nnx.Module):
    """Words, positions and types, summed and normalised."""

    def __init__(self, dtype: Any, rngs: nnx.Rngs) -> None:
        options = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.word = nnx.Embed(VOCAB, DIM, **options)
        self.position = nnx.Embed(POSITIONS, DIM, **options)
        self.type = nnx.Embed(TYPES, DIM, **options)
        self.norm = nnx.LayerNorm(DIM, **options)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, input_ids: jax.Array, token_type_ids: jax.Array) -> jax.Array:
        """(example, position, dim)."""
        places = self.position(jnp.arange(input_ids.shape[1])[None])
        return self.dropout(self.norm(self.word(input_ids) + places + self.type(token_type_ids)))


class Layer(nnx.Module):
    """Attention and two dense layers, each with what came in added, and normalised."""

    def __init__(self, dtype: Any, rngs: nnx.Rngs) -> None:
        options = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.attention = nnx.MultiHeadAttention(HEADS, DIM, decode=False, dropout_rate=0.1, **options)
        self.attended = nnx.LayerNorm(DIM, **options)
        self.up, self.down = nnx.Linear(DIM, 2 * DIM, **options), nnx.Linear(2 * DIM, DIM, **options)
        self.norm = nnx.LayerNorm(DIM, **options)

    def __call__(self, hidden: jax.Array, mask: jax.Array) -> jax.Array:
        """(example, position, dim)."""
        hidden = self.attended(hidden + self.attention(hidden, mask=mask))
        return self.norm(hidden + self.down(nnx.gelu(self.up(hidden))))


class Encoder(nnx.Module):
    """Embeddings, layers, a pooler with a classifier, and a head that shares the words' table.

    Args:
        layers: how many.
        dtype: in which it computes.
        seed: of the weights.
    """

    def __init__(self, layers: int = 2, dtype: Any = jnp.float32, seed: int = 0) -> None:
        rngs = nnx.Rngs(seed)
        self.embeddings = Embeddings(dtype, rngs)
        self.layers = nnx.List([Layer(dtype, rngs) for _ in range(layers)])
        self.pooler = nnx.Linear(DIM, DIM, dtype=dtype, param_dtype=dtype, rngs=rngs)
        self.classifier = nnx.Linear(DIM, CLASSES, dtype=dtype, param_dtype=dtype, rngs=rngs)

    def __call__(self, input_ids: jax.Array, attention_mask: Any = None, token_type_ids: Any = None) -> dict[str, Any]:
        """Logits (example, classes) and over the words (example, position, vocab), and the likeliest words."""
        mask = jnp.ones_like(input_ids) if attention_mask is None else attention_mask
        types = jnp.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        hidden = self.embeddings(input_ids, types)
        for layer in self.layers:
            hidden = layer(hidden, nnx.make_attention_mask(jnp.ones_like(mask), mask))
        words = self.embeddings.word.attend(hidden)
        logits = self.classifier(jnp.tanh(self.pooler(hidden[:, 0])))
        return {"logits": logits, "last_hidden_state": hidden, "words": words, "likeliest": words.argmax(-1)}
