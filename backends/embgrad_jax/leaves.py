"""The arrays of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp

from embgrad.toolkit import record_change, record_kept

__all__ = ["Leaf", "record_changes"]


@dataclass(frozen=True)
class Leaf:
    """An array of a model.

    Attributes:
        name: its path, as in `parameter_gradients`.
        module: the path of the module that owns it.
        table: the name of a lookup in it.
        trainable: whether it is a parameter.
        random: whether it is the state of a random generator.
        get: returns the value that it has in the model now.
        state: whether a pass may write to it, see `may_be_state`.
        alone: whether products with it are points; None where the number of its module's matrices decides.
        path: its attribute path, by which they are, if its name is another.
        padding: the row that its owner declares as padding; None where it declares none.
    """

    name: str
    module: str
    table: str
    trainable: bool
    random: bool
    array: Any = field(repr=False)
    get: Callable[[], Any] = field(repr=False)
    put: Callable[[Any], Any] = field(repr=False)
    state: bool = False
    padding: int | None = None
    alone: bool | None = None
    path: str | None = None

    @property
    def point(self) -> str:
        """Return the name by which products with it are points."""
        return self.path or self.name

    @property
    def floating(self) -> bool:
        """Return whether it holds floating-point numbers."""
        return bool(jnp.issubdtype(self.array.dtype, jnp.floating))


def record_changes(leaves: Sequence[Leaf], arrays: Sequence[Any], after: Sequence[Any]) -> None:
    """Record the leaves that may hold a state, and those for whose arrays a pass has put others in their places."""
    record_kept(leaf.array for leaf in leaves if leaf.state)
    for leaf, array, other in zip(leaves, arrays, after, strict=False):
        if other is not None and other is not array and not leaf.random:
            record_change(leaf.name)
