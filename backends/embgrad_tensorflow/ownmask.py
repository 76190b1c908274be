"""Tells whether a model that cannot take a mask makes the same one of the ids, as Keras's `mask_zero` does."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from embgrad.backend import PointValues
from embgrad.batch import TokenBatch
from embgrad.watching import PointWatch

__all__ = ["left_out"]


def left_out(
    unused: tuple[str, ...], batch: TokenBatch, watch: PointWatch, found: Iterable[PointValues]
) -> tuple[tuple[str, ...], int | None]:
    """What of the batch the model was run without, and the id at which it has made a mask of its own, see `Run`.

    A layer may drop a mask that it is handed. What then reads padding all the same has a gradient there.

    Args:
        unused: what of the batch the model cannot take.
        batch: what it was run on.
        watch: what took the pass down.
        found: what was read at points.
    """
    rows = [lookup.padding for lookup in watch.lookups if lookup.layout is not None]
    row = next((row for row in rows if row is not None), None)
    if "mask" not in unused or row is None or any(_reaches(one, batch.ids == row) for one in found):
        return unused, None
    same = np.array_equal(batch.ids != row, batch.real)
    return tuple(name for name in unused if not (same and name == "mask")), row


def _reaches(values: PointValues, where: np.ndarray) -> bool:
    """Whether a lookup of the ids has a gradient at any of these positions."""
    layout = None if values.lookup is None else values.lookup.layout
    gradients = [] if layout is None else [one for one in values.gradients if one is not None]
    return any(bool(layout.vectors(one)[where].any()) for one in gradients if layout is not None)
