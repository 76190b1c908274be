"""Text models in Flax Linen, as (module, variables): compact and with `setup`, scanned, recomputed, with batch statistics."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from tests.frameworks.jax.cases import CLASSES, DIM, IDS, MASK, VOCAB, Case

__all__ = ["CASES", "applied"]

LENGTH, LAYERS = 9, 3


def applied(parts: Any, inputs: Any) -> Any:
    """Call a module on a batch, with its variables."""
    module, variables = parts
    return module.apply(variables, inputs["input_ids"], inputs["attention_mask"])


def seen(mask: jax.Array) -> jax.Array:
    """Return which positions see which, (example, 1, position, position)."""
    return nn.make_attention_mask(jnp.ones_like(mask), mask)


class Layer(nn.Module):
    """Attention and two dense layers, compact, with dropout."""

    dtype: Any
    deterministic: bool = True

    @nn.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        """As x."""
        options = {"dtype": self.dtype, "param_dtype": self.dtype}
        attention = nn.MultiHeadDotProductAttention(2, deterministic=True, name="attention", **options)
        x = nn.LayerNorm(name="attended", **options)(x + attention(x, x, mask=mask))
        hidden = nn.gelu(nn.Dense(2 * DIM, name="up", **options)(x))
        hidden = nn.Dropout(0.1, deterministic=self.deterministic)(nn.Dense(DIM, name="down", **options)(hidden))
        return nn.LayerNorm(name="norm", **options)(x + hidden)


class Embeddings(nn.Module):
    """Words and positions."""

    dtype: Any

    def setup(self) -> None:
        """Make both tables."""
        options = {"dtype": self.dtype, "param_dtype": self.dtype}
        self.word = nn.Embed(VOCAB, DIM, **options)
        self.position = nn.Embed(LENGTH, DIM, **options)

    def __call__(self, ids: Any) -> Any:
        """(example, position, dim)."""
        return self.word(ids) + self.position(jnp.arange(ids.shape[1])[None])


class SetUp(nn.Module):
    """Its parts are made in `setup`; the head is the words' table."""

    dtype: Any

    def setup(self) -> None:
        """Make the parts."""
        self.embeddings = Embeddings(self.dtype)
        self.layers = [Layer(self.dtype) for _ in range(LAYERS)]
        self.norm = nn.LayerNorm(dtype=self.dtype, param_dtype=self.dtype)

    def __call__(self, ids: Any, mask: Any) -> Any:
        """Logits (example, position, vocab)."""
        return self.behind(self.embeddings(ids), 0, mask)

    def behind(self, x: Any, first: int, mask: Any, stop: int | None = None) -> Any:
        """See `Case`."""
        for layer in self.layers[first:stop]:
            x = layer(x, seen(mask))
        return x if stop is not None else self.embeddings.word.attend(self.norm(x))


class Step(nn.Module):
    """A layer as `nn.scan` runs it."""

    dtype: Any

    @nn.compact
    def __call__(self, x: Any, mask: Any) -> Any:
        """The hidden state, and nothing that is stacked."""
        return Layer(self.dtype, name="layer")(x, mask), None


class Scanned(nn.Module):
    """Its layers' weights are stacked; each is recomputed in the backward pass. The table is a parameter of its own."""

    dtype: Any

    @nn.compact
    def __call__(self, ids: Any, mask: Any) -> Any:
        """Logits (example, classes)."""
        table = self.param("embedding", nn.initializers.normal(0.3, self.dtype), (VOCAB, DIM))
        run = nn.scan(
            nn.remat(Step, prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=nn.broadcast,
            length=LAYERS,
        )
        x, _ = run(self.dtype, name="layers")(jnp.take(table, ids, axis=0), seen(mask))
        return nn.Dense(CLASSES, dtype=self.dtype, param_dtype=self.dtype, name="head")(x.mean(1))


class Recurrent(nn.Module):
    """An LSTM behind a one-hot product, and a batch norm whose averages are variables of their own."""

    dtype: Any

    @nn.compact
    def __call__(self, ids: Any, mask: Any) -> Any:
        """Logits (example, classes)."""
        options = {"dtype": self.dtype, "param_dtype": self.dtype}
        table = self.param("table", nn.initializers.normal(0.3, self.dtype), (VOCAB, DIM))
        rows = jax.nn.one_hot(ids, VOCAB, dtype=self.dtype) @ table
        x = nn.RNN(nn.LSTMCell(DIM, name="cell", **options))(rows, seq_lengths=mask.sum(1))
        x = nn.BatchNorm(use_running_average=True, name="norm", **options)(x[jnp.arange(len(ids)), mask.sum(1) - 1])
        return nn.Dense(CLASSES, name="head", **options)(x)


def _parameters(parts: Any, *path: str) -> Any:
    found = parts[1]["params"]
    for name in path:
        found = found[name]
    return found


def _make(kind: Any) -> Any:
    def make(dtype: Any) -> Any:
        module = kind(jnp.dtype(dtype))
        variables = module.init(jax.random.key(2), jnp.asarray(IDS), jnp.asarray(MASK))
        # Flax makes averages in single precision, whose reciprocal square root XLA rounds in other ways under jit.
        return module, jax.tree.map(lambda array: array.astype(dtype), variables)

    return make


def _set_up_behind(parts: Any, x: Any, first: int, ids: Any, mask: Any, stop: int | None = None) -> Any:
    return parts[0].apply(parts[1], x, first, mask, stop, method="behind")


def _layer(parts: Any, weights: Any, x: Any, mask: Any) -> Any:
    return Layer(parts[0].dtype).apply({"params": weights}, x, mask)


def _head(parts: Any, x: Any) -> Any:
    weights = _parameters(parts, "head")
    return x @ weights["kernel"] + weights["bias"]


def _scanned_behind(parts: Any, x: Any, first: int, ids: Any, mask: Any, stop: int | None = None) -> Any:
    stacked = _parameters(parts, "layers", "layer")
    for number in range(first, LAYERS if stop is None else stop):
        x = _layer(parts, jax.tree.map(lambda leaf: leaf[number], stacked), x, seen(mask))  # noqa: B023
    return x if stop is not None else _head(parts, x.mean(1))


def _recurrent_behind(parts: Any, x: Any, first: int, ids: Any, mask: Any, stop: int | None = None) -> Any:
    cell = nn.LSTMCell(DIM, dtype=parts[0].dtype)
    weights = {"params": _parameters(parts, "cell")}
    state = (jnp.zeros_like(x[:, 0]), jnp.zeros_like(x[:, 0]))
    states = []
    for place in range(x.shape[1]):
        state, out = cell.apply(weights, state, x[:, place])
        states.append(out)
    last = jnp.stack(states, 1)[jnp.arange(len(ids)), mask.sum(1) - 1]
    averages, scale = parts[1]["batch_stats"]["norm"], _parameters(parts, "norm")
    normed = (last - averages["mean"]) / jnp.sqrt(averages["var"] + 1e-5) * scale["scale"] + scale["bias"]
    return _head(parts, normed)


def _as_is(parts: Any, rows: Any, ids: Any, mask: Any, places: Any) -> Any:
    return rows


CASES = [
    Case(
        "set_up",
        _make(SetUp),
        lambda parts: _parameters(parts, "embeddings", "word", "embedding"),
        lambda parts, rows, ids, mask, places: rows + places, _set_up_behind, call=applied, layers=LAYERS,
        embeddings=True,
        places=lambda parts: _parameters(parts, "embeddings", "position", "embedding"),
        logits=3, tied=True,
    ),
    Case("scanned", _make(Scanned), lambda parts: _parameters(parts, "embedding"), _as_is, _scanned_behind,
        call=applied, layers=LAYERS),
    Case("recurrent", _make(Recurrent), lambda parts: _parameters(parts, "table"), _as_is, _recurrent_behind,
        call=applied),
]  # fmt: skip
