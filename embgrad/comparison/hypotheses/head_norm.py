"""Root-mean-square norms of each head's queries and keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.site import Site

__all__ = ["HeadNorm", "gains_of"]

#: The most gains of a layer that may be those of queries and keys.
MOST_GAINS: Final = 4


@dataclass(frozen=True, eq=False)
class HeadNorm:
    """The settings of the norms of queries and keys.

    Attributes:
        query: the gain of queries, (feature,).
        key: the gain of keys, (feature,).
        epsilon: the number that is added to the mean of squares.
        offset: what is added to the gains: 0, or 1.
        late: whether the norms come after rotary positions.
    """

    query: np.ndarray = field(repr=False)
    key: np.ndarray = field(repr=False)
    epsilon: float = 1e-6
    offset: float = 0.0
    late: bool = False

    def apply(self, query: np.ndarray, key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return both, (…, feature), after their norms."""
        return self._unit(query) * (self.query + self.offset), self._unit(key) * (self.key + self.offset)

    def _unit(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values / np.sqrt((values**2).mean(-1, keepdims=True) + self.epsilon))


def gains_of(site: Site, size: int) -> list[np.ndarray]:
    """Return the reference's weights in the site's layer that may be gains of heads of a size, (size,)."""
    own = [weight for weight in site.recordings[0].weights if weight.layer == site.layer and weight.shape == (size,)]
    return [weight.get().astype(np.float64) for weight in own[:MOST_GAINS]]
