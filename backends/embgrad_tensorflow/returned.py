"""The tensors in what a model returns, and the same with others in their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import tensorflow as tf

from embgrad import structures
from embgrad_tensorflow.walk import kind_of

__all__ = ["mapped", "tensors_in", "unknown_in"]

#: What holds no tensor.
PLAIN: Final = (type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, tf.DType, tf.TensorShape)


def tensors_in(value: Any) -> list[Any]:
    """The tensors in a nest of sequences, mappings and data classes, in order."""
    return structures.every(value, _is_tensor)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The nest with what `change` gives for each tensor in its place; the nest itself stays as it is."""
    return structures.mapped(value, _is_tensor, change)


def unknown_in(value: Any) -> type | None:
    """The type of the first thing in a nest that may hold tensors which `mapped` does not come by; None where there is none."""
    found = structures.first(value, _is_unknown)
    return None if found is None else type(found)


def _is_unknown(value: Any) -> bool:
    known = structures.is_nest(value) or isinstance(value, (tf.Tensor, *PLAIN))
    return not (known or kind_of(type(value)) == "variable")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor)  # no sparse, ragged or symbolic one
