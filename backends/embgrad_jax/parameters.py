"""The arrays of a model as parameters and weights: their gradients, and access to their values."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from embgrad.backend import ParameterValues, TableRest, Weight, table_rests
from embgrad.checkpoints import WeightTarget, keras_checkpoint
from embgrad.toolkit import as_parts, model_lock
from embgrad_jax.inputs import to_numpy
from embgrad_jax.leaves import Leaf
from embgrad_jax.lookup import Survey
from embgrad_jax.walk import Structure

__all__ = ["alone", "find_differentiated", "parameter_values", "rests", "weights"]


def find_differentiated(leaves: Sequence[Leaf], survey: Survey, *, parameters: bool, tables: bool) -> list[str]:
    """Return the names of the arrays whose gradients a request needs: those of parameters, or of the lookups' tables."""
    if parameters:
        return [leaf.name for leaf in leaves if leaf.trainable and leaf.floating]
    if not tables:
        return []
    return list(dict.fromkeys(name for names in _table_names(leaves, survey).values() for name in names))


def _table_names(leaves: Sequence[Leaf], survey: Survey) -> dict[str, list[str]]:
    """Return for each lookup's key the names of its table and of the arrays that are the same array."""
    return {
        key: [table.name, *(leaf.name for leaf in leaves if leaf.array is table.array and leaf.name != table.name)]
        for key, table in survey.leaves.items()
        if table is not None
    }


def rests(leaves: Sequence[Leaf], survey: Survey, gradients: Mapping[str, np.ndarray | None]) -> dict[str, TableRest]:
    """Return the gradients that reach the lookups' tables by other ways."""
    return table_rests(_table_names(leaves, survey), gradients)


def parameter_values(leaves: Sequence[Leaf], gradients: Mapping[str, np.ndarray | None]) -> dict[str, ParameterValues]:
    """Return the gradients of the parameters by name."""
    return {
        leaf.name: ParameterValues(tuple(leaf.array.shape), gradients.get(leaf.name), str(leaf.array.dtype))
        for leaf in leaves
        if leaf.trainable and leaf.floating
    }


def weights(model: Any) -> list[Weight]:
    """Return the arrays of floating point, trainable or not."""
    with alone(model):
        leaves, named = Structure(model).leaves, _checkpoint(as_parts(model))
    weights = ((_weight(leaf), named.get(id(leaf.array))) for leaf in leaves if leaf.floating)
    return [weight if target is None else target.with_name(weight) for weight, target in weights]


def _checkpoint(parts: Sequence[Any]) -> dict[int, WeightTarget]:
    """Return by the arrays' identities the checkpoint's weights of a BERT, embgrad's own or keras-hub's."""
    own = sys.modules.get("embgrad_jax.bert")  # without it there is no such model
    pairs = [] if own is None else own.checkpoint(parts)
    pairs = pairs or [(variable.value, target) for variable, target in keras_checkpoint(parts)]
    return {id(array): target for array, target in pairs}


def _weight(leaf: Leaf) -> Weight:
    shape, dtype = tuple(leaf.array.shape), leaf.array.dtype

    def put(value: np.ndarray) -> None:
        leaf.put(jnp.asarray(value, dtype))

    return Weight(
        leaf.name,
        leaf.module,
        shape,
        str(dtype),
        lambda: to_numpy(leaf.get()),
        lambda indices: to_numpy(leaf.get()[indices]),
        put,
        path=leaf.path,
    )


@contextlib.contextmanager
def alone(model: Any) -> Iterator[None]:
    """Hold the model's locks while the context is open."""
    with model_lock(as_parts(model)):
        yield
