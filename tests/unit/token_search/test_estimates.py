"""The best replacements by first-order estimates: those of a dense computation, in whatever blocks the table is read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embgrad.engine.embedding_table import TableReader
from embgrad.token_search import estimates
from embgrad.token_search.estimates import top_substitutions


def reader(table: np.ndarray) -> TableReader:
    return TableReader(*table.shape, lambda indices: table[indices].copy())


def dense(
    gradients: np.ndarray,
    values: np.ndarray,
    ids: np.ndarray,
    table: np.ndarray,
    allowed: np.ndarray,
    top: int,
    sign: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the result from the scores of all ids at once; of equal scores the lower id is first."""
    scores = (gradients[:, None] * (table.astype(np.float64) - values[:, None])).sum(-1)
    scores[:, ~allowed] = -np.inf * sign
    scores[np.arange(len(ids)), ids] = -np.inf * sign
    order = np.argsort(-sign * scores, axis=1, kind="stable")[:, :top]
    best = np.take_along_axis(scores, order, 1)
    pad = ((0, 0), (0, top - order.shape[1]))
    chosen = np.where(np.isinf(best), -1, order)
    return np.pad(chosen, pad, constant_values=-1), np.pad(best, pad, constant_values=-np.inf * sign)


@given(
    seed=st.integers(0, 2**16),
    count=st.integers(1, 6),
    vocab=st.integers(1, 40),
    top=st.integers(1, 50),
    block=st.none() | st.integers(1, 45),
    sign=st.sampled_from([1, -1]),
)
def test_the_best_are_those_of_a_dense_computation_in_any_blocks(
    seed: int, count: int, vocab: int, top: int, block: int | None, sign: int
) -> None:
    """Whole numbers are computed without rounding, so that there are many equal scores."""
    random = np.random.default_rng(seed)
    table = random.integers(-2, 3, (vocab, 3)).astype(np.float32)
    gradients = random.integers(-2, 3, (count, 3)).astype(np.float32)
    ids, allowed = random.integers(0, vocab, count), random.random(vocab) < 0.7
    expected = dense(gradients, table[ids], ids, table, allowed, top, sign)
    actual = top_substitutions(gradients, table[ids], ids, reader(table), allowed, top, sign, block)
    np.testing.assert_array_equal(actual[0], expected[0])
    np.testing.assert_array_equal(actual[1], expected[1])
    assert actual[0].dtype == np.int64
    assert actual[1].dtype == np.float64


@pytest.mark.parametrize("sign", [1, -1])
def test_float32_values_are_multiplied_in_float64(sign: int) -> None:
    random = np.random.default_rng(1)
    table = random.normal(size=(3000, 16)).astype(np.float32) + np.float32(
        1e4
    )  # products of float32 would lose all digits
    gradients = random.normal(size=(5, 16)).astype(np.float32)
    ids, allowed = random.integers(0, 3000, 5), np.ones(3000, bool)
    expected = dense(gradients.astype(np.float64), table[ids].astype(np.float64), ids, table, allowed, 256, sign)
    actual = top_substitutions(gradients, table[ids], ids, reader(table), allowed, 256, sign)
    np.testing.assert_array_equal(actual[0], expected[0])
    np.testing.assert_allclose(actual[1], expected[1], atol=1e-8)


def test_an_id_that_is_not_in_the_blocks_is_not_confused_with_a_neighbour() -> None:
    """The id in place lies beyond the last allowed one, where a search for its column ends at the last."""
    table = np.arange(8.0)[:, None]
    ids, _ = top_substitutions(
        np.ones((1, 1)), table[[7]], np.array([7]), reader(table), np.arange(8) < 4, 4, 1, block=2
    )
    assert ids.tolist() == [[3, 2, 1, 0]]


@pytest.mark.parametrize("sign", [1, -1])
def test_rows_of_nan_are_never_offered_and_displace_no_others(sign: int) -> None:
    random = np.random.default_rng(0)
    table, gradients, allowed = random.normal(size=(50, 4)), random.normal(size=(2, 4)), np.ones(50, bool)
    values, ids = table[:2].copy(), np.arange(2)
    allowed[[3, 7]] = False
    expected = top_substitutions(gradients, values, ids, reader(table), allowed, 5, sign)
    table[3], table[7, 0] = np.nan, np.nan
    found = top_substitutions(gradients, values, ids, reader(table), np.ones(50, bool), 5, sign)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])


def test_many_positions_are_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(2)
    table, ids = random.normal(size=(30, 4)), random.integers(0, 30, 11)
    gradients, allowed = random.normal(size=(11, 4)), np.ones(30, bool)
    whole = top_substitutions(gradients, table[ids], ids, reader(table), allowed, 7, 1)
    monkeypatch.setattr(estimates, "MOST_POSITIONS", 4)
    pieces = top_substitutions(gradients, table[ids], ids, reader(table), allowed, 7, 1)
    np.testing.assert_array_equal(whole[0], pieces[0])
    np.testing.assert_allclose(whole[1], pieces[1], rtol=1e-12)


@pytest.mark.parametrize(("count", "dim"), [(1, 8), (500, 8), (3, 768)])
def test_the_blocks_of_the_table_bound_the_memory(monkeypatch: pytest.MonkeyPatch, count: int, dim: int) -> None:
    monkeypatch.setattr(estimates, "MOST_NUMBERS", 20_000)
    asked: list[int] = []
    table = np.zeros((4000, dim), np.float32)

    def rows(indices: np.ndarray) -> np.ndarray:
        asked.append(len(indices))
        return table[indices]

    gradients = np.zeros((count, dim), np.float32)
    made = TableReader(4000, dim, rows)
    top_substitutions(gradients, gradients, np.zeros(count, int), made, np.ones(4000, bool), 4, 1)
    assert max(asked) * (2 * dim + 2 * count) <= 20_000
    assert sum(asked) == 4000


def test_of_many_equal_scores_the_lower_ids_come_first() -> None:
    table, gradients = np.ones((60, 3)), np.ones((1, 3))
    for block in (None, 17):
        ids, scores = top_substitutions(
            gradients, 0 * gradients, np.array([4]), reader(table), np.ones(60, bool), 40, 1, block
        )
        assert ids[0].tolist() == [number for number in range(41) if number != 4]
        assert (scores == 3).all()
