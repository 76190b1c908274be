"""Turn the batch into the arrays that a graph takes, by the names and in the types that it declares."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from embgrad.backend import TokenBatch
from embgrad.errors import BatchError, UnsupportedError, brief
from embgrad.toolkit import plan_mapping, to_numpy
from embgrad_onnx.graphs import Graph
from embgrad_onnx.walk import FLOATING

__all__ = ["NumpyArrays", "feeds"]

#: The names of inputs that hold the keys and values of earlier tokens, of which there are none unless the batch has some.
EARLIER: Final = re.compile(r"past.*\.(key|value)$")

#: The types of a graph's inputs that are filled, by their numbers in `onnx.TensorProto.DataType`, with NumPy's names.
DTYPES: Final[Mapping[int, str]] = {
    **{1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool"},
    **{10: "float16", 11: "float64", 12: "uint32", 13: "uint64"},
}


def feeds(graph: Graph, batch: TokenBatch) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the arrays that a graph takes by name, and the names of the batch's parts that it does not take.

    Raises:
        BatchError: the batch has nothing for an input, or what it has does not fit.
        UnsupportedError: an input is no tensor of numbers.
    """
    declared = {value.name: value.type for value in graph.proto.graph.input}
    empty = {name: _empty(declared[name], len(batch)) for name in graph.inputs if EARLIER.search(name)}
    empty = {name: value for name, value in empty.items() if value is not None and name not in batch.extras}
    filled, unused = plan_mapping([name for name in graph.inputs if name not in empty], batch)
    return {name: _convert(name, value, declared[name]) for name, value in {**filled, **empty}.items()}, unused


def _empty(declared: Any, examples: int) -> np.ndarray | None:
    """Return the keys or values of no earlier tokens; None for an input that declares no number of tokens to choose."""
    dims = declared.tensor_type.shape.dim
    open_ = [dim.dim_value <= 0 for dim in dims]
    if len(dims) != 4 or sum(open_[1:]) != 1 or declared.tensor_type.elem_type not in FLOATING:
        return None
    shape = [0 if is_open else dim.dim_value for dim, is_open in zip(dims, open_, strict=True)]
    return np.empty([shape[0] or examples, *shape[1:]], DTYPES.get(declared.tensor_type.elem_type, "float32"))


def _convert(name: str, value: Any, declared: Any) -> np.ndarray:
    """Return an input in the type and of the shape that the graph declares."""
    dtype = DTYPES.get(declared.tensor_type.elem_type)
    if not declared.HasField("tensor_type") or dtype is None:
        raise UnsupportedError(
            f"the graph's input {name!r} is no tensor of numbers: expected one of token ids, of a mask, of types or of numbers"
        )
    try:
        array = np.ascontiguousarray(to_numpy(value))
        converted = array.astype(dtype)
    except (TypeError, ValueError) as error:
        raise BatchError(f"the input {name!r} is {brief(value)}: expected an array of {dtype}") from error
    if array.dtype.kind in "iufb" and np.dtype(dtype).kind != "f" and not np.array_equal(converted, array):
        raise BatchError(
            f"the input {name!r} holds {array.dtype} numbers that are none in {dtype}, which the graph takes: {brief(value)}"
        )
    _expect_shape(name, array.shape, declared.tensor_type)
    return converted


def _expect_shape(name: str, shape: tuple[int, ...], declared: Any) -> None:
    """Raise BatchError for an input that has another shape than the graph was exported with."""
    if not declared.HasField("shape"):
        return
    dims = [
        dim.dim_value if dim.dim_value > 0 else None for dim in declared.shape.dim
    ]  # some exporters write -1 for any
    if len(dims) == len(shape) and all(dim in (None, size) for dim, size in zip(dims, shape, strict=True)):
        return
    wanted = ", ".join(
        str(dim.dim_value) if dim.dim_value > 0 else dim.dim_param or "any" for dim in declared.shape.dim
    )
    raise BatchError(
        f"the graph was exported for {name!r} of shape ({wanted}), and the batch has {shape}: export it with dynamic axes, or "
        "give a batch of that shape"
    )


class NumpyArrays:
    """The reading of what a graph returns, which is NumPy already, see `embgrad.backend.cotangents.Tensors`."""

    kind = "a NumPy array"
    scalars: tuple[tuple[int, ...], ...] = ((),)

    def is_tensor(self, value: object) -> bool:
        """Return whether a value is an array, or a number of NumPy."""
        return isinstance(value, (np.ndarray, np.generic))

    def dtype(self, tensor: Any) -> str:
        """Return the dtype's name."""
        return str(tensor.dtype)

    def to_numpy(self, tensor: Any) -> np.ndarray:
        """Return a copy, with half precision widened."""
        widened = np.float64 if tensor.dtype == np.float64 else np.float32
        return np.array(tensor, widened)

    def rows(self, tensor: Any, examples: np.ndarray, positions: np.ndarray) -> Any:
        """Return the selected rows."""
        return tensor[examples, positions]
