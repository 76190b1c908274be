"""Text models of public design in Flax NNX, small: three architectures, each as `Case` with its forward pass from the rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from tests.frameworks.jax.cases import CLASSES, DIM, FURTHER, VOCAB, Case
from tests.frameworks.jax.nnx_layers import RMSNorm, attend, causal_mask, normal

__all__ = ["CASES"]

LENGTH, HEADS = 9, 2


class Attention(nnx.Module):
    """Attention with biases, and a bias of the scores where it is given."""

    def __init__(self, dtype: Any, rngs: nnx.Rngs) -> None:
        options = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.query, self.key, self.value = (nnx.LinearGeneral(DIM, (HEADS, DIM // HEADS), **options) for _ in range(3))
        self.out = nnx.LinearGeneral((HEADS, DIM // HEADS), DIM, axis=(-2, -1), **options)

    def __call__(self, x: jax.Array, source: jax.Array, mask: jax.Array, bias: Any = 0) -> jax.Array:
        """As x."""
        return self.out(attend(self.query(x), self.key(source), self.value(source), mask, bias))


class CastingEmbed(nnx.Embed):
    """Its parent's lookup, with whole numbers of any kind, and the rows cast to the dtype in which the model computes."""

    def __call__(self, inputs: Any, out_sharding: Any = None) -> Any:
        """(example, position, dim)."""
        return super().__call__(inputs.astype(jnp.int32), out_sharding).astype(self.dtype)


class BertEmbeddings(nnx.Module):
    """Words, positions and types, summed and normalised, with dropout."""

    def __init__(self, dtype: Any, rngs: nnx.Rngs) -> None:
        options = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.word_embeddings = CastingEmbed(VOCAB, DIM, **options)
        self.position_embeddings = nnx.Embed(LENGTH, DIM, **options)
        self.token_type_embeddings = nnx.Embed(2, DIM, **options)
        self.LayerNorm = nnx.LayerNorm(DIM, epsilon=1e-12, **options)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def summed(self, rows: Any, places: Any, types: Any) -> jax.Array:
        """(example, position, dim)."""
        return self.dropout(self.LayerNorm(rows + places + types))

    def __call__(self, input_ids: Any, token_type_ids: Any) -> jax.Array:
        """(example, position, dim)."""
        places = self.position_embeddings(jnp.arange(input_ids.shape[1])[None])
        return self.summed(self.word_embeddings(input_ids), places, self.token_type_embeddings(token_type_ids))


class BertLayer(nnx.Module):
    """Attention and two dense layers, each with what came in added, and normalised."""

    def __init__(self, dtype: Any, rngs: nnx.Rngs) -> None:
        options = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.attention = Attention(dtype, rngs)
        self.attended, self.norm = nnx.LayerNorm(DIM, **options), nnx.LayerNorm(DIM, **options)
        self.up, self.down = nnx.Linear(DIM, 2 * DIM, **options), nnx.Linear(2 * DIM, DIM, **options)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """As x."""
        x = self.attended(x + self.dropout(self.attention(x, x, mask)))
        return self.norm(x + self.dropout(self.down(nnx.gelu(self.up(x), approximate=False))))


class Bert(nnx.Module):
    """A classifier of the first token."""

    def __init__(self, dtype: Any) -> None:
        rngs = nnx.Rngs(4)
        options = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.embeddings = BertEmbeddings(dtype, rngs)
        self.layers = nnx.List([BertLayer(dtype, rngs) for _ in range(2)])
        self.pooler, self.classifier = nnx.Linear(DIM, DIM, **options), nnx.Linear(DIM, CLASSES, **options)

    def __call__(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> dict[str, jax.Array]:
        """Logits (example, classes), and the last hidden state."""
        real = jnp.ones_like(input_ids) if attention_mask is None else attention_mask
        types = jnp.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        x = self.embeddings(input_ids, types)
        for layer in self.layers:
            x = layer(x, real[:, None, :] > 0)
        return {"logits": self.classifier(jnp.tanh(self.pooler(x[:, 0]))), "last_hidden_state": x}

    def begin(self, rows: Any, ids: Any, mask: Any, places: Any) -> Any:
        """See `Case`."""
        return self.embeddings.summed(rows, places, self.embeddings.token_type_embeddings.embedding[0])

    def behind(self, x: Any, first: int, ids: Any, mask: Any, stop: int | None = None) -> Any:
        """See `Case`."""
        for layer in list(self.layers)[first:stop]:
            x = layer(x, mask[:, None, :] > 0)
        return x if stop is not None else self.classifier(jnp.tanh(self.pooler(x[:, 0])))


class RelativeBias(nnx.Module):
    """A number for each head and distance, looked up in a table."""

    def __init__(self, dtype: Any, rngs: nnx.Rngs) -> None:
        self.table = nnx.Embed(7, HEADS, dtype=dtype, param_dtype=dtype, rngs=rngs)

    def __call__(self, length: int) -> jax.Array:
        """(1, head, 1, position, position)."""
        distance = jnp.arange(length)[None, :] - jnp.arange(length)[:, None]
        return self.table(jnp.clip(distance, -3, 3) + 3).transpose(2, 0, 1)[None, :, None]


class StackBlock(nnx.Module):
    """A layer of an encoder, or with `crossing` of a decoder."""

    def __init__(self, crossing: bool, dtype: Any, rngs: nnx.Rngs) -> None:
        options = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.crossing = crossing
        self.self_attention, self.norm = Attention(dtype, rngs), RMSNorm(DIM, dtype, rngs)
        if crossing:
            self.cross_attention, self.cross_norm = Attention(dtype, rngs), RMSNorm(DIM, dtype, rngs)
        self.wi, self.wo = nnx.Linear(DIM, 2 * DIM, **options), nnx.Linear(2 * DIM, DIM, **options)
        self.dense_norm = RMSNorm(DIM, dtype, rngs)

    def __call__(self, x: Any, mask: Any, bias: Any, source: Any = None, source_mask: Any = None) -> jax.Array:
        """As x."""
        normed = self.norm(x)
        x = x + self.self_attention(normed, normed, mask, bias)
        if self.crossing:
            x = x + self.cross_attention(self.cross_norm(x), source, source_mask)
        return x + self.wo(nnx.relu(self.wi(self.dense_norm(x))))


class EncoderDecoder(nnx.Module):
    """Both stacks look up in one table, which is the head, too."""

    def __init__(self, dtype: Any) -> None:
        rngs = nnx.Rngs(6)
        self.shared = nnx.Embed(VOCAB, DIM, dtype=dtype, param_dtype=dtype, rngs=rngs)
        self.encoder_bias, self.decoder_bias = RelativeBias(dtype, rngs), RelativeBias(dtype, rngs)
        self.encoder = nnx.List([StackBlock(False, dtype, rngs) for _ in range(2)])
        self.decoder = nnx.List([StackBlock(True, dtype, rngs) for _ in range(2)])
        self.encoder_norm, self.decoder_norm = RMSNorm(DIM, dtype, rngs), RMSNorm(DIM, dtype, rngs)

    def encode(self, x: Any, mask: Any, first: int = 0, stop: int | None = None) -> jax.Array:
        """(example, position, dim)."""
        bias = self.encoder_bias(x.shape[1])
        for layer in list(self.encoder)[first:stop]:
            x = layer(x, jnp.tile(mask[:, None, :] > 0, (1, x.shape[1], 1)), bias)
        return x

    def decode(self, x: Any, source: Any, mask: Any) -> jax.Array:
        """The mean of the logits over the decoder's positions, (example, vocab)."""
        bias, own = self.decoder_bias(x.shape[1]), causal_mask(jnp.ones(x.shape[:2]))
        for layer in self.decoder:
            x = layer(x, own, bias, source, mask[:, None, :] > 0)
        return self.shared.attend(self.decoder_norm(x) * DIM**-0.5).mean(1)

    def __call__(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any) -> jax.Array:
        """(example, vocab)."""
        source = self.encoder_norm(self.encode(self.shared(input_ids), attention_mask))
        return self.decode(self.shared(decoder_input_ids), source, attention_mask)

    def begin(self, rows: Any, ids: Any, mask: Any, places: Any) -> Any:
        """See `Case`."""
        return rows

    def behind(self, x: Any, first: int, ids: Any, mask: Any, stop: int | None = None) -> Any:
        """See `Case`."""
        x = self.encode(x, mask, first, stop)
        if stop is not None:
            return x
        return self.decode(self.shared.embedding[...][FURTHER], self.encoder_norm(x), mask)


class Recurrent(nnx.Module):
    """An LSTM that looks up by products with one-hot vectors, a batch norm and dropout before the head."""

    def __init__(self, dtype: Any) -> None:
        rngs = nnx.Rngs(7)
        options = {"dtype": dtype, "param_dtype": dtype, "rngs": rngs}
        self.table = nnx.Param(normal(rngs, (VOCAB, DIM), dtype))
        self.rnn = nnx.RNN(nnx.LSTMCell(DIM, DIM, **options))
        self.norm = nnx.BatchNorm(DIM, **options)
        self.norm.mean.set_value(normal(rngs, (DIM,), dtype))
        self.norm.var.set_value(1 + normal(rngs, (DIM,), dtype) ** 2)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.head = nnx.Linear(DIM, CLASSES, **options)

    def __call__(self, input_ids: Any, attention_mask: Any = None) -> jax.Array:
        """Logits (example, classes)."""
        rows = jax.nn.one_hot(input_ids, VOCAB, dtype=self.table.dtype) @ self.table[...]
        return self.behind(rows, 0, input_ids, attention_mask)

    def begin(self, rows: Any, ids: Any, mask: Any, places: Any) -> Any:
        """See `Case`."""
        return rows

    def behind(self, x: Any, first: int, ids: Any, mask: Any, stop: int | None = None) -> Any:
        """See `Case`."""
        real = jnp.ones_like(ids) if mask is None else mask
        states = self.rnn(x, seq_lengths=real.sum(1))
        last = states[jnp.arange(len(ids)), real.sum(1) - 1]
        return self.head(self.dropout(self.norm(last)))


def _made(kind: Any) -> Any:
    def make(dtype: Any) -> Any:
        model = kind(jnp.dtype(dtype))
        model.eval()
        return model

    return make


def _case(name: str, kind: Any, table: Any, **more: Any) -> Case:
    """Return a case; its functions run a copy, since Flax lets nobody change variables that were made outside of `jax.grad`."""

    def begin(model: Any, *args: Any) -> Any:
        return kind.begin(nnx.clone(model), *args)

    def behind(model: Any, *args: Any) -> Any:
        return kind.behind(nnx.clone(model), *args)

    return Case(name, _made(kind), lambda model: table(model)[...], begin, behind, **more)


CASES = [
    _case("bert", Bert, lambda model: model.embeddings.word_embeddings.embedding, layers=2, embeddings=True,
        places=lambda model: model.embeddings.position_embeddings.embedding[...]),
    _case("encoder_decoder", EncoderDecoder, lambda model: model.shared.embedding, layers=2, tied=True,
        further={"decoder_input_ids": FURTHER}),
    _case("recurrent", Recurrent, lambda model: model.table),
]  # fmt: skip
