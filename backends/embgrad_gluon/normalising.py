"""Layer norm's gradient in a few passes over memory: MXNet's own takes ten times its forward pass on a CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.lookup import Operation
from embgrad_gluon.walk import recorded_symbol

__all__ = ["LayerNorms"]

#: Of fewer numbers MXNet's own gradient takes no longer than a call of Python's out of MXNet does.
FEWEST: Final = 1 << 14

#: MXNet computes the mean and the deviation of other dtypes in that dtype, and its gradient in another.
DTYPES: Final = (np.float32, np.float64)


class LayerNorms:
    """The layer norms of one pass that have a gradient of ours.

    MXNet holds the functions of a graph in circles, so that what they keep for the pullback is freed by `release`.

    Args:
        is_wanted: returns whether the gradient with respect to an array is asked for.
    """

    def __init__(self, is_wanted: Callable[[Any], bool]) -> None:
        self._is_wanted = is_wanted
        self._made: list[Any] = []

    def run(self, operation: Operation, proceed: Callable[[], Any]) -> Any:
        """Run the operator, bit for bit, with a gradient of ours where that of its input alone is asked for.

        Args:
            operation: LayerNorm.
            proceed: runs it.
        """
        if not _serves(operation, self._is_wanted):
            return proceed()
        mx, attributes = import_mxnet(), operation.attributes
        attributes["output_mean_var"] = True
        with mx.autograd.pause():
            rows, mean, deviation = proceed()
        array, scale = operation.inputs[:2]
        function = _function()(rows, (array, mean, deviation, scale))
        self._made.append(function)
        return function(array)

    def release(self) -> None:
        """Free the arrays that the pullbacks needed."""
        for function in self._made:
            function.kept = ()
        self._made.clear()


def _serves(operation: Operation, is_wanted: Callable[[Any], bool]) -> bool:
    array, *others = operation.inputs
    axis = int(operation.attributes.get("axis", -1))
    return (
        import_mxnet().autograd.is_recording()
        and array.size >= FEWEST
        and array.dtype in DTYPES
        and array.ctx.device_type == "cpu"
        and axis in (-1, array.ndim - 1)
        and operation.out is None
        and str(operation.attributes.get("output_mean_var", False)) in ("False", "0")
        and _is_computed(array)  # MXNet loses what its functions give to an array that is marked itself
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
            along = np.einsum("...i,...i->...", scaled, normed)[..., None] / scaled.shape[-1]
            scaled -= scaled.mean(-1, keepdims=True)
            normed *= along
            scaled -= normed
            scaled /= deviation
            return mx.nd.from_numpy(scaled)

    return LayerNorm
