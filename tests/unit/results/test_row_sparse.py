"""Row-sparse tables: sums over lookups, norms, inner products and clipped sums, as those of the dense matrices."""

from __future__ import annotations

import tracemalloc
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embgrad
from embgrad.results import table_norms
from embgrad.results.row_sparse import RowSparse, scatter, scatter_each
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.refusals import refused
from tests.unit.streams import labels, model, texts, tokenizer

SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed: int, examples: int, positions: int, vocab: int, dtype: type = np.float32) -> list[RowSparse]:
    random = np.random.default_rng(seed)
    ids = random.integers(0, vocab, (examples, positions))
    return scatter_each(ids, random.normal(size=(examples, positions, 3)).astype(dtype), vocab)


def dense(given: list[RowSparse]) -> np.ndarray:
    return np.stack([item.to_dense().astype(np.float64).ravel() for item in given])


def result(count: int = 7) -> embgrad.results.EmbeddingGradients:
    return embgrad.gradients(model(), texts(count), embgrad.CrossEntropy(labels(count)), tokenizer=tokenizer)


@given(SEEDS, st.integers(1, 5), st.integers(1, 9), st.integers(1, 12), st.sampled_from([np.float32, np.float64]))
def test_scatter_each_is_scatter_of_each(seed: int, examples: int, positions: int, vocab: int, dtype: type) -> None:
    random = np.random.default_rng(seed)
    ids = random.integers(0, vocab, (examples, positions))
    vectors = random.normal(size=(examples, positions, 3)).astype(dtype)
    for item, own, vector in zip(scatter_each(ids, vectors, vocab), ids, vectors, strict=True):
        alone = scatter(own, vector, vocab)
        np.testing.assert_array_equal(item.rows, alone.rows)
        np.testing.assert_array_equal(item.values, alone.values)
        assert (item.values.dtype, item.shape) == (dtype, (vocab, 3))
        assert item.values.base is None


def test_scatter_each_of_a_table_whose_rows_cannot_be_counted_together() -> None:
    tables = scatter_each(np.array([[5], [6], [7], [8]]), np.ones((4, 1, 2)), 2**62)
    assert [table.rows.tolist() for table in tables] == [[5], [6], [7], [8]]


@given(SEEDS, st.integers(1, 200), st.sampled_from([1, 2, 31, 32, 33, 34, 70]), st.integers(1, 5))
def test_scatter_sums_as_one_by_one_in_float64(seed: int, positions: int, repeats: int, block: int) -> None:
    random = np.random.default_rng(seed)
    ids = random.permutation(np.concatenate([np.zeros(repeats, int), random.integers(1, 300, positions)]))
    vectors = random.normal(size=(len(ids), 2)).astype(np.float32)
    expected = np.zeros((300, 2))
    np.add.at(expected, ids, vectors)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("embgrad.results.row_sparse.BLOCK", block)
        actual = scatter(ids, vectors, 300)
    np.testing.assert_allclose(actual.to_dense(), expected, rtol=1e-7, atol=1e-7)
    assert actual.rows.tolist() == sorted(set(ids.tolist()))
    assert (actual.rows.dtype, actual.values.dtype, actual.to_dense().dtype) == (np.int64, np.float32, np.float32)
    np.testing.assert_array_equal(actual.values, scatter(ids, vectors, 300).values)


def test_scatter_gives_no_negative_zeros() -> None:
    assert not np.signbit(scatter(np.array([1, 2, 2]), np.full((3, 1), -0.0), 3).values).any()


def test_scatter_takes_no_wide_copy_of_all_vectors() -> None:
    """A copy in float64 would take 15 MB."""
    random = np.random.default_rng(0)
    for ids in (random.integers(0, 50_000, 30_000), random.integers(0, 10, 30_000), np.zeros(30_000, int)):
        vectors = random.normal(size=(30_000, 64)).astype(np.float32)
        tracemalloc.start()
        scatter(ids, vectors, 50_000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1.6 * vectors.nbytes + 5e6


@given(SEEDS, st.integers(1, 8), st.integers(1, 12))
def test_norm_and_dot_are_those_of_the_matrices(seed: int, positions: int, vocab: int) -> None:
    first, second = drawn(seed, 2, positions, vocab)
    a, b = dense([first, second])
    assert first.norm() == pytest.approx(np.linalg.norm(a), rel=1e-12)
    assert first.dot(second) == pytest.approx(a @ b, rel=1e-12, abs=1e-12)
    assert first.dot(second) == second.dot(first)


def test_norms_of_small_numbers_do_not_vanish() -> None:
    assert RowSparse(np.array([1]), np.full((1, 4), 1e-30, np.float32), (9, 4)).norm() == pytest.approx(2e-30)


@pytest.mark.parametrize("size", [1e-200, 1e-155, 1e160, 1e300])
def test_norms_whose_squares_leave_the_range_of_float64(size: float) -> None:
    table = RowSparse(np.array([1, 3]), np.full((2, 2), size), (9, 2))
    assert table.norm() == pytest.approx(2 * size, rel=1e-15)
    np.testing.assert_allclose(embgrad.tables.clipped_table([table], size / 10).values, table.values / 20, rtol=1e-14)
    assert RowSparse(np.array([1]), np.zeros((1, 2)), (9, 2)).norm() == 0
    assert RowSparse(np.array([1]), np.array([[np.inf, 1]]), (9, 2)).norm() == np.inf


@given(SEEDS, st.integers(1, 6), st.integers(1, 6), st.integers(1, 9), st.sampled_from([1, 10_000]))
def test_products_are_those_of_the_matrices(seed: int, mine: int, theirs: int, vocab: int, block: int) -> None:
    first = [*drawn(seed, mine, 4, vocab), *drawn(seed + 1, 2, 9, vocab)]
    second = drawn(seed + 2, theirs, 7, vocab)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table_norms, "BLOCK_BYTES", block)
        own, across = embgrad.tables.table_products(first), embgrad.tables.table_products(first, second)
    a, b = dense(first), dense(second)
    np.testing.assert_allclose(own, a @ a.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(across, a @ b.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(own, own.T)
    assert (own.dtype, across.shape) == (np.float64, (mine + 2, theirs))
    np.testing.assert_allclose(embgrad.tables.table_norms(first), np.sqrt(np.diag(own)), rtol=1e-12)


def test_products_are_those_of_the_framework_s_own_table_gradients() -> None:
    count = 5
    own = [
        embgrad.tables.parameter_gradients(model(), [text], embgrad.CrossEntropy([label]), tokenizer=tokenizer)[
            "E"
        ].ravel()
        for text, label in zip(texts(count), labels(count), strict=True)
    ]
    expected = np.stack(own).astype(np.float64)
    np.testing.assert_allclose(
        embgrad.tables.table_products(result(count)), expected @ expected.T, rtol=1e-5, atol=1e-7
    )


def test_split_results_have_the_tables_of_their_own_pullbacks() -> None:
    def meeting(self: Any, input_ids: np.ndarray) -> Tensor:
        rows = lookup(self["E"], input_ids).mean(1)
        return rows * rows.mean(0)

    ids = [[3, 4], [4, 5], [6, 7]]
    met = ReferenceModel(meeting, {"E": np.random.default_rng(0).normal(size=(9, 3))})
    g = embgrad.gradients(met, ids, embgrad.Sum(), split=True)
    expected = dense(g.per_example())
    assert np.abs(expected @ expected.T - np.diag(np.diag(expected @ expected.T))).min() >= 0
    np.testing.assert_allclose(embgrad.tables.table_products(g), expected @ expected.T, rtol=1e-12)


@given(SEEDS, st.floats(0.01, 100))
def test_clipped_sums(seed: int, most: float) -> None:
    given = drawn(seed, 5, 4, 6, np.float64)
    whole = dense(given)
    scales = np.minimum(1, most / np.linalg.norm(whole, axis=1))
    actual = embgrad.tables.clipped_table(given, most)
    np.testing.assert_allclose(actual.to_dense().ravel(), scales @ whole, rtol=1e-10, atol=1e-12)
    loose = embgrad.tables.clipped_table(result(), float("inf"))
    np.testing.assert_allclose(loose.values, result().table().values, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, int, Fraction])
def test_the_precision_of_the_limit_does_not_limit_the_sum(kind: Any) -> None:
    values = np.random.default_rng(0).normal(size=(5, 7))
    actual = embgrad.tables.clipped_table([RowSparse(np.arange(5), values, (9, 7))], kind(1))
    np.testing.assert_allclose(actual.values, values / np.linalg.norm(values), rtol=1e-14)


def test_a_large_norm_is_scaled_down_to_a_small_one() -> None:
    large = RowSparse(np.array([2]), np.array([[3e20, 4e20]], np.float32), (9, 2))
    np.testing.assert_allclose(embgrad.tables.clipped_table([large], 1e-25).values, [[6e-26, 8e-26]], rtol=1e-6)


def test_an_example_without_gradient_is_not_divided_by_its_norm() -> None:
    nothing = RowSparse(np.array([2]), np.zeros((1, 3), np.float32), (9, 3))
    assert not embgrad.tables.clipped_table([nothing], 1.0).values.any()
    assert embgrad.tables.table_norms([nothing]).tolist() == [0.0]


def test_products_of_many_examples_that_share_a_row_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_norms, "BLOCK_BYTES", 2**16)
    many = [RowSparse(np.array([0, 1 + item]), np.full((2, 3), 1.0), (601, 3)) for item in range(600)]
    for other in (None, many):
        tracemalloc.start()
        products = embgrad.tables.table_products(many, other)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        np.testing.assert_array_equal(products, 3 + 3 * np.eye(600))
        assert peak - products.nbytes < 1e6


def test_no_example_and_no_shared_row() -> None:
    assert embgrad.tables.table_products([]).shape == (0, 0)
    assert embgrad.tables.table_norms([]).shape == (0,)
    a, b = (RowSparse(np.array([row]), np.ones((1, 2), np.float32), (9, 2)) for row in (1, 2))
    assert embgrad.tables.table_products([a], [b]).tolist() == [[0.0]]
    assert a.dot(b) == 0


@pytest.mark.parametrize(
    "function",
    [embgrad.tables.table_norms, embgrad.tables.table_products, lambda g: embgrad.tables.clipped_table(g, 1)],
)
def test_anything_but_a_table_is_refused(function: Any) -> None:
    with refused(embgrad.EmbgradError, "g is a list that holds a int: expected a result of embgrad.gradients"):
        function([1])
    with pytest.raises(embgrad.EmbgradError, match="g is a ndarray: expected"):
        function(np.zeros(3))
    hidden = embgrad.gradients(model(), texts(2), embgrad.Sum(), tokenizer=tokenizer, at="block")
    with pytest.raises(embgrad.errors.PointError, match="is no lookup"):
        function(hidden)


def test_tables_that_do_not_go_together() -> None:
    a, b = (RowSparse(np.array([1]), np.ones((1, dim), np.float32), (9, dim)) for dim in (2, 3))
    with pytest.raises(embgrad.EmbgradError, match=r"is of shape \(9, 3\): expected a RowSparse of shape \(9, 2\)"):
        a.dot(b)
    with pytest.raises(embgrad.EmbgradError, match="the other table is a int"):
        a.dot(3)
    for call in (lambda: embgrad.tables.table_products([a], [b]), lambda: embgrad.tables.clipped_table([a, b], 1)):
        with refused(embgrad.EmbgradError, "the shapes (9, 2) and (9, 3): expected gradients of one table"):
            call()
    for most in (0, -1, float("nan"), True, "1", np.complex128(1)):
        with pytest.raises(embgrad.EmbgradError, match=r"max_norm is .* expected a number above 0"):
            embgrad.tables.clipped_table([a], most)
    with pytest.raises(embgrad.EmbgradError, match="of one table at least"):
        embgrad.tables.clipped_table([], 1)


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
    sparse = embgrad.results.RowSparse(np.array([1]), np.ones((1, 4), np.float32), (1_000_000, 4))
    assert sparse.nbytes == 8 + 16
    with refused(MemoryError, "shape (1000000, 4) takes 16000000 bytes, more than the limit of 1000", "limit"):
        sparse.to_dense(limit=1000)
    assert sparse.to_dense(limit=None).shape == (1_000_000, 4)
    with pytest.raises(MemoryError, match=r"\.rows and \.values"):
        embgrad.results.RowSparse(np.array([1]), np.ones((1, 4)), (2**40, 4)).to_dense()


def test_repr() -> None:
    sparse = embgrad.results.RowSparse(np.array([1]), np.ones((1, 4), np.float32), (30522, 4))
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


@pytest.mark.parametrize("block", [1, 100, 10_000])
def test_mirrored_products_become_their_mean(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(table_norms, "BLOCK_BYTES", block)
    products = np.random.default_rng(0).normal(size=(7, 7))
    expected = (products + products.T) / 2
    table_norms._make_symmetric(products)
    np.testing.assert_array_equal(products, expected)
