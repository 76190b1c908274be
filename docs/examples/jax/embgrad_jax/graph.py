"""What an NNX model is made of, by path: modules, and variables of floating point."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from embgrad.arrays import owned
from embgrad.backend import Weight

__all__ = ["is_floating", "modules_of", "nodes_of", "to_numpy", "variables_of", "weights_of"]


def is_floating(value: object) -> bool:
    """Whether it is a JAX array of floating point, or what stands for one while JAX differentiates."""
    return isinstance(value, jax.Array) and bool(jnp.issubdtype(value.dtype, jnp.floating))


def to_numpy(value: Any) -> np.ndarray:
    """A copy of the values, float32, or float64 where they are that.

    While JAX differentiates, an array may come as a tracer, which has no NumPy form; without its gradient it is an array again.
    """
    return owned(np.asarray(jax.lax.stop_gradient(value)))


def nodes_of(model: Any, kind: type) -> dict[str, Any]:
    """The modules or variables of a kind by path, each once, in the model's order; a part's path begins with its number."""
    return {".".join(map(str, path)): node for path, node in nnx.iter_graph(model) if isinstance(node, kind)}


def modules_of(model: Any) -> dict[str, Any]:
    """The modules by path. The model itself is ""."""
    return nodes_of(model, nnx.Module)


def variables_of(model: Any) -> dict[str, nnx.Variable[Any]]:
    """The variables of floating point by path: parameters, and others such as running averages. A shared one comes once."""
    return {path: one for path, one in nodes_of(model, nnx.Variable).items() if is_floating(one.get_value())}


def weights_of(model: Any) -> list[Weight]:
    """The same as weights, which can be read and written."""
    return [_weight(path, one) for path, one in variables_of(model).items()]


def _weight(path: str, variable: nnx.Variable[Any]) -> Weight:
    def put(value: np.ndarray) -> None:
        variable.set_value(jnp.asarray(value, variable.dtype))

    def get() -> np.ndarray:
        return to_numpy(variable.get_value())

    return Weight(path, path.rpartition(".")[0], variable.shape, str(variable.dtype), get, put)
