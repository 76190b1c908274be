"""Text models that are plain functions of their parameters, as (function, parameters): dicts, lists of dicts, Haiku's dicts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tests.frameworks.jax.cases import CLASSES, DIM, VOCAB, Case

__all__ = ["CASES", "applied", "mean_logits"]

LENGTH, LAYERS = 9, 3


def applied(parts: Any, inputs: Any) -> Any:
    """Call the function on a batch, with its parameters."""
    function, parameters = parts
    return function(parameters, inputs["input_ids"], inputs["attention_mask"])


def weights(key: Any, *shape: int, dtype: Any) -> jax.Array:
    """Return random weights."""
    return 0.4 * jax.random.normal(key, shape, dtype)


def mean_logits(parameters: Any, ids: Any, mask: Any) -> Any:
    """Return the mean of the real rows times a weight: of closed form."""
    real = mask[..., None].astype(parameters["embedding"].dtype)
    return ((parameters["embedding"][ids] * real).sum(1) / real.sum(1)) @ parameters["w"]


def layer(own: Any, x: Any, mask: Any) -> Any:
    """Return the hidden state behind attention of one head and a dense layer, each with what came in added."""
    query, key, value = (x @ own[name] for name in ("query", "key", "value"))
    scores = jnp.where(mask[:, None, :] > 0, query @ key.swapaxes(1, 2) / DIM**0.5, jnp.finfo(x.dtype).min)
    x = x + jax.nn.softmax(scores) @ value
    return x + jnp.tanh(x @ own["inner"] + own["bias"])


def _listed_behind(parameters: Any, x: Any, first: int, mask: Any, stop: int | None = None) -> Any:
    for own in parameters["layers"][first:stop]:
        x = layer(own, x, mask)
    return x if stop is not None else x @ parameters["embedding"].T


def listed(parameters: Any, ids: Any, mask: Any) -> Any:
    """Return logits (example, position, vocab); the layers are a list of dicts, and the head is the table."""
    x = parameters["embedding"][ids] + parameters["positions"][jnp.arange(ids.shape[1])]
    return _listed_behind(parameters, x, 0, mask)


@jax.jit
def stacked(parameters: Any, ids: Any, mask: Any) -> Any:
    """Return logits (example, classes), compiled; the layers' weights are stacked and scanned, each layer recomputed."""
    step = jax.checkpoint(lambda x, own: (layer(own, x, mask), None))
    x, _ = jax.lax.scan(step, jnp.take(parameters["embedding"], ids, axis=0), parameters["layers"])
    return x[:, 0] @ parameters["head"]


def haiku(parameters: Any, ids: Any, mask: Any) -> Any:
    """Return logits (example, classes); the parameters are named as Haiku names them, and rows are one-hot products."""
    table = parameters["encoder/~/embed"]["embeddings"]
    return _haiku_behind(parameters, jax.nn.one_hot(ids, VOCAB, dtype=table.dtype) @ table, mask)


def _haiku_behind(parameters: Any, x: Any, mask: Any) -> Any:
    linear, real = parameters["encoder/linear"], mask[..., None].astype(x.dtype)
    x = jnp.tanh(x @ linear["w"] + linear["b"])
    return (x * real).sum(1) @ parameters["encoder/linear_1"]["w"]


def mapped(parameters: Any, ids: Any, mask: Any) -> Any:
    """Return logits (example, classes); written for one example, and mapped."""

    def example(ids: Any, mask: Any) -> Any:
        return _example_behind(parameters, parameters["embedding"][ids], mask)

    return jax.vmap(example)(ids, mask)


def _example_behind(parameters: Any, x: Any, mask: Any) -> Any:
    weights = jax.nn.softmax(jnp.where(mask > 0, x @ parameters["w"][:, 0], -1e9))
    return jnp.tanh(weights @ x) @ parameters["w"]


def _layers(key: Any, dtype: Any) -> list[dict[str, jax.Array]]:
    made = []
    for one in jax.random.split(key, LAYERS):
        keys = jax.random.split(one, 5)
        names = ("query", "key", "value", "inner")
        own = {name: weights(key, DIM, DIM, dtype=dtype) for name, key in zip(names, keys, strict=False)}
        made.append({**own, "bias": weights(keys[4], DIM, dtype=dtype)})
    return made


def _make(function: Any, build: Callable[[Any, Any], Any]) -> Any:
    return lambda dtype: (function, build(jax.random.split(jax.random.key(6), 4), jnp.dtype(dtype)))


def _as_is(parts: Any, rows: Any, ids: Any, mask: Any, places: Any) -> Any:
    return rows


def _case(
    name: str, function: Any, build: Any, behind: Any, table: Any = None, begin: Any = _as_is, **more: Any
) -> Case:
    table = table or (lambda parameters: parameters["embedding"])
    return Case(
        name,
        _make(function, build),
        lambda parts: table(parts[1]),
        begin,
        lambda parts, x, first, ids, mask, stop=None: behind(parts[1], x, mask),
        call=applied,
        **more,
    )


def _stacked_behind(parameters: Any, x: Any, mask: Any) -> Any:
    for number in range(LAYERS):
        x = layer(jax.tree.map(lambda leaf: leaf[number], parameters["layers"]), x, mask)  # noqa: B023
    return x[:, 0] @ parameters["head"]


def _mean_behind(parameters: Any, x: Any, mask: Any) -> Any:
    real = mask[..., None].astype(x.dtype)
    return ((x * real).sum(1) / real.sum(1)) @ parameters["w"]


CASES = [
    _case(
        "mean",
        mean_logits,
        lambda keys, dtype: {
            "embedding": weights(keys[0], VOCAB, DIM, dtype=dtype),
            "w": weights(keys[1], DIM, CLASSES, dtype=dtype),
        },
        _mean_behind,
    ),
    _case(
        "listed",
        listed,
        lambda keys, dtype: {
            "embedding": weights(keys[0], VOCAB, DIM, dtype=dtype),
            "positions": weights(keys[1], LENGTH, DIM, dtype=dtype),
            "layers": _layers(keys[2], dtype),
        },
        lambda parameters, x, mask: _listed_behind(parameters, x, 0, mask),
        begin=lambda parts, rows, ids, mask, places: rows + places,
        places=lambda parts: parts[1]["positions"],
        logits=3,
        tied=True,
    ),
    _case(
        "stacked",
        stacked,
        lambda keys, dtype: {
            "embedding": weights(keys[0], VOCAB, DIM, dtype=dtype),
            "layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *_layers(keys[1], dtype)),
            "head": weights(keys[2], DIM, CLASSES, dtype=dtype),
        },
        _stacked_behind,
    ),
    _case(
        "haiku",
        haiku,
        lambda keys, dtype: {
            "encoder/~/embed": {"embeddings": weights(keys[0], VOCAB, DIM, dtype=dtype)},
            "encoder/linear": {
                "w": weights(keys[1], DIM, DIM, dtype=dtype),
                "b": weights(keys[2], DIM, dtype=dtype),
            },
            "encoder/linear_1": {"w": weights(keys[3], DIM, CLASSES, dtype=dtype)},
        },
        _haiku_behind,
        table=lambda parameters: parameters["encoder/~/embed"]["embeddings"],
    ),
    _case(
        "mapped",
        mapped,
        lambda keys, dtype: {
            "embedding": weights(keys[0], VOCAB, DIM, dtype=dtype),
            "w": weights(keys[1], DIM, CLASSES, dtype=dtype),
        },
        lambda parameters, x, mask: jax.vmap(partial(_example_behind, parameters))(x, mask),
    ),
]
