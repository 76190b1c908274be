"""Masks of attention: which keys each query sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Mask"]


@dataclass(frozen=True)
class Mask:
    """The settings of an attention's mask.

    Attributes:
        causal: whether a query sees no later keys.
        window: the number of positions that a causal query sees, itself among them; the largest distance of a key that any
            other query sees; None for all.
        shift: how many later keys a causal query sees; -1 where it does not see its own position.
        padding: whether keys at padding are hidden.
    """

    causal: bool = False
    window: int | None = None
    shift: int = 0
    padding: bool = True

    def seen(self, real: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return which keys some queries see, bool, (example, query, key).

        Args:
            real: the positions that are not padding, (example, position).
            rows: the queries' positions.
        """
        ahead = np.arange(real.shape[1]) - rows[:, None]
        seen = ahead <= self.shift if self.causal else np.ones(ahead.shape, bool)
        if self.window is not None:
            seen = seen & (ahead > self.shift - self.window if self.causal else abs(ahead) <= self.window)
        return np.asarray(seen & real[:, None] if self.padding else np.broadcast_to(seen, (len(real), *seen.shape)))
