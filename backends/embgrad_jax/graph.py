"""Finds the modules and the variables of floating point of an NNX model, by path."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from embgrad.backend import Weight, owned

__all__ = ["is_floating", "modules_of", "nodes_of", "to_numpy", "variables_of", "weights_of"]


def is_floating(value: object) -> bool:
    """Return whether a value is a JAX array of floating point, or stands for one while JAX differentiates."""
    return isinstance(value, jax.Array) and bool(jnp.issubdtype(value.dtype, jnp.floating))


def to_numpy(value: Any) -> np.ndarray:
    """Return a copy of the values as float32, or as float64 where they are that.

    While JAX differentiates, an array may come as a tracer, which has no NumPy form; without its gradient it is an array again.
    """
    return owned(np.asarray(jax.lax.stop_gradient(value)))


def nodes_of(model: Any, kind: type) -> dict[str, Any]:
    """Return the modules or variables of a kind by path, each once, in order; a part's path begins with its number."""
    return {".".join(map(str, path)): node for path, node in nnx.iter_graph(model) if isinstance(node, kind)}


def modules_of(model: Any) -> dict[str, Any]:
    """Return the modules by path. The model itself is ""."""
    return nodes_of(model, nnx.Module)


def variables_of(model: Any) -> dict[str, nnx.Variable[Any]]:
    """Return the variables of floating point by path, shared ones once: parameters, and others such as running averages."""
    return {path: one for path, one in nodes_of(model, nnx.Variable).items() if is_floating(one.get_value())}


def weights_of(model: Any) -> list[Weight]:
    """Return the variables of floating point as weights, which can be read and written."""
    return [_weight(path, one) for path, one in variables_of(model).items()]


def _weight(path: str, variable: nnx.Variable[Any]) -> Weight:
    def put(value: np.ndarray) -> None:
        variable.set_value(jnp.asarray(value, variable.dtype))

    def get() -> np.ndarray:
        return to_numpy(variable.get_value())

    def rows(indices: np.ndarray) -> np.ndarray:
        return to_numpy(variable.get_value()[indices])

    return Weight(path, path.rpartition(".")[0], variable.shape, str(variable.dtype), get, rows, put)
