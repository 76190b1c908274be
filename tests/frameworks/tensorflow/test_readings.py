"""How single operations are read: one-hot rows, products with a table, slices of rows, writes, and arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from embgrad_tensorflow.inputs import _integer_array, _native
from embgrad_tensorflow.onehot import ByTensor, OneHots, _compare_indices, _einsum, _one_hot_indices, is_identity
from embgrad_tensorflow.operations import writes_of
from embgrad_tensorflow.slices import first_row

IDS = tf.constant([[2, 0], [1, 2]])
COLUMN = IDS[..., None]


@pytest.mark.parametrize(
    ("indices", "on", "off", "axis", "places"),
    [
        (IDS, 1.0, 0.0, -1, [[2, 0], [1, 2]]),
        (IDS, 1.0, 0.0, 2, [[2, 0], [1, 2]]),
        (IDS, 1.0, 0.0, None, [[2, 0], [1, 2]]),
        (IDS, 1.0, 0.0, 1, None),
        (IDS, 1.0, 0.0, 0, None),
        (IDS, 2.0, 0.0, -1, None),
        (IDS, 1.0, 0.5, -1, None),
        (IDS - 1, 1.0, 0.0, -1, None),
    ],
)
def test_the_ones_of_one_hot(indices: Any, on: float, off: float, axis: int | None, places: Any) -> None:
    attrs = () if axis is None else ("axis", axis)
    found = _one_hot_indices((indices, tf.constant(3), tf.constant(on), tf.constant(off)), attrs)
    assert (None if found is None else found.tolist()) == places


@pytest.mark.parametrize(
    ("column", "numbers", "places"),
    [
        (COLUMN, tf.range(3), [[2, 0], [1, 2]]),
        (COLUMN, tf.range(3)[None], [[2, 0], [1, 2]]),
        (COLUMN, tf.range(2), None),
        (COLUMN - 1, tf.range(3), None),
        (COLUMN, tf.range(1, 4), None),
        (COLUMN, tf.constant([0]), None),
        (COLUMN, tf.constant(0), None),
        (COLUMN, tf.tile(tf.range(3)[None], (2, 1)), None),
        (COLUMN, tf.reshape(tf.range(3), (1, 1, 1, 3)), None),
        (tf.cast(COLUMN, tf.float32), tf.range(3.0), None),
        (IDS, tf.range(2), None),
    ],
)
def test_the_ones_of_a_comparison(column: Any, numbers: Any, places: Any) -> None:
    for inputs in ((column, numbers), (numbers, column)):
        found = _compare_indices(inputs)
        assert (None if found is None else found.tolist()) == places


@pytest.mark.parametrize(
    ("equation", "swapped"),
    [
        ("bsv,vd->bsd", False),
        (b"bsv, vd -> bsd", False),
        ("...v,vd->...d", False),
        ("vd,bsv->bsd", True),
        ("vd,...v->...d", True),
        ("v,vd->d", False),
        ("bsv,dv->bsd", None),
        ("bsv,vd->sbd", None),
        ("bsv,vd->bds", None),
        ("bbv,vd->bbd", None),
        ("bsd,dd->bsd", None),
        ("bsv,vd,de->bse", None),
    ],
)
def test_the_table_of_an_einstein_sum(equation: Any, swapped: bool | None) -> None:
    assert _einsum(equation) is swapped


@pytest.mark.parametrize(
    ("operation", "inputs", "kept"),
    [
        ("Cast", (), True),
        ("SelectV2", (tf.ones(()), tf.zeros(())), True),
        ("SelectV2", (tf.zeros(()), tf.ones(())), False),
        ("Select", (tf.ones(()), tf.ones(())), False),
        ("Transpose", (np.array([0, 1, 2]),), True),
        ("Transpose", (np.array([1, 0, 2]),), False),
    ],
)
def test_what_keeps_one_hot_rows(operation: str, inputs: tuple[Any, ...], kept: bool) -> None:
    rows, result, known = tf.one_hot(IDS, 3), tf.zeros((2, 2, 3)), OneHots()
    known.record(rows, np.array(IDS))
    known.follow(operation, (rows, *inputs), (), (result,))
    assert (known.indices(result) is not None) is kept


@pytest.mark.parametrize(("shape", "places"), [((4, 3), [2, 0, 1, 2]), ((2, 2, 3), [[2, 0], [1, 2]]), ((3, 4), None)])
def test_one_hot_rows_that_are_reshaped(shape: tuple[int, ...], places: Any) -> None:
    rows, result, known = tf.one_hot(IDS, 3), tf.zeros(shape), OneHots()
    known.record(rows, np.array(IDS))
    known.follow("Reshape", (rows, shape), (), (result,))
    found = known.indices(result)
    assert (None if found is None else found.tolist()) == places


@pytest.mark.parametrize(
    ("operation", "attrs", "table", "is_lookup"),
    [
        ("MatMul", ("transpose_a", False, "transpose_b", False), tf.ones((3, 4)), True),
        ("MatMul", ("transpose_a", False, "transpose_b", True), tf.ones((4, 3)), False),
        ("Einsum", ("equation", "bsv,vd->bsd"), tf.ones((3, 4)), True),
        ("Einsum", ("equation", "bsv,dv->bsd"), tf.ones((4, 3)), False),
        ("MatMul", (), tf.ones((2, 3, 4)), False),
        ("MatMul", (), tf.ones((3, 4), tf.int32), False),
    ],
)
def test_a_product_of_one_hot_rows_with_a_table(operation: str, attrs: Any, table: Any, is_lookup: bool) -> None:
    rows, known = tf.one_hot(IDS, 3), OneHots()
    assert known.look_up(operation, (rows, table), attrs) is None
    known.record(rows, np.array(IDS))
    found = known.look_up(operation, (rows, table), attrs)
    assert (found is not None) is is_lookup
    assert found is None or found[0] is table
    assert known.look_up(operation, (rows,), attrs) is None


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


@pytest.mark.parametrize(
    ("table", "expected"),
    [(np.eye(3), True), (np.eye(1), False), (np.eye(3, 4), False), (2 * np.eye(3), False), (np.ones((3, 3)), False)],
)
def test_the_identity(table: np.ndarray, expected: bool) -> None:
    assert is_identity(tf.constant(table)) is expected


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
    [
        (b"AssignVariableOp", ["a"]),
        ("RngReadAndSkip", ["a"]),
        (b"StatefulPartitionedCall", ["a"]),
        (b"PartitionedCall", [None]),
        (b"__inference_call_3", [None]),
        (b"ResourceGather", []),
        (b"ResourceApplyAdam", ["a"]),
        (b"Mul", []),
    ],
)
def test_the_variables_that_an_operation_may_write_to(kind: Any, written: list[Any]) -> None:
    assert writes_of(kind, ["a", "b"]) == written
    assert writes_of(kind, []) == ([None] if written else [])


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.array([2**31 - 1, -(2**31)]), tf.int32),
        (np.array([2**31]), tf.int64),
        (np.array([-(2**31) - 1]), tf.int64),
        (np.zeros(0, np.int64), tf.int32),
        (np.zeros(2, np.uint8), tf.uint8),
        (np.zeros(2), tf.float64),
    ],
)
def test_whole_numbers_are_32_bits_wide_where_they_fit(value: np.ndarray, dtype: Any) -> None:
    assert _native(value).dtype == dtype
    np.testing.assert_array_equal(_native(value), value)
    assert (_integer_array(tf.constant(value)) is None) is (value.dtype.kind == "f")
    assert _native("text") == "text"
