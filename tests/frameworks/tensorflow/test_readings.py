"""How single operations are read: one-hot rows, products with a table, slices of rows, writes, and arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from embgrad_tensorflow.inputs import _integer_array, _native
from embgrad_tensorflow.onehot import ByTensor
from embgrad_tensorflow.operations import writes_of
from embgrad_tensorflow.slices import first_row


def test_a_tensor_in_the_memory_of_a_freed_one_is_another_key() -> None:
    known: ByTensor[str] = ByTensor()
    tensor, other = tf.zeros(2), tf.ones(2)
    known[tensor] = "known"
    assert (known.get(tensor), known.get(other)) == ("known", None)
    known._known[id(other)] = known._known[id(tensor)]
    assert known.get(other) is None
    known.forget(tensor)
    known.forget(tensor)
    assert known.get(tensor) is None


MATRIX = tf.zeros((6, 3))
PLAIN = ("begin_mask", 0, "end_mask", 0, "ellipsis_mask", 0, "new_axis_mask", 0, "shrink_axis_mask", 0)


@pytest.mark.parametrize(
    ("begin", "steps", "attrs", "columns", "first"),
    [
        ([2, 0], [1, 1], PLAIN, 3, 2),
        ([-2, 0], [1, 1], PLAIN, 3, 4),
        ([-9, 0], [1, 1], PLAIN, 3, 0),
        ([2, 0], [1, 1], ("begin_mask", 1), 3, 0),
        ([2, 0], [1, 1], ("begin_mask", 3), 3, 0),
        ([2, 0], [1, 1], ("begin_mask", 2), 3, 2),
        ([2, 0], [2, 1], PLAIN, 3, None),
        ([2, 0], [1, 1], ("begin_mask", 0, "new_axis_mask", 1), 3, None),
        ([2, 0], [1, 1], PLAIN, 2, None),
    ],
)
def test_the_first_row_of_a_slice(begin: Any, steps: Any, attrs: Any, columns: int, first: int | None) -> None:
    operands = (MATRIX, tf.constant(begin), tf.constant([6, 3]), tf.constant(steps))
    found = first_row("StridedSlice", operands, attrs, tf.zeros((2, columns)))
    assert (None if found is None else int(found)) == first
    assert first_row("StridedSlice", operands, attrs, tf.zeros((2, 3, 1))) is None
    whole = first_row("Slice", (MATRIX, tf.constant([3, 0]), tf.constant([2, 3])), (), tf.zeros((2, 3)))
    assert int(whole) == 3


@pytest.mark.parametrize(
    ("kind", "written"),
    [(b"AssignVariableOp", ["a"]), ("RngReadAndSkip", ["a"]), (b"StatefulPartitionedCall", ["a"]),
        (b"PartitionedCall", [None]), (b"__inference_call_3", [None]), (b"ResourceGather", []),
        (b"ResourceApplyAdam", ["a"]), (b"Mul", [])],
)  # fmt: skip
def test_the_variables_that_an_operation_may_write_to(kind: Any, written: list[Any]) -> None:
    assert writes_of(kind, ["a", "b"]) == written
    assert writes_of(kind, []) == ([None] if written else [])


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(np.array([2**31 - 1, -(2**31)]), tf.int32), (np.array([2**31]), tf.int64), (np.array([-(2**31) - 1]), tf.int64),
        (np.zeros(0, np.int64), tf.int32), (np.zeros(2, np.uint8), tf.uint8), (np.zeros(2), tf.float64)],
)  # fmt: skip
def test_whole_numbers_are_32_bits_wide_where_they_fit(value: np.ndarray, dtype: Any) -> None:
    assert _native(value).dtype == dtype
    np.testing.assert_array_equal(_native(value), value)
    assert (_integer_array(tf.constant(value)) is None) is (value.dtype.kind == "f")
    assert _native("text") == "text"
