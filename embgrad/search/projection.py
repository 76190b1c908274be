"""The rows of a table that are nearest to embeddings."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.engine.embedding_table import TableReader

__all__ = ["nearest_ids"]

#: How many rows of the table are read at a time, and with how many embeddings they are compared at a time.
ROWS: Final = 4096
EMBEDDINGS: Final = 1024


def nearest_ids(embeddings: np.ndarray, table: TableReader, allowed: np.ndarray) -> np.ndarray:
    """Return for each embedding the id whose row has the largest cosine similarity; of equal ones the lowest id.

    Args:
        embeddings: shape (n, dim).
        table: reads the rows.
        allowed: the ids to choose from, int64, ascending, one at least.

    Returns:
        int64, shape (n,).
    """
    directions = _directions(embeddings)
    best = np.full(len(embeddings), -np.inf)
    ids = np.full(len(embeddings), allowed[0])
    for start in range(0, len(allowed), ROWS):
        block = allowed[start : start + ROWS]
        rows = _directions(table.rows(block))
        for first in range(0, len(directions), EMBEDDINGS):
            part = slice(first, first + EMBEDDINGS)
            similarity = directions[part] @ rows.T
            place = similarity.argmax(1)
            largest = similarity[np.arange(len(place)), place]
            nearer = largest > best[part]
            best[part] = np.where(nearer, largest, best[part])
            ids[part] = np.where(nearer, block[place], ids[part])
    return ids


def _directions(vectors: np.ndarray) -> np.ndarray:
    """Return vectors of length 1 in float64; those of length 0 stay."""
    wide = vectors.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.asarray(wide / np.where(lengths == 0, 1, lengths))
