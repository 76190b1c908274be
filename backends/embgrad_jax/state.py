"""Restore attributes of modules that a copy shares with the model, and refuse arrays that belong to a trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from embgrad.errors import UnsupportedError
from embgrad.toolkit import ObjectState, record_kept
from embgrad_jax.walk import Structure

__all__ = ["expect_arrays", "preserve"]


@contextlib.contextmanager
def preserve(structure: Structure) -> Iterator[None]:
    """Restore the attributes of modules, and the lists and dicts in them, which copies share with them."""
    state = ObjectState(attributes for family in structure.families for attributes in family.attributes)
    try:
        yield
    finally:
        record_kept(value for value in state.values if isinstance(value, jax.Array))
        state.restore()


def expect_arrays(arrays: Sequence[Any]) -> None:
    """Refuse arrays without values."""
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        raise UnsupportedError(
            "embgrad was called inside jax.jit (or grad, vmap), where the model's arrays have no values. Call it outside of the "
            "transformation; embgrad.gradients compiles by itself with compile=True"
        )
