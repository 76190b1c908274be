"""A parameter of a native model that receives a weight of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from embgrad.backend.protocol import Weight

__all__ = ["WeightTarget"]


@dataclass(frozen=True)
class WeightTarget:
    """A parameter of a native model that receives a checkpoint's weight.

    Attributes:
        source: the weight's name in the checkpoint, in Hugging Face's spelling without a leading "bert.".
        shape: the shape of the checkpoint's weight, reversed if `transposed`. The native parameter has the same number of values
            in the same order, and mostly the same shape; Keras splits an axis of attention into heads.
        put: writes a value of that shape into the native parameter.
        native: the parameter's name, as in `parameter_gradients`.
        transposed: whether the native parameter is the transpose of the checkpoint's weight.
    """

    source: str
    shape: tuple[int, ...]
    put: Callable[[np.ndarray], None]
    native: str
    transposed: bool = False

    def as_in_checkpoint(self, value: np.ndarray) -> np.ndarray:
        """Return a value of the native parameter, or its gradient, in the checkpoint's layout, C-contiguous."""
        value = value.reshape(self.shape)
        return np.ascontiguousarray(value.T) if self.transposed else value

    def with_name(self, weight: Weight) -> Weight:
        """Return the native parameter's weight with the checkpoint's name, its values in the shape `self.shape`.

        Args:
            weight: the parameter as its backend describes it, see `embgrad.backend.Backend.weights`.
        """
        native = weight.shape

        def get() -> np.ndarray:
            return weight.get().reshape(self.shape)

        def rows(indices: np.ndarray) -> np.ndarray:
            return weight.rows(indices) if native == self.shape else get()[indices]

        def put(value: np.ndarray) -> None:
            weight.put(np.reshape(value, native))

        return replace(
            weight, shape=self.shape, get=get, rows=rows, put=put, canonical=self.source, transposed=self.transposed
        )
