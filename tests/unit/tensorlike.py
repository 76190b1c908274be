"""Objects that convert to NumPy as the tensors of the frameworks do."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["GluonLike", "TensorFlowLike", "TorchLike"]


class GluonLike:
    """Converts as an MXNet array does."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def asnumpy(self) -> np.ndarray:
        return self._values


class TorchLike:
    """Converts as a PyTorch tensor on another device does: `numpy` works only after `detach().cpu()`."""

    def __init__(self, values: Any, ready: tuple[str, ...] = ()) -> None:
        self._values = np.asarray(values)
        self._ready = ready

    def detach(self) -> TorchLike:
        return TorchLike(self._values, (*self._ready, "detach"))

    def cpu(self) -> TorchLike:
        return TorchLike(self._values, (*self._ready, "cpu"))

    def numpy(self) -> np.ndarray:
        if self._ready != ("detach", "cpu"):
            raise TypeError("can't convert this tensor to numpy")
        return self._values


class TensorFlowLike:
    """Converts as an eager TensorFlow tensor does."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def numpy(self) -> Any:
        return self._values
