"""Numbers that are added to an attention's scores by the distance of query and key."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

__all__ = ["PositionBias", "slopes_of"]


@dataclass(frozen=True, eq=False)
class PositionBias:
    """Numbers by head and distance: those of ALiBi, or a table by buckets of distances, as in T5.

    Attributes:
        table: (bucket, head), the numbers by buckets; None for ALiBi.
        causal: whether all buckets are for earlier keys; otherwise half of them are for later ones.
        longest: the distance from which all are in the last bucket.
        sense: 1, or -1 where earlier keys count as later ones.
    """

    table: np.ndarray | None = field(default=None, repr=False)
    causal: bool = False
    longest: int = 128
    sense: int = 1

    def of(self, heads: int, positions: int) -> np.ndarray:
        """Return the numbers, (head, query, key)."""
        key = (heads, positions)
        if key not in self._kept:
            self._kept[key] = self._computed(heads, positions)
        return self._kept[key]

    @cached_property
    def _kept(self) -> dict[tuple[int, int], np.ndarray]:
        return {}

    def _computed(self, heads: int, positions: int) -> np.ndarray:
        ahead = self.sense * (np.arange(positions) - np.arange(positions)[:, None])
        if self.table is None:
            return np.asarray(-slopes_of(heads)[:, None, None] * abs(ahead))
        return np.asarray(np.moveaxis(self.table[self._bucket(ahead)], -1, 0))

    def _bucket(self, ahead: np.ndarray) -> np.ndarray:
        """Return the buckets of distances, as defined by Raffel et al., 2020, in their code."""
        assert self.table is not None, "ALiBi has no buckets"
        count = len(self.table)
        start = np.zeros(ahead.shape, int)
        distance = np.maximum(-ahead, 0)
        if not self.causal:
            count //= 2
            start = np.where(ahead > 0, count, 0)
            distance = abs(ahead)
        exact = count // 2
        far = np.log(np.maximum(distance, 1) / exact) / math.log(self.longest / exact) * (count - exact)
        coarse = np.minimum(exact + np.maximum(far, 0).astype(int), count - 1)
        return np.asarray(start + np.where(distance < exact, distance, coarse))

    @property
    def text(self) -> str:
        """A readable description."""
        if self.table is None:
            return "that of ALiBi"
        sides = "earlier keys" if self.causal else "both sides"
        turned = "" if self.sense > 0 else ", of the opposite distances"
        return f"by {len(self.table)} buckets of {sides} up to distance {self.longest}{turned}"


def slopes_of(heads: int) -> np.ndarray:
    """Return ALiBi's slopes, (head,), as defined by Press et al., 2022."""
    power = 2 ** math.floor(math.log2(heads))
    first = 2.0 ** (-8.0 / power * np.arange(1, power + 1))
    between = 2.0 ** (-4.0 / power * np.arange(1, 2 * power + 1, 2))
    return np.concatenate([first, between[: heads - power]])
