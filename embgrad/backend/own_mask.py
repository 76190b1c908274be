"""The mask that a model makes of its ids by itself, as Keras's `mask_zero` does, where it takes none from the batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from embgrad.backend.protocol import PointValues, Reduce
from embgrad.inputs.batch import TokenBatch

__all__ = ["GradientSizes", "unused_inputs"]


class GradientSizes:
    """The magnitudes of gradients that a request reduces as soon as they arrive, summed over the sets of cotangents."""

    def __init__(self, reduce: Reduce) -> None:
        self._reduce = reduce
        self._sizes: dict[str, np.ndarray] = {}

    def reduce(self, key: str, gradient: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return the reduced gradient, and add its magnitude to those of the point."""
        self._sizes[key] = self._sizes.get(key, 0) + np.abs(gradient)
        return self._reduce(key, gradient, value)

    def of(self, points: Mapping[str, PointValues], keys: Mapping[str, str]) -> list[PointValues]:
        """Return the values at the points, with the recorded magnitudes in place of reduced gradients."""
        return [replace(values, gradients=(self._sizes.get(keys[name]),)) for name, values in points.items()]


def unused_inputs(
    unused: tuple[str, ...], batch: TokenBatch, rows: Iterable[int | None], points: Iterable[PointValues]
) -> tuple[tuple[str, ...], int | None]:
    """Return the inputs that the model was run without, and the id at which it made a mask of its own, see `Run`.

    A layer may drop a mask that it is handed. What then reads padding all the same has a gradient there.

    Args:
        unused: the names of the inputs that the model cannot take.
        batch: the batch that it was run on.
        rows: the rows that the layers of the lookups of the ids mask; None for those that mask none.
        points: the values read at points.
    """
    row = next((row for row in rows if row is not None), None)
    if "mask" not in unused or row is None or any(_reaches(values, row) for values in points):
        return unused, None
    same = np.array_equal(batch.ids != row, batch.real)
    return tuple(name for name in unused if not (same and name == "mask")), row


def _reaches(values: PointValues, row: int) -> bool:
    """Return whether a lookup of the ids has a gradient where it looks up this row."""
    lookup = values.lookup
    if lookup is None or lookup.layout is None:
        return False
    where = lookup.indices == row
    gradients = [gradient for gradient in values.gradients if gradient is not None]
    return any(bool(gradient.reshape(-1, *where.shape, gradient.shape[-1])[:, where].any()) for gradient in gradients)
