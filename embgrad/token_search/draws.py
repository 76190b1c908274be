"""Random choices of a search, which depend on the seed, the step, an example's own ids and the choice itself alone.

Each choice gets a number of its own by a hash, and the smallest numbers win. So two frameworks whose rounding differs, and which
therefore differ in a few of the choices that they offer, choose the same of all others.
"""

from __future__ import annotations

import numpy as np

__all__ = ["keys_of", "priorities"]


def keys_of(seed: int, step: int, ids: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Return a key for each example, uint64, shape (example,).

    Args:
        ids: the ids with which the search began, shape (example, position).
        real: true at real positions, likewise.
    """
    return np.array(
        [
            np.random.SeedSequence([seed, step, *row[own].tolist()]).generate_state(1, np.uint64)[0]
            for row, own in zip(ids, real, strict=True)
        ],
        np.uint64,
    )


def priorities(key: np.uint64, *choices: np.ndarray) -> np.ndarray:
    """Return uniform random numbers, uint64, one for each choice; arrays of whole numbers, which broadcast, name the choices.

    The mixing function is SplitMix64, of Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    mixed = np.asarray(key, np.uint64)
    for choice in choices:
        mixed = _mix(mixed ^ _mix(np.asarray(choice).astype(np.uint64)))
    return mixed


def _mix(value: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # the sums and products are meant modulo 2**64
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(value ^ (value >> np.uint64(31)))
