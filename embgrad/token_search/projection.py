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
    # Of one embedding all similarities are divided by its length alike, which therefore does not matter.
    wide = embeddings.astype(np.float64)
    best = np.full(len(wide), -np.inf)
    ids = np.full(len(wide), allowed[0])
    for start in range(0, len(allowed), ROWS):
        block = allowed[start : start + ROWS]
        rows = table.rows(block).astype(np.float64)
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        lengths[lengths == 0] = 1
        for first in range(0, len(wide), EMBEDDINGS):
            part = slice(first, first + EMBEDDINGS)
            similarity = wide[part] @ rows.T / lengths
            similarity[np.isnan(similarity)] = -np.inf  # as of rows of unused ids that hold NaN
            place = similarity.argmax(1)
            largest = similarity[np.arange(len(place)), place]
            nearer = largest > best[part]
            best[part] = np.where(nearer, largest, best[part])
            ids[part] = np.where(nearer, block[place], ids[part])
    return ids
