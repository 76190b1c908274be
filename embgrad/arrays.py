"""Arrays of any framework as NumPy, without importing a framework."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

__all__ = ["owned", "to_numpy", "whole_numbers"]


def to_numpy(value: Any) -> np.ndarray:
    """The values of an array-like: a list, a NumPy array, or a tensor of PyTorch, TensorFlow or MXNet.

    Asks the object for its own conversion, so no framework is imported. May share memory with it.

    Raises:
        ValueError: the nested lists are ragged.
    """
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "asnumpy"):  # MXNet
        return cast(np.ndarray, value.asnumpy())
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # PyTorch
        return cast(np.ndarray, value.detach().cpu().numpy())
    if hasattr(value, "numpy") and callable(value.numpy):  # TensorFlow
        return np.asarray(value.numpy())
    return np.asarray(value)


def owned(array: np.ndarray) -> np.ndarray:
    """The array as C-contiguous memory of its own, float32 or float64 (half precision is widened)."""
    dtype = np.float64 if array.dtype == np.float64 else np.float32
    return np.array(array, dtype=dtype, order="C", copy=True)


def whole_numbers(array: np.ndarray) -> np.ndarray | None:
    """The array as int64, or None where that would change or guess a value.

    Whole numbers that come as floats are taken where the float type holds every integer of that size
    exactly: 2049 in float16 may have been 2048 or 2050 rounded, so it is refused.
    """
    if array.dtype.kind in "iu":
        fits = array.size == 0 or array.max() <= np.iinfo(np.int64).max
        return array.astype(np.int64) if fits else None
    if array.dtype.kind != "f":
        return None
    limit = 2.0 ** (np.finfo(array.dtype).nmant + 1)
    exact = np.isfinite(array).all() and (np.floor(array) == array).all() and (np.abs(array) <= limit).all()
    return array.astype(np.int64) if exact else None
