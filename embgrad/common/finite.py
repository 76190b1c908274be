"""The first entry of an array that is not finite, for messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["NotFinite", "not_finite"]


@dataclass(frozen=True)
class NotFinite:
    """The entries of an array that are infinite or NaN.

    Attributes:
        value: the first of them.
    """

    value: float
    index: tuple[int, ...]
    count: int
    size: int

    def at(self, *axes: str) -> str:
        """Return "nan at example 0, position 3, and in 2 of 48 entries", with names for the first axes; without, the index."""
        named = ", ".join(f"{axis} {number}" for axis, number in zip(axes, self.index, strict=False))
        return f"{self.value} at {named or self.index}, and in {self.count} of {self.size} entries"


def not_finite(array: np.ndarray) -> NotFinite | None:
    """Return the first entry that is not finite and the number of them; None where all are finite."""
    finite = np.isfinite(array)
    if finite.all():  # nearly always, and the search for the index takes longer
        return None
    wrong = np.argwhere(~finite)
    index = tuple(map(int, wrong[0]))
    return NotFinite(array[index], index, len(wrong), array.size)
