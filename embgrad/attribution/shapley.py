"""Shapley values of a function of coalitions: exact, and from samples."""

from __future__ import annotations

from math import comb
from typing import Final

import numpy as np

__all__ = ["MOST_MEMBERS", "exact_values", "fit_values", "sample_coalitions"]

#: The most members whose coalitions are enumerated.
MOST_MEMBERS: Final = 20


def sample_coalitions(members: int, most: int, generator: np.random.Generator) -> np.ndarray:
    """Return coalitions as a bool array, (coalition, member): all, in binary order, if they are at most `most`; else samples.

    The first is the empty one. Samples come in pairs of a coalition and its complement, after the empty and the whole one; their
    sizes are drawn by the Shapley kernel.
    """
    if members <= MOST_MEMBERS and 2**members <= most:
        return (np.arange(2**members)[:, None] >> np.arange(members) & 1).astype(bool)
    sizes = np.arange(1, members)
    chances = 1.0 / (sizes * (members - sizes))
    drawn = generator.choice(sizes, size=(most - 2) // 2, p=chances / chances.sum())
    ranks = np.argsort(generator.random((len(drawn), members)), axis=1).argsort(axis=1)
    half = ranks < drawn[:, None]
    pairs = np.stack([half, ~half], 1).reshape(-1, members)
    return np.concatenate([np.zeros((1, members), bool), np.ones((1, members), bool), pairs])


def exact_values(coalitions: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the Shapley values, (member,), from the values of all coalitions, in the order of `sample_coalitions`."""
    members = coalitions.shape[1]
    sizes = coalitions.sum(1)
    numbers = np.arange(len(coalitions))
    shapley = np.zeros(members)
    for member in range(members):
        without = numbers[~coalitions[:, member]]
        weights = np.array([1.0 / (members * comb(members - 1, size)) for size in range(members)])[sizes[without]]
        shapley[member] = (weights * (values[without | (1 << member)] - values[without])).sum()
    return shapley


def fit_values(coalitions: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the least-squares estimate of the Shapley values, (member,), from samples in the order of `sample_coalitions`.

    The values sum to the whole coalition's value minus the empty one's.
    """
    total = values[1] - values[0]
    rows = coalitions[2:].astype(np.float64)
    share = rows.mean(1)
    # Rows that sum to 0 leave the values' mean open, and the smallest solution has the mean 0.
    fitted = np.linalg.lstsq(rows - share[:, None], values[2:] - values[0] - share * total, rcond=None)[0]
    return np.asarray(total / rows.shape[1] + fitted)
