"""Row-sparse table gradients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embgrad
from embgrad.results.row_sparse import scatter
from tests.unit.refusals import refused


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 6), st.sampled_from([np.float32, np.float64]))
def test_scatter_is_the_sum_over_lookups(seed: int, examples: int, positions: int, dtype: type) -> None:
    random = np.random.default_rng(seed)
    ids = random.integers(0, 7, (examples, positions))
    vectors = random.normal(size=(examples, positions, 3)).astype(dtype)
    expected = np.zeros((7, 3))
    for index in np.ndindex(*ids.shape):
        expected[ids[index]] += vectors[index]
    sparse = scatter(ids, vectors, 7)
    assert sparse.rows.tolist() == sorted(set(ids.ravel().tolist()))
    assert sparse.rows.dtype == np.int64
    assert sparse.values.dtype == dtype
    assert sparse.shape == (7, 3)
    np.testing.assert_allclose(sparse.to_dense(), expected, rtol=1e-6, atol=1e-7)
    assert sparse.to_dense().dtype == dtype


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
