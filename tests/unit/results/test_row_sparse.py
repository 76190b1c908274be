"""Row-sparse table gradients."""

from __future__ import annotations

import numpy as np
import pytest

import embgrad
from embgrad.results.row_sparse import scatter
from tests.unit.refusals import refused


def test_many_small_summands_are_not_lost() -> None:
    vectors = np.full((1, 100_001, 1), 1e-8, np.float32)
    vectors[0, 0] = 1
    total = scatter(np.zeros((1, 100_001), int), vectors, 1).values[0, 0]
    assert total == pytest.approx(1.001, abs=1e-6)


def test_a_row_whose_sum_is_zero_is_still_there() -> None:
    assert scatter(np.array([2, 2]), np.array([[1.0], [-1.0]]), 5).rows.tolist() == [2]


def test_no_lookup_at_all() -> None:
    sparse = scatter(np.zeros((0, 3), int), np.zeros((0, 3, 2)), 5)
    assert sparse.rows.tolist() == []
    assert not sparse.to_dense().any()


def test_memory_is_only_taken_on_purpose() -> None:
    sparse = embgrad.RowSparse(np.array([1]), np.ones((1, 4), np.float32), (1_000_000, 4))
    assert sparse.nbytes == 8 + 16
    with refused(MemoryError, "shape (1000000, 4) takes 16000000 bytes, more than the limit of 1000", "limit"):
        sparse.to_dense(limit=1000)
    assert sparse.to_dense(limit=None).shape == (1_000_000, 4)
    with pytest.raises(MemoryError, match=r"\.rows and \.values"):
        embgrad.RowSparse(np.array([1]), np.ones((1, 4)), (2**40, 4)).to_dense()


def test_repr() -> None:
    sparse = embgrad.RowSparse(np.array([1]), np.ones((1, 4), np.float32), (30522, 4))
    assert repr(sparse) == "RowSparse(1 of 30522 rows × 4, float32)"


def test_it_is_the_whole_matrix_to_numpy() -> None:
    item = scatter(np.array([[1, 3]]), np.ones((1, 2, 2), np.float32), 4)
    dense = np.array([[0, 0], [1, 1], [0, 0], [1, 1]], np.float32)
    for array in (np.asarray(item), np.array(item), item.__array__(), item.__array__(np.float32, copy=True)):
        np.testing.assert_array_equal(array, dense)
        assert array.dtype == np.float32
    assert np.asarray(item, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match="becomes an array by filling in its zeros: expected copy=None or copy=True"):
        item.__array__(copy=False)
    large = scatter(np.array([[1]]), np.ones((1, 1, 2**10), np.float32), 2**21)
    with pytest.raises(MemoryError, match=r"use \.rows and \.values, or pass limit=None"):
        np.asarray(large)
