"""Text models in Equinox: written for one example and mapped over the batch, by themselves or by `call=`; stateful; compiled."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from equinox import nn

from tests.frameworks.jax.cases import CLASSES, DIM, VOCAB, Case

__all__ = ["CASES"]

LENGTH, LAYERS = 9, 3


class Layer(eqx.Module):
    """Attention and a network of two dense layers, for one example."""

    attention: nn.MultiheadAttention
    attended: nn.LayerNorm
    up: nn.Linear
    down: nn.Linear
    norm: nn.LayerNorm
    dropout: nn.Dropout

    def __init__(self, dtype: Any, key: Any) -> None:
        keys = jax.random.split(key, 3)
        self.attention = nn.MultiheadAttention(2, DIM, use_output_bias=True, dtype=dtype, key=keys[0])
        self.attended, self.norm = nn.LayerNorm(DIM, dtype=dtype), nn.LayerNorm(DIM, dtype=dtype)
        self.up, self.down = (
            nn.Linear(DIM, 2 * DIM, dtype=dtype, key=keys[1]),
            nn.Linear(2 * DIM, DIM, dtype=dtype, key=keys[2]),
        )
        self.dropout = nn.Dropout(0.1)

    def __call__(self, x: Any, mask: Any) -> Any:
        """(position, dim)."""
        x = jax.vmap(self.attended)(x + self.attention(x, x, x, mask=mask))
        hidden = self.dropout(jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(x))))
        return jax.vmap(self.norm)(x + hidden)


def seen(mask: Any) -> Any:
    """Return which positions see which, of one example."""
    return jnp.tile(mask[None, :] > 0, (len(mask), 1))


class Embeddings(eqx.Module):
    """Words and positions of one example."""

    word: nn.Embedding
    position: nn.Embedding

    def __init__(self, dtype: Any, key: Any) -> None:
        keys = jax.random.split(key)
        self.word = nn.Embedding(VOCAB, DIM, dtype=dtype, key=keys[0])
        self.position = nn.Embedding(LENGTH, DIM, dtype=dtype, key=keys[1])

    def __call__(self, ids: Any) -> Any:
        """(position, dim)."""
        return jax.vmap(self.word)(ids) + jax.vmap(self.position)(jnp.arange(len(ids)))


class Encoder(eqx.Module):
    """Maps itself over the batch."""

    embeddings: Embeddings
    layers: list[Layer]
    head: nn.Linear

    def __init__(self, dtype: Any, key: Any) -> None:
        keys = jax.random.split(key, LAYERS + 2)
        self.embeddings = Embeddings(dtype, keys[0])
        self.layers = [Layer(dtype, one) for one in keys[2:]]
        self.head = nn.Linear(DIM, CLASSES, dtype=dtype, key=keys[1])

    def example(self, ids: Any, mask: Any) -> Any:
        """Logits (classes,) of one example."""
        return self.behind(self.embeddings(ids), 0, mask)

    def behind(self, x: Any, first: int, mask: Any, stop: int | None = None) -> Any:
        """See `Case`, of one example."""
        for layer in self.layers[first:stop]:
            x = layer(x, seen(mask))
        return x if stop is not None else self.head(x[0])

    def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
        """Logits (example, classes)."""
        return jax.vmap(self.example)(input_ids, attention_mask)


class Compiled(eqx.Module):
    """Compiled by its author; the table is an array that is indexed by the whole batch, and the head, too."""

    table: jax.Array
    layers: list[Layer]

    def __init__(self, dtype: Any, key: Any) -> None:
        keys = jax.random.split(key, LAYERS + 1)
        self.table = 0.3 * jax.random.normal(keys[0], (VOCAB, DIM), dtype)
        self.layers = [Layer(dtype, one) for one in keys[1:]]

    @eqx.filter_jit
    def __call__(self, input_ids: Any, attention_mask: Any) -> Any:
        """Logits (example, position, vocab)."""
        return self.behind(self.table[input_ids], 0, attention_mask)

    def behind(self, x: Any, first: int, mask: Any, stop: int | None = None) -> Any:
        """See `Case`."""
        for layer in self.layers[first:stop]:
            x = jax.vmap(layer)(x, jax.vmap(seen)(mask))
        return x if stop is not None else jnp.einsum("btd,vd->btv", x, self.table)


class Normed(eqx.Module):
    """An LSTM of one example, with a batch norm whose averages are a state that is passed on."""

    word: nn.Embedding
    cell: nn.LSTMCell
    norm: nn.BatchNorm
    head: nn.Linear

    def __init__(self, dtype: Any, key: Any) -> None:
        keys = jax.random.split(key, 3)
        self.word = nn.Embedding(VOCAB, DIM, dtype=dtype, key=keys[0])
        self.cell = nn.LSTMCell(DIM, DIM, dtype=dtype, key=keys[1])
        self.norm = nn.BatchNorm(DIM, axis_name="batch", mode="ema", dtype=dtype)
        self.head = nn.Linear(DIM, CLASSES, dtype=dtype, key=keys[2])

    def last(self, rows: Any, mask: Any) -> Any:
        """The state at the last real position, (dim,)."""
        start = (jnp.zeros_like(rows[0]), jnp.zeros_like(rows[0]))

        def step(state: Any, row: Any) -> Any:
            state = self.cell(row, state)
            return state, state[0]

        return jax.lax.scan(step, start, rows)[1][mask.sum() - 1]

    def __call__(self, ids: Any, mask: Any, state: Any) -> Any:
        """Logits (classes,), and the state."""
        normed, state = self.norm(self.last(jax.vmap(self.word)(ids), mask), state)
        return self.head(normed), state


def _encoder_behind(model: Any, x: Any, first: int, ids: Any, mask: Any, stop: int | None = None) -> Any:
    return jax.vmap(lambda x, mask: model.behind(x, first, mask, stop))(x, mask)


def _make(kind: Any) -> Any:
    return lambda dtype: nn.inference_mode(kind(jnp.dtype(dtype), jax.random.key(3)))


def _make_normed(dtype: Any) -> Any:
    model, state = nn.make_with_state(Normed)(jnp.dtype(dtype), jax.random.key(4))
    mapped = jax.vmap(model, in_axes=(0, 0, None), out_axes=(0, None), axis_name="batch")
    ids = jax.random.randint(jax.random.key(5), (16, 6), 0, VOCAB)
    _, state = mapped(ids, jnp.ones_like(ids), state)  # averages of a batch in training
    return nn.inference_mode(model), state


def _normed_behind(parts: Any, x: Any, first: int, ids: Any, mask: Any, stop: int | None = None) -> Any:
    model, state = parts
    last = jax.vmap(model.last)(x, mask)
    normed, _ = jax.vmap(model.norm, in_axes=(0, None), out_axes=(0, None), axis_name="batch")(last, state)
    return jax.vmap(model.head)(normed)


def _normed(parts: Any, inputs: Any) -> Any:
    mapped = jax.vmap(parts[0], in_axes=(0, 0, None), out_axes=(0, None), axis_name="batch")
    return mapped(inputs["input_ids"], inputs["attention_mask"], parts[1])[0]


def _word(model: Any) -> Any:
    return model.embeddings.word.weight


def _summed(model: Any, rows: Any, ids: Any, mask: Any, places: Any) -> Any:
    return rows + places


def _as_is(model: Any, rows: Any, ids: Any, mask: Any, places: Any) -> Any:
    return rows


_ENCODER: Any = {"layers": LAYERS, "embeddings": True, "places": lambda model: model.embeddings.position.weight}

CASES = [
    Case("mapped", _make(Encoder), _word, _summed, _encoder_behind, **_ENCODER),
    Case("compiled", _make(Compiled), lambda model: model.table, _as_is,
        lambda model, x, first, ids, mask, stop=None: model.behind(x, first, mask, stop), layers=LAYERS, logits=3,
        tied=True),
    Case("normed", _make_normed, lambda parts: parts[0].word.weight, _as_is, _normed_behind, call=_normed),
]  # fmt: skip
