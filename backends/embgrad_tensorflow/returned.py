"""The tensors in what a model returns, and the same with others in their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from embgrad import structures

__all__ = ["mapped", "tensors_in"]


def tensors_in(value: Any) -> list[Any]:
    """The tensors in a nest of sequences, mappings and data classes, in order."""
    return structures.every(value, _is_tensor)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The nest with what `change` gives for each tensor in its place; the nest itself stays as it is."""
    return structures.mapped(value, _is_tensor, change)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor)  # no sparse, ragged or symbolic one
