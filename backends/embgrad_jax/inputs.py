"""Turn the batch into the arguments of a model's call, and read JAX's arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from embgrad.backend import Call, TokenBatch, layout_of
from embgrad.errors import BatchError, UnsupportedError
from embgrad.keras import is_keras, plan_keras_call
from embgrad.toolkit import copy_owned, expect_single, parameters_of, plan_call
from embgrad_jax.walk import is_huggingface, is_linen

__all__ = ["JaxTensors", "Plan", "Rows", "as_given", "plan", "to_numpy"]

#: Arguments of a model that are no part of a batch.
NOT_THE_BATCHS: Final = ("deterministic", "train", "training", "rngs", "decode", "key", "state", "inference")


@dataclass(frozen=True)
class Plan:
    """The call of a model."""

    arrays: Sequence[Any]
    called: Callable[[Any, Sequence[Any]], Any]
    unused: tuple[str, ...] = ()


def plan(model: Any, batch: TokenBatch, call: Call | None, *, training: bool) -> Plan:
    """Return how the model is called on the batch.

    Raises:
        BatchError: the model needs an input that the batch does not have, or JAX cannot hold a number of the batch.
        UnsupportedError: the model cannot be called without `call`.
    """
    if call is not None:
        function = call
        return _plan(batch.inputs(), lambda model, inputs: function(model, inputs))
    if isinstance(model, (list, tuple)) and any(map(is_linen, model)):
        raise UnsupportedError(
            "the model is a Flax Linen module with its variables, and embgrad does not know how it is called. Pass "
            'call=lambda parts, inputs: parts[0].apply(parts[1], inputs["input_ids"]); of bare ids, inputs are the ids'
        )
    expect_single(model)
    if is_keras(model):
        planned = plan_keras_call(model, batch, lambda value: value)
        nest = (planned.args, dict(planned.kwargs))
        return _plan(nest, lambda model, nest: model(*nest[0], **nest[1], training=training), planned.unused)
    if is_huggingface(model) and training:
        raise UnsupportedError(
            f"the model is a {type(model).__name__}, whose dropout needs a key: pass call=lambda model, inputs: model(**inputs, "
            "train=True, dropout_rng=key), or omit training"
        )
    if not callable(model):
        raise UnsupportedError(
            f"the model is a {type(model).__qualname__} of arrays, which cannot be called. Pass call=lambda params, inputs: "
            'forward(params, inputs["input_ids"]); of bare ids, inputs are the ids'
        )
    planned = plan_call(parameters_of(model.__call__, NOT_THE_BATCHS), batch)
    return _plan((planned.args, dict(planned.kwargs)), lambda model, nest: model(*nest[0], **nest[1]), planned.unused)


def _plan(nest: Any, call: Callable[[Any, Any], Any], unused: tuple[str, ...] = ()) -> Plan:
    """Return the plan of a call with the arrays of a nest."""
    leaves, tree = jax.tree_util.tree_flatten(nest, is_leaf=lambda value: value is None)
    numbers = [number for number, leaf in enumerate(leaves) if _is_numeric(leaf)]

    def called(model: Any, arrays: Sequence[Any]) -> Any:
        values = list(leaves)
        for number, array in zip(numbers, arrays, strict=True):
            values[number] = array
        return call(model, jax.tree_util.tree_unflatten(tree, values))

    return Plan([native(leaves[number]) for number in numbers], called, unused)


def _is_numeric(value: Any) -> bool:
    return isinstance(value, jax.Array) or (isinstance(value, np.ndarray) and value.dtype.kind in "biuf")


def native(value: Any) -> Any:
    """Return a JAX array; refuse whole numbers that JAX, which may hold them in 32 bits, would wrap round to another id."""
    array = jnp.asarray(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.size:
        largest = np.iinfo(array.dtype).max
        if value.max() > largest:
            raise BatchError(
                f"the batch holds {value.max()}, which JAX would hold as {array.dtype} and so make another number: expected at "
                f"most {largest}; use the tokenizer that belongs to this model"
            )
    return array


def to_numpy(value: Any) -> np.ndarray:
    """Return a copy of the values as float32, or as float64 where they are that.

    While JAX differentiates, an array may come as a tracer, which has no NumPy form; without its gradient it is an array again.
    """
    return copy_owned(np.asarray(jax.lax.stop_gradient(value)))


@dataclass(frozen=True)
class Rows:
    """Some rows of an output.

    Attributes:
        output: the output.
        examples: the index of each row along the first axis.
        positions: its index along the second.
    """

    output: Any
    examples: np.ndarray
    positions: np.ndarray

    @property
    def dtype(self) -> Any:
        """The output's dtype."""
        return self.output.dtype


class JaxTensors:
    """The reading of JAX's arrays, see `embgrad.backend.cotangents.Tensors`."""

    kind = "a jax.Array"
    scalars: tuple[tuple[int, ...], ...] = ((),)

    def is_tensor(self, value: object) -> bool:
        """Return whether a value is a `jax.Array`."""
        return isinstance(value, jax.Array)

    def dtype(self, tensor: Any) -> str:
        """Return the dtype's name."""
        return str(tensor.dtype)

    def to_numpy(self, tensor: Any) -> np.ndarray:
        """Return a copy of the values."""
        if isinstance(tensor, Rows):
            return to_numpy(tensor.output[tensor.examples, tensor.positions])
        return to_numpy(tensor)

    def rows(self, tensor: Any, examples: np.ndarray, positions: np.ndarray) -> Any:
        """Return the rows."""
        return Rows(tensor, examples, positions)


def as_given(indices: np.ndarray, ids: np.ndarray, rows: int) -> np.ndarray:
    """Return the batch's ids in place of indices that JAX made of them: negative ones count from the end, others are clipped."""
    if not ids.size or (ids.min() >= 0 and ids.max() < rows):
        return indices
    moved = np.clip(np.where(ids < 0, ids + rows, ids), 0, rows - 1)
    layout = layout_of(np.clip(indices, 0, rows - 1), moved)
    if layout is None:
        return indices
    return (ids.T if layout.transposed else ids).reshape(indices.shape)
