"""What the tests know of a model: how it is called, and its forward pass from the embedded rows, for JAX's own gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import embgrad

__all__ = [
    "BATCH", "CLASSES", "DIM", "FURTHER", "IDS", "LABELS", "MASK", "TOKEN_LABELS", "VOCAB", "Case", "Expected",
    "as_dict", "cross_entropies", "expected",
]  # fmt: skip

VOCAB, DIM, CLASSES = 23, 8, 3

#: The highest id, which ends a text for a text tower, comes once in each example; ids repeat within and across examples.
IDS = np.array([[5, 7, 9, 11, 7, 22], [3, 2, 7, 22, 0, 0]])
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
BATCH = embgrad.TokenBatch(IDS, mask=MASK)
LABELS = np.array([1, 2])
TOKEN_LABELS = np.where(MASK == 1, (IDS * 3 + 1) % VOCAB, -100)
FURTHER = np.array([[4, 5, 6], [7, 5, 1]])  # the ids of a decoder


@dataclass(frozen=True, eq=False)
class Case:
    """A model of the tests.

    Attributes:
        name: of the architecture.
        make: returns the model as a user has it, of weights of a dtype, for evaluation.
        table: returns of a model the table of the words.
        begin: returns from the raw rows what the first layer takes: (model, rows, ids, mask, places), where `places` are the
            rows of the positions' table, or None.
        behind: returns from a hidden state the logits: (model, hidden, number of the next layer, ids, mask); or, with a further
            number, the hidden state before that layer.
        call: how it is called, or None where embgrad finds that out.
        layers: how many it has as modules, whose outputs have the roles "layer.0" and so on.
        embeddings: whether a module computes what the first layer takes, so that this has the role "embeddings".
        places: returns of a model the table of the positions, where they are looked up.
        logits: how many axes its logits have: 2 for classes, 3 for tokens.
        tied: whether the head is the table.
        further: other arguments by name, for the batch.
    """

    name: str
    make: Callable[[Any], Any]
    table: Callable[[Any], jax.Array]
    begin: Callable[..., jax.Array]
    behind: Callable[..., jax.Array]
    call: Callable[[Any, Any], Any] | None = None
    layers: int = 0
    embeddings: bool = False
    places: Callable[[Any], jax.Array] | None = None
    logits: int = 2
    tied: bool = False
    further: Mapping[str, np.ndarray] | None = None

    def __str__(self) -> str:
        """The name, for pytest."""
        return self.name

    @property
    def roles(self) -> list[str]:
        """The roles that its points have to have."""
        layers = [f"layer.{number}" for number in range(self.layers)]
        more = [*(["layer.-1"] if layers else []), *(["embeddings"] if self.embeddings else [])]
        return ["word", *layers, *more, *(["position"] if self.places is not None else [])]

    @property
    def batch(self) -> Any:
        """The batch, a dict where the model takes more than ids and mask."""
        return BATCH if self.further is None else {**as_dict(), **self.further}

    @property
    def objective(self) -> embgrad.CrossEntropy:
        """Of a class, or of a token at each real position."""
        return embgrad.CrossEntropy(LABELS if self.logits == 2 else TOKEN_LABELS)


@dataclass(frozen=True)
class Expected:
    """JAX's own numbers: each example's objective, and values and gradients by role."""

    objective: np.ndarray
    activations: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray]


def as_dict() -> dict[str, np.ndarray]:
    """Return the batch as a dict of arrays."""
    return {"input_ids": IDS, "attention_mask": MASK}


def cross_entropies(logits: jax.Array) -> jax.Array:
    """Return the objective of each example, by hand."""
    labels = jnp.asarray(LABELS if logits.ndim == 2 else TOKEN_LABELS)
    logs = jax.nn.log_softmax(logits.astype(jnp.promote_types(logits.dtype, jnp.float32)))
    chosen = -jnp.take_along_axis(logs, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    return chosen if logits.ndim == 2 else jnp.where(labels >= 0, chosen, 0).sum(-1)


def expected(case: Case, model: Any, rows: Any = None) -> Expected:
    """Return the objective, the values at the roles, and JAX's gradient by what is added there, in one compiled function.

    Args:
        case: says how the model's forward pass goes on from the rows.
        model: the model.
        rows: takes the place of those that the ids look up, (example, position, dim).
    """
    ids, mask = jnp.asarray(IDS), jnp.asarray(MASK)
    words = case.table(model)[ids] if rows is None else jnp.asarray(rows)
    places = None if case.places is None else jnp.tile(case.places(model)[: ids.shape[1]], (ids.shape[0], 1, 1))

    def total(added: Mapping[str, Any], words: Any) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
        values = {"word": words + added["word"]}
        if places is not None:
            values["position"] = places + added["position"]
        hidden = case.begin(model, values["word"], ids, mask, values.get("position")) + added["embeddings"]
        values["embeddings"] = hidden
        for number in range(case.layers):
            hidden = case.behind(model, hidden, number, ids, mask, number + 1) + added[f"layer.{number}"]
            values[f"layer.{number}"] = hidden
        each = cross_entropies(case.behind(model, hidden, case.layers, ids, mask))
        return each.sum(), (each, values)

    names = ["word", "position", "embeddings", *(f"layer.{number}" for number in range(case.layers))]
    zeros = dict.fromkeys(names, jnp.zeros_like(words))
    gradients, (each, values) = jax.jit(jax.grad(total, has_aux=True))(zeros, words)  # compiled once for all rows
    last = f"layer.{case.layers - 1}"
    if case.layers:
        gradients["layer.-1"], values["layer.-1"] = gradients[last], values[last]
    return Expected(
        np.asarray(each), *({role: np.asarray(of[role]) for role in case.roles} for of in (values, gradients))
    )
