"""A BERT in Flax NNX, with Hugging Face's names, for `embgrad.zoo.load_bert`: no library for JAX maintains one any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from embgrad.checkpoints import WeightTarget, complete_config, expect_expressible

__all__ = ["Bert", "bert", "bert_targets", "checkpoint"]

#: What is built, for messages.
MODEL: Final = "embgrad's BERT for JAX"

#: By Hugging Face's name the activation between a layer's two dense transformations; "gelu" is the exact one.
ACTIVATIONS: Final[Mapping[str, Callable[[jax.Array], jax.Array]]] = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_new": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_pytorch_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "swish": jax.nn.silu,
}

#: Flax's names of a module's parameters, with Hugging Face's.
LEAVES: Final = {"embedding": "weight", "kernel": "weight", "scale": "weight", "bias": "bias"}

#: A list of modules: since Flax 0.12 a plain list is not searched for modules.
ModuleList: Final[Any] = getattr(nnx, "List", list)


class Bert(nnx.Module):  # type: ignore[misc]  # Flax is not installed where types are checked
    """The encoder and the pooler of BERT (Devlin et al. 2019).

    Args:
        config: Hugging Face's configuration, as `embgrad.checkpoints.bert_config.complete_config` returns it.
        rngs: the generators of the initial weights and of dropout.
    """

    def __init__(self, config: Mapping[str, Any], rngs: nnx.Rngs) -> None:
        self.embeddings = Embeddings(config, rngs)
        self.encoder = Encoder(config, rngs)
        self.pooler = Pooler(config["hidden_size"], rngs)

    def __call__(
        self, input_ids: jax.Array, attention_mask: jax.Array | None = None, token_type_ids: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Encode a batch.

        Args:
            input_ids: whole numbers, (example, position).
            attention_mask: 1 at real positions and 0 at padding, of the same shape; None if there is no padding.
            token_type_ids: whole numbers, of the same shape; None for zeros.

        Returns:
            `last_hidden_state` (example, position, hidden) and `pooler_output` (example, hidden).
        """
        hidden = self.embeddings(input_ids, token_type_ids)
        hidden = self.encoder(hidden, attention_mask)
        return {"last_hidden_state": hidden, "pooler_output": self.pooler(hidden)}


class Embeddings(nnx.Module):  # type: ignore[misc]
    """The sum of the words', positions' and types' rows, normalised."""

    def __init__(self, config: Mapping[str, Any], rngs: nnx.Rngs) -> None:
        size = config["hidden_size"]
        self.word_embeddings = nnx.Embed(config["vocab_size"], size, rngs=rngs)
        self.position_embeddings = nnx.Embed(config["max_position_embeddings"], size, rngs=rngs)
        self.token_type_embeddings = nnx.Embed(config["type_vocab_size"], size, rngs=rngs)
        self.LayerNorm = _norm(config, rngs)
        self.dropout = nnx.Dropout(config["hidden_dropout_prob"], rngs=rngs)

    def __call__(self, input_ids: jax.Array, token_type_ids: jax.Array | None) -> jax.Array:
        """Return the embeddings, (example, position, hidden)."""
        types = jnp.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        positions = jnp.arange(input_ids.shape[1])[None]
        total = self.word_embeddings(input_ids) + self.token_type_embeddings(types)
        return self.dropout(self.LayerNorm(total + self.position_embeddings(positions)))


class Encoder(nnx.Module):  # type: ignore[misc]
    """The layers."""

    def __init__(self, config: Mapping[str, Any], rngs: nnx.Rngs) -> None:
        self.layer = ModuleList([Layer(config, rngs) for _ in range(config["num_hidden_layers"])])

    def __call__(self, hidden: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Return the last layer's output, (example, position, hidden)."""
        for layer in self.layer:
            hidden = layer(hidden, mask)
        return hidden


class Layer(nnx.Module):  # type: ignore[misc]
    """Attention, then two dense transformations, each added to its input and normalised."""

    def __init__(self, config: Mapping[str, Any], rngs: nnx.Rngs) -> None:
        size, inner = config["hidden_size"], config["intermediate_size"]
        self.attention = Attention(config, rngs)
        self.intermediate = Intermediate(size, inner, config["hidden_act"], rngs)
        self.output = Output(inner, config, rngs)

    def __call__(self, hidden: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Return the output, (example, position, hidden)."""
        hidden = self.attention(hidden, mask)
        return self.output(self.intermediate(hidden), hidden)


class Attention(nnx.Module):  # type: ignore[misc]
    """Self-attention, added to its input and normalised."""

    def __init__(self, config: Mapping[str, Any], rngs: nnx.Rngs) -> None:
        self.self = SelfAttention(config, rngs)
        self.output = Output(config["hidden_size"], config, rngs)

    def __call__(self, hidden: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Return the output, (example, position, hidden)."""
        return self.output(self.self(hidden, mask), hidden)


class SelfAttention(nnx.Module):  # type: ignore[misc]
    """Scaled dot-product attention of several heads (Vaswani et al. 2017)."""

    def __init__(self, config: Mapping[str, Any], rngs: nnx.Rngs) -> None:
        size, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.query, self.key, self.value = (nnx.Linear(size, size, rngs=rngs) for _ in range(3))
        self.dropout = nnx.Dropout(config["attention_probs_dropout_prob"], rngs=rngs)

    def __call__(self, hidden: jax.Array, mask: jax.Array | None) -> jax.Array:
        """Return the heads' mixtures beside each other, (example, position, hidden)."""
        examples, positions, size = hidden.shape
        query, key, value = (
            dense(hidden).reshape(examples, positions, self.heads, size // self.heads)
            for dense in (self.query, self.key, self.value)
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / (size // self.heads) ** 0.5
        if mask is not None:
            scores = jnp.where(mask[:, None, None] != 0, scores, jnp.finfo(scores.dtype).min)
        shares = self.dropout(jax.nn.softmax(scores))
        return jnp.einsum("bhqk,bkhd->bqhd", shares, value).reshape(examples, positions, size)


class Intermediate(nnx.Module):  # type: ignore[misc]
    """The first dense transformation of a layer, with the activation."""

    def __init__(self, size: int, inner: int, activation: str, rngs: nnx.Rngs) -> None:
        self.dense, self.activation = nnx.Linear(size, inner, rngs=rngs), activation

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Return the activations, (example, position, inner)."""
        return ACTIVATIONS[self.activation](self.dense(hidden))


class Output(nnx.Module):  # type: ignore[misc]
    """A dense transformation, added to the input of the block that it ends, and normalised."""

    def __init__(self, size: int, config: Mapping[str, Any], rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(size, config["hidden_size"], rngs=rngs)
        self.LayerNorm = _norm(config, rngs)
        self.dropout = nnx.Dropout(config["hidden_dropout_prob"], rngs=rngs)

    def __call__(self, hidden: jax.Array, residual: jax.Array) -> jax.Array:
        """Return the block's output, (example, position, hidden)."""
        return self.LayerNorm(self.dropout(self.dense(hidden)) + residual)


class Pooler(nnx.Module):  # type: ignore[misc]
    """A dense transformation of the first position, with tanh."""

    def __init__(self, size: int, rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(size, size, rngs=rngs)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Return the pooled output, (example, hidden)."""
        return jnp.tanh(self.dense(hidden[:, 0]))


def _norm(config: Mapping[str, Any], rngs: nnx.Rngs) -> nnx.LayerNorm:
    """Return a normalisation whose variance is that of the centred values, since E[x²] − E[x]² loses digits."""
    return nnx.LayerNorm(config["hidden_size"], epsilon=config["layer_norm_eps"], use_fast_variance=False, rngs=rngs)


def bert(config: Mapping[str, Any]) -> tuple[Bert, list[WeightTarget]]:
    """Return a `Bert` of this configuration in evaluation mode, with random weights, and where each of its weights goes.

    Raises:
        UnsupportedError: the configuration describes another model than `Bert`.
    """
    known = complete_config(config)
    expect_expressible(known, ACTIVATIONS, MODEL)
    model = Bert(known, nnx.Rngs(0))
    model.eval()
    targets = bert_targets(model)
    assert targets is not None, "a Bert is one"
    return model, targets


def bert_targets(model: Any) -> list[WeightTarget] | None:
    """Return where each weight of a checkpoint goes in a `Bert`; None for any other model."""
    return [_target(path, variable) for path, variable in _variables(model)] if isinstance(model, Bert) else None


def checkpoint(parts: Sequence[Any]) -> list[tuple[Any, WeightTarget]]:
    """Return the arrays of the only `Bert` in a model's parts, and the checkpoint's weight of each.

    The list is empty if there is no `Bert`, or more than one.
    """
    modules = (node for part in parts if isinstance(part, nnx.Module) for _, node in nnx.iter_graph(part))
    found = {id(module): module for module in modules if isinstance(module, Bert)}
    if len(found) != 1:
        return []
    (model,) = found.values()
    return [(_array(variable), _target(path, variable)) for path, variable in _variables(model)]


def _variables(model: Bert) -> Iterator[tuple[str, nnx.Param[Any]]]:
    return ((".".join(map(str, path)), node) for path, node in nnx.iter_graph(model) if isinstance(node, nnx.Param))


def _array(variable: nnx.Param[Any]) -> Any:
    return variable.get_value() if hasattr(variable, "get_value") else variable.value


def _target(path: str, variable: nnx.Param[Any]) -> WeightTarget:
    module, _, leaf = path.rpartition(".")

    def put(value: np.ndarray) -> None:
        variable[...] = jnp.asarray(value, variable.dtype)

    source = f"{module}.{LEAVES[leaf]}"
    return WeightTarget(source, tuple(variable.shape), put, path, transposed=leaf == "kernel")
