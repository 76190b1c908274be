"""The first-order estimates of how an objective changes when a token is replaced, and the best replacements by them."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.engine.embedding_table import TableReader

__all__ = ["NONE", "top_substitutions", "top_substitutions_at"]

#: The id where a position has no further replacement.
NONE: Final = -1

#: The most numbers that are held at once beside the gradients and the result: those of rows of the table and of their scores.
MOST_NUMBERS: Final = 2**22

#: The most positions for which the table is read together.
MOST_POSITIONS: Final = 1024


def top_substitutions(
    gradients: np.ndarray,
    values: np.ndarray,
    ids: np.ndarray,
    table: TableReader,
    allowed: np.ndarray,
    top: int,
    sign: int,
    block: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids that change the objective most by the first-order estimate, (table[v] - e) · ∂L/∂e, for each position.

    It is the estimate of HotFlip (Ebrahimi et al. 2018). It is computed in float64, for a block of the vocabulary at a time. Of
    equal scores the lower id comes first.

    Args:
        gradients: the gradient at the lookup, ∂L/∂e, shape (n, dim).
        values: the row in place, e, likewise.
        ids: the id in place, which is none of the result, whole numbers of shape (n,).
        table: reads the rows of the table, (vocab, dim).
        allowed: the ids that may replace others, bool, shape (vocab,).
        top: how many ids.
        sign: 1 for the ids that raise L most, -1 for those that lower it most.
        block: how many rows of the table are held at once; None for as many as fit in 32 MiB with their scores.

    Returns:
        ids, int64, shape (n, top), best first; and their scores, the estimated changes of L, float64, likewise. Where fewer ids
        are allowed, rows of NaN not counted, the rest is -1, with the worst score, -inf times `sign`.
    """
    pieces = [
        _top(gradients[rows], values[rows], ids[rows], table, np.flatnonzero(allowed), top, sign, block)
        for rows in _slices(len(ids), MOST_POSITIONS)
    ]
    return np.concatenate([found for found, _ in pieces]), np.concatenate([scores for _, scores in pieces])


def top_substitutions_at(
    gradients: np.ndarray,
    values: np.ndarray,
    ids: np.ndarray,
    searched: np.ndarray,
    table: TableReader,
    allowed: np.ndarray,
    top: int,
    sign: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `top_substitutions` does for the positions of texts that are searched.

    Args:
        gradients: the gradient at the lookup, shape (text, position, dim).
        values: the rows in place, likewise.
        ids: the ids in place, shape (text, position).
        searched: true where a position is searched, bool, likewise.

    Returns:
        ids, int64, shape (text, position, top), and scores, float64, likewise; at other positions -1 and the worst score.
    """
    found = np.full((*searched.shape, top), NONE, np.int64)
    scores = np.full(found.shape, -np.inf * sign)
    if searched.any():
        found[searched], scores[searched] = top_substitutions(
            gradients[searched], values[searched], ids[searched], table, allowed, top, sign
        )
    return found, scores


def _top(
    gradients: np.ndarray,
    values: np.ndarray,
    ids: np.ndarray,
    table: TableReader,
    allowed: np.ndarray,
    top: int,
    sign: int,
    block: int | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `top_substitutions` does; `allowed` are ids in ascending order."""
    gradients = np.asarray(gradients, np.float64)
    count, dim = gradients.shape
    in_place = np.einsum("ij,ij->i", np.asarray(values, np.float64), gradients)
    best = _Best(count, top)
    for piece in _slices(len(allowed), block or max(1, MOST_NUMBERS // (2 * dim + 2 * count))):
        some = allowed[piece]
        scores = gradients @ np.asarray(table.rows(some), np.float64).T
        scores -= in_place[:, None]
        scores *= sign
        scores[np.isnan(scores)] = -np.inf  # rows of unused ids may hold NaN, which has no place in an order
        _exclude(scores, some, ids)
        best.add(some, scores)
    return best.ids, best.scores * sign


def _slices(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _exclude(scores: np.ndarray, some: np.ndarray, ids: np.ndarray) -> None:
    """Give each row's own id, where it is in the block, the worst score."""
    columns = np.minimum(np.searchsorted(some, ids), len(some) - 1)
    rows = np.flatnonzero(some[columns] == ids)
    scores[rows, columns[rows]] = -np.inf


class _Best:
    """The best ids of each row so far, best first."""

    def __init__(self, count: int, top: int) -> None:
        self.ids = np.full((count, top), NONE, np.int64)
        self.scores = np.full((count, top), -np.inf)

    def add(self, some: np.ndarray, scores: np.ndarray) -> None:
        """Take in the scores of further ids, (row, id), whose ids are higher than those before.

        Since equal scores go to the lower id, only higher scores than a row's last so far displace any.
        """
        top, last = self.ids.shape[1], self.scores[:, -1:]
        passing = scores > last
        if (
            scores.shape[1] > top and np.isneginf(last).any()
        ):  # nearly all pass, and only the best of them need be sorted
            passing &= scores >= np.partition(scores, -top)[:, -top, None]
        for row in np.flatnonzero(passing.any(1)).tolist():
            columns = np.flatnonzero(passing[row])
            ids = np.concatenate([self.ids[row], some[columns]])
            merged = np.concatenate([self.scores[row], scores[row, columns]])
            order = np.argsort(-merged, kind="stable")[:top]  # stable, so that of equal scores the lower id stays first
            self.ids[row], self.scores[row] = ids[order], merged[order]
