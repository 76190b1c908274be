"""Compute layer norm's gradient in a few passes over memory: MXNet's own takes ten times its forward pass on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.lookup import Operation
from embgrad_gluon.walk import recorded_symbol

__all__ = ["LayerNorms"]

#: For smaller arrays MXNet's own gradient is as quick as a call of Python from MXNet.
SMALLEST_SIZE: Final = 1 << 14

#: MXNet computes the mean and the deviation of other dtypes in that dtype, and its gradient in another.
DTYPES: Final = (np.float32, np.float64)


class LayerNorms:
    """The layer norms of one pass whose gradient is computed here.

    MXNet keeps the functions of a graph in reference cycles, so that `release` frees what they hold for the pullback.

    Args:
        is_needed: returns whether what runs now is differentiated.
        is_wanted: returns whether the gradient with respect to an array is requested.
    """

    def __init__(self, is_needed: Callable[[], bool], is_wanted: Callable[[Any], bool]) -> None:
        self._is_needed = is_needed
        self._is_wanted = is_wanted
        self._functions: list[Any] = []

    def run(self, operation: Operation, proceed: Callable[[], Any]) -> Any:
        """Run the operator, bit for bit, with the gradient computed here where only that of its input is requested."""
        if not (self._is_needed() and _is_applicable(operation, self._is_wanted)):
            return proceed()
        mx, attributes = import_mxnet(), operation.attributes
        attributes["output_mean_var"] = True
        with mx.autograd.pause():
            rows, mean, deviation = proceed()
        array, scale = operation.inputs[:2]
        function = _function()(rows, (array, mean, deviation, scale))
        self._functions.append(function)
        return function(array)

    def release(self) -> None:
        """Free the arrays that the pullbacks needed."""
        for function in self._functions:
            function.kept = ()
        self._functions.clear()


def _is_applicable(operation: Operation, is_wanted: Callable[[Any], bool]) -> bool:
    array, *others = operation.inputs
    axis = int(operation.attributes.get("axis", -1))
    return (
        import_mxnet().autograd.is_recording()
        and array.size >= SMALLEST_SIZE
        and array.dtype in DTYPES
        and array.ctx.device_type == "cpu"
        and axis in (-1, array.ndim - 1)
        and operation.out is None
        and str(operation.attributes.get("output_mean_var", False)) in ("False", "0")
        and _is_computed(array)  # MXNet loses the gradient from a function to an array that is marked itself
        and not any(is_wanted(other) or _is_computed(other) for other in others)
    )


def _is_computed(array: Any) -> bool:
    """Return whether an operator that was recorded gave the array."""
    symbol = recorded_symbol(array)
    return symbol is not None and symbol.get_children() is not None


@functools.cache
def _function() -> type:
    mx = import_mxnet()

    class LayerNorm(mx.autograd.Function):  # type: ignore[misc, name-defined]
        """Layer norm over the last axis, after Ba, Kiros and Hinton, 2016 (arXiv:1607.06450).

        Of y = scale · x̂ + shift, where x̂ = (x − mean) / deviation, and q = scale · ∂L/∂y, the gradient is
        ∂L/∂x = (q − mean(q) − x̂ · mean(q · x̂)) / deviation.
        """

        def __init__(self, rows: Any, kept: tuple[Any, ...]) -> None:
            super().__init__()
            self._rows = rows
            self.kept = kept

        def forward(self, _array: Any) -> Any:
            rows, self._rows = self._rows, None
            return rows

        def backward(self, cotangent: Any) -> Any:
            normed, mean, deviation, scale = (array.asnumpy() for array in self.kept)
            scaled = cotangent.asnumpy()
            normed -= mean
            normed /= deviation
            scaled *= scale
            projection = np.einsum("...i,...i->...", scaled, normed)[..., None] / scaled.shape[-1]
            scaled -= scaled.mean(-1, keepdims=True)
            normed *= projection
            scaled -= normed
            scaled /= deviation
            return mx.nd.from_numpy(scaled)

    return LayerNorm
