"""Searches and deletion of tokens in a JAX function that reads lengths."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from tests.support.lengths_by_hand import TABLE, WEIGHT, expect_new_lengths


def read_lengths(parameters: Any, ids: Any, lengths: Any) -> Any:
    """Return logits of the mean and the last of the first rows."""
    rows = parameters["embedding"][ids]
    real = (jnp.arange(ids.shape[1]) < lengths[:, None])[..., None]
    mean = jnp.tanh((rows * real).sum(1) / lengths[:, None])
    return (mean + rows[jnp.arange(len(ids)), lengths - 1]) @ parameters["w"]


def test_lengths_follow_inserted_and_deleted_tokens() -> None:
    parts = (read_lengths, {"embedding": jnp.asarray(TABLE), "w": jnp.asarray(WEIGHT)})
    call = lambda parts, inputs: parts[0](parts[1], inputs["input_ids"], inputs["lengths"])  # noqa: E731
    expect_new_lengths(parts, "lengths", jnp.asarray, call, ways=("insert",))
