"""Families of texts that begin alike, and how far they do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from embgrad.inputs.batch import TokenBatch

__all__ = ["Family", "families"]

#: The fewest texts for which a pass over what they share is worth it.
FEWEST: Final = 4


@dataclass(frozen=True)
class Family:
    """Texts that have the same example and begin alike.

    Attributes:
        texts: the indices of the texts, shape (text,).
        ids: the ids that most of the texts have at each position, shape (position,); the ids of the shared text.
        shared: with how many positions of the shared text each text begins, at most up to the first that is read; (text,).
        first: the first position whose row the objective reads.
        end: the position after the last of these, up to which texts are run.
    """

    texts: np.ndarray
    ids: np.ndarray
    shared: np.ndarray
    first: int
    end: int


def families(batch: TokenBatch, examples: np.ndarray, places: tuple[np.ndarray, np.ndarray]) -> Iterator[Family]:
    """Yield the families of texts whose evaluation from where they differ on saves more than it costs.

    Texts with padding before or between their real positions are in none.

    Args:
        examples: the example that each text is a version of, shape (text,).
        places: the rows that the objective reads, as (texts, positions), see `Objective.places`.
    """
    read = np.zeros(batch.shape, bool)
    read[places] = True
    first, end = read.argmax(1), batch.shape[1] - read[:, ::-1].argmax(1)
    before = np.arange(batch.shape[1]) < end[:, None]
    suits = read.any(1) & (batch.real | ~before).all(1)
    kinds = np.stack([examples, first, end], 1)
    for kind in np.unique(kinds[suits], axis=0):
        texts = np.flatnonzero(suits & (kinds == kind).all(1))
        if len(texts) < FEWEST or (batch.types is not None and (batch.types[texts] != batch.types[texts[0]]).any()):
            continue
        ids = _most_frequent(batch.ids[texts])
        differs = batch.ids[texts] != ids
        differs[:, kind[1] :] = True
        family = Family(texts, ids, differs.argmax(1), int(kind[1]), int(kind[2]))
        if family.shared.sum() > 2 * family.end:  # the shared text is run, and continued
            yield family


def _most_frequent(ids: np.ndarray) -> np.ndarray:
    """Return the id that most of the texts have at each position; of equally frequent ones the smallest."""
    most = np.empty(ids.shape[1], np.int64)
    for position, column in enumerate(ids.T):
        values, counts = np.unique(column, return_counts=True)
        most[position] = values[counts.argmax()]
    return most
