"""The measure of the difference between two readings of a point."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from embgrad.common.metrics import Figures, figures_of
from embgrad.common.tolerance import unit_roundoff
from embgrad.comparison.bisection.records import Reading

__all__ = ["Judge"]


class Judge:
    """The measure of how much two readings of a point differ, and whether by more than rounding.

    Args:
        real: the mask of real positions, (example, position).
        tolerance: the relative L2 up to which two readings agree.
        dtype: the dtype in which both models computed.
        sharp: whether a difference within the tolerance counts if a later one, beyond the tolerance, results from it.
        order: the order of examples, as in `Side`.
    """

    def __init__(
        self, real: np.ndarray, tolerance: float, dtype: str, *, sharp: bool, order: Sequence[int] | None = None
    ) -> None:
        self.real = real if order is None else real[list(order)]
        self.tolerance = tolerance
        self.dtype = dtype
        self.unit = unit_roundoff(dtype)
        self.sharp = sharp
        self.order = order

    def values(self, first: Reading, second: Reading) -> Figures | None:
        """Return how much the second value differs from the first at real positions; None if their shapes cannot be matched."""
        a, b = first.value, second.value
        if self.order is not None:
            if not first.is_batch or first.shared:
                return None
            a = a[list(self.order)]
        if first.is_batch and second.is_batch and a.shape[:2] == b.shape[:2] == self.real.shape:
            a, b = a[self.real], b[self.real]
            if a.size != b.size:  # different widths are a difference of the models, not of the layout
                return Figures(float("inf"), float("inf"), 0.0)
        return _figures(a, b)

    def gradients(self, first: Reading, second: Reading) -> Figures | None:
        """Return how much the second gradient differs from the first; None if one of them is missing."""
        a, b = first.gradient, second.gradient
        if a is None or b is None:
            return None
        if first.shared or second.shared:
            a, b = a.sum(0, keepdims=True), b.sum(0, keepdims=True)
        return _figures(a, b)

    def first(self, figures: Sequence[Figures | None], scales: Sequence[float | None] = ()) -> int | None:
        """Return the index of the first pair that differs; None if all agree.

        A pair within the tolerance is the first if it differs by far more than the rounding errors of the pairs before it, and by
        an amount similar to that of the later difference.

        Args:
            figures: the figures of the pairs, in the order of the search.
            scales: the magnitudes of the numbers that each pair was computed from, which determine its rounding errors; None if
                they are not known.
        """
        differing = [
            number for number, figure in enumerate(figures) if self._beyond(figure, scales[number] if scales else None)
        ]
        if not differing or not self.sharp:
            return differing[0] if differing else None
        last, noise = differing[0], 0.0
        final = figures[last]
        assert final is not None
        for number, figure in enumerate(figures[:last]):
            if figure is None:
                continue
            limit = min(self.tolerance, max(8 * self.unit, 10 * noise))
            if figure.relative_l2 > limit and final.relative_l2 < 30 * figure.relative_l2:
                return number
            noise = max(noise, figure.relative_l2)
        return last

    def _beyond(self, figure: Figures | None, scale: float | None) -> bool:
        if figure is None or figure.relative_l2 <= self.tolerance:
            return False
        return scale is None or figure.largest > 4 * self.unit * scale


def _figures(a: np.ndarray, b: np.ndarray) -> Figures | None:
    if a.shape != b.shape:
        if a.size != b.size:
            return None
        b = b.reshape(a.shape)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if not (np.isfinite(a) | same).all() or not (np.isfinite(b) | same).all():
        return Figures(float("inf"), float("inf"), 0.0)
    counted = np.isfinite(a)
    return figures_of(np.where(counted, a, 0), np.where(counted, b, 0))
