"""JAX, operation by operation and compiled: the forward pass, the gradient by hand, and all weights' gradients."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import embgrad
from tests.benchmarks.cases import POSITION, Case
from tests.benchmarks.measuring import Mode


@functools.cache
def _model(checkpoint: str) -> Any:
    return embgrad.zoo.load_bert(checkpoint, "jax")


def plain(case: Case) -> Mode:
    return _mode(case, compiled=False)


def compiled(case: Case) -> Mode:
    return _mode(case, compiled=True)


def _mode(case: Case, *, compiled: bool) -> Mode:
    model, batch = _model(case.checkpoint), case.batch()
    graph, state, rest = nnx.split(model, nnx.Param, ...)
    inputs = {name: jnp.asarray(value) for name, value in batch.to_huggingface().items()}
    made = jax.jit if compiled else lambda function: function

    @made
    def forward(state: Any) -> Any:
        return nnx.merge(graph, state, rest)(**inputs)["pooler_output"]

    @made
    def by_rows(state: Any) -> Any:
        def total(rows: Any) -> Any:
            own = nnx.merge(graph, state, rest)
            own.embeddings.word_embeddings = lambda ids: rows
            return _total(case, own(**inputs))

        rows = nnx.merge(graph, state, rest).embeddings.word_embeddings(inputs["input_ids"])
        value, pull = jax.vjp(total, rows)
        return pull(jnp.ones_like(value))[0]

    @made
    def backward(state: Any) -> Any:
        return jax.grad(lambda state: _total(case, nnx.merge(graph, state, rest)(**inputs)))(state)

    return Mode(
        forward=lambda: np.asarray(forward(state)),
        by_hand={"jax.vjp to the rows" + (", under one jit" if compiled else ""): lambda: np.asarray(by_rows(state))},
        backward=lambda: jax.block_until_ready(backward(state)),
        gradients=lambda: embgrad.gradients(model, batch, case.embgrad_objective(), compile=compiled),
    )


MODES = {"JAX": plain, "JAX, compile=True": compiled}


def _total(case: Case, outputs: Any) -> Any:
    if case.objective == "pooled":
        return outputs["pooler_output"].sum()
    return outputs["last_hidden_state"][:, POSITION].sum()
