"""Points in JAX by hand: `jax.grad` with respect to zeros that are added to the modules' outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import embgrad
from tests.benchmarks.points import POOLED, Gradients, Priced, code_of, loaded_bert, texts


def plain(layers: int, dim: int) -> Priced:
    return _priced(layers, dim, compiled=False)


def compiled(layers: int, dim: int) -> Priced:
    return _priced(layers, dim, compiled=True)


MODES = {"JAX": plain, "JAX, compile=True": compiled}


def _priced(layers: int, dim: int, *, compiled: bool) -> Priced:
    model = loaded_bert("jax", layers, dim)
    graph, state, rest = nnx.split(model, nnx.Param, ...)

    def by_hand(batch: embgrad.TokenBatch, points: Sequence[str]) -> Gradients:
        inputs = {name: jnp.asarray(value) for name, value in batch.to_huggingface().items()}
        zeros = dict.fromkeys(points, jnp.zeros((*batch.shape, dim)))
        added = dict(zeros)
        copy = _adding(nnx.merge(graph, state, rest), added)

        def of_copy(zeros: Mapping[str, Any]) -> Any:
            added.update(zeros)
            return copy(**inputs)["pooler_output"].sum()

        @jax.jit
        def of_state(state: Any, zeros: Mapping[str, Any]) -> Any:
            def total(zeros: Mapping[str, Any]) -> Any:
                return _adding(nnx.merge(graph, state, rest), zeros)(**inputs)["pooler_output"].sum()

            return jax.grad(total)(zeros)

        def gradients() -> dict[str, np.ndarray]:
            pulled = of_state(state, zeros) if compiled else jax.grad(of_copy)(zeros)
            return {point: np.asarray(gradient) for point, gradient in pulled.items()}

        return gradients

    return Priced(model, texts, POOLED, by_hand, code_of(type(model).__call__), {"compile": compiled})


def _adding(model: Any, added: Mapping[str, Any]) -> Any:
    """Return the model, whose modules at points add what is to be added there."""
    inner = model.embeddings, model.encoder.layer
    if "word" in added:
        inner[0].word_embeddings = _with(inner[0].word_embeddings, "word", added)
    if "embeddings" in added:
        model.embeddings = _with(inner[0], "embeddings", added)
    for point, number in (("layer.0", 0), ("layer.-1", -1)):
        if point in added:
            inner[1][number] = _with(inner[1][number], point, added)
    return model


def _with(part: Any, point: str, added: Mapping[str, Any]) -> Callable[..., Any]:
    return lambda *args: part(*args) + added[point]
