"""Convert arrays of any framework to NumPy, without importing a framework."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

__all__ = [
    "as_asked",
    "copy_owned",
    "exact_below",
    "is_tensor",
    "is_traced",
    "take_owned",
    "to_numpy",
    "whole_numbers",
    "widen",
]


def to_numpy(value: Any) -> np.ndarray:
    """Return the values of an array-like: a list, a NumPy array, or a tensor of PyTorch, TensorFlow or MXNet.

    The object's own conversion is used, so no framework is imported. The result may share memory with the object.

    Raises:
        ValueError: the nested lists are ragged, or the tensor cannot be converted to NumPy.
    """
    if is_traced(value):
        raise ValueError(
            "embgrad was called inside jax.jit (or grad, vmap), where arrays have no values; call it outside of that"
        )
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("it is a masked array, whose mask would be lost")
    try:
        return _convert(value)
    except (TypeError, RuntimeError, OverflowError) as error:  # the framework cannot convert its array to NumPy
        raise ValueError(str(error)) from error


def is_traced(value: Any) -> bool:
    """Return whether an object stands for an array while JAX traces a function, so that it has no values."""
    return any(base.__qualname__ == "Tracer" and base.__module__.startswith("jax.") for base in type(value).__mro__)


def _convert(value: Any) -> np.ndarray:
    if hasattr(value, "asnumpy"):  # MXNet
        return cast(np.ndarray, value.asnumpy())
    if hasattr(value, "detach") and hasattr(value, "cpu"):  # PyTorch
        return cast(np.ndarray, value.detach().cpu().numpy())
    if hasattr(value, "numpy") and callable(value.numpy):  # TensorFlow
        return np.asarray(value.numpy())
    if isinstance(value, (list, tuple)) and any(is_tensor(entry) for entry in value):
        return np.asarray([_convert(entry) for entry in value])
    return np.asarray(value)


def as_asked(array: np.ndarray, dtype: Any, copy: bool | None) -> np.ndarray:
    """Return an array as `__array__` requests it, in NumPy 1, which passes no `copy`, and in NumPy 2."""
    if copy is False and dtype is not None and np.dtype(dtype) != array.dtype:
        raise ValueError(f"the values are {array.dtype}: expected that dtype with copy=False, not {np.dtype(dtype)}")
    return array.astype(array.dtype if dtype is None else dtype, copy=bool(copy))


def is_tensor(value: Any) -> bool:
    """Return whether the value is a framework's array, by the methods that convert it to NumPy."""
    return any(hasattr(value, name) for name in ("asnumpy", "detach", "numpy"))


def widen(value: Any) -> np.ndarray:
    """Return the values as `to_numpy` does, and PyTorch's dtypes that NumPy lacks (bfloat16, float8, quantized) as exact float64.

    Do not use it where the dtype must show up to which number integers are exact.
    """
    try:
        return to_numpy(value)
    except ValueError:
        if not hasattr(value, "resolve_conj"):
            raise
    try:
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        tensor = tensor.dequantize() if tensor.is_quantized else tensor
        return cast(np.ndarray, (tensor.cdouble() if tensor.is_complex() else tensor.double()).numpy())
    except (TypeError, RuntimeError) as error:  # it is sparse
        raise ValueError(str(error)) from error


def copy_owned(array: np.ndarray) -> np.ndarray:
    """Return a C-contiguous copy of the array, float32 or float64 (half precision is widened)."""
    dtype = np.float64 if array.dtype == np.float64 else np.float32
    return np.array(array, dtype=dtype, order="C", copy=True)


def take_owned(array: np.ndarray) -> np.ndarray:
    """Return an array without other references as `copy_owned` would: the array itself where it qualifies, else a copy."""
    flags = array.flags
    fits = array.dtype in (np.float32, np.float64) and flags.c_contiguous and flags.writeable and flags.owndata
    return array if fits else copy_owned(array)


def whole_numbers(array: np.ndarray) -> np.ndarray | None:
    """Return the array as int64, or None where that would change or guess a value.

    Whole numbers stored as floats are accepted where the float dtype represents every integer of that size exactly and no
    other integer rounds to it: 2048 in float16 may have been 2049, so it is refused.
    """
    if array.dtype.kind in "iu":
        # Compare Python integers: NumPy 1 compares unsigned and signed 64-bit integers as floats.
        fits = array.size == 0 or int(array.max()) <= np.iinfo(np.int64).max
        return array.astype(np.int64) if fits else None
    if array.dtype.kind != "f":
        return None
    exact = (
        np.isfinite(array).all()
        and (np.floor(array) == array).all()
        and (np.abs(array) < exact_below(array.dtype)).all()
    )
    return array.astype(np.int64) if exact else None


def exact_below(dtype: np.dtype[Any]) -> float:
    """Return the bound below which a whole number in this float dtype has not been rounded from another."""
    return float(min(2.0 ** (np.finfo(dtype).nmant + 1), 2.0**62))
