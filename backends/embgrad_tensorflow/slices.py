"""Recognise slices of a table that are lookups of consecutive rows, as layers take the vectors of positions 0, 1, 2, …"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import tensorflow as tf

from embgrad_tensorflow.onehot import attribute

__all__ = ["first_row"]

#: The attributes of a StridedSlice that change the number of axes.
RESHAPING: Final = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


def first_row(operation: str, operands: Sequence[Any], attrs: Sequence[Any], result: Any) -> Any:
    """Return the number of the first row of a slice of a matrix; None unless it takes whole consecutive rows.

    Returns:
        An integer tensor without axes.
    """
    matrix, begin = operands[:2]
    if (
        matrix.shape.rank != 2
        or result.shape.rank != 2
        or result.shape[1] is None
        or result.shape[1] != matrix.shape[1]
    ):
        return None
    if operation == "Slice":
        return begin[0]
    steps = tf.get_static_value(operands[3])
    if steps is None or any(step != 1 for step in steps) or any(attribute(attrs, name) for name in RESHAPING):
        return None
    if attribute(attrs, "begin_mask") & 1:
        return tf.zeros([], begin.dtype)
    rows = tf.cast(tf.shape(matrix)[0], begin.dtype)
    # Python counts a negative start from the end, and takes one before the beginning for the beginning.
    return tf.where(begin[0] < 0, tf.maximum(begin[0] + rows, 0), begin[0])
