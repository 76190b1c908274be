"""Differences of two models over their depth, for plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Depth"]


@dataclass(frozen=True)
class Depth:
    """Differences of two models by point, in the order of the pass.

    Attributes:
        curves: by name the relative L2 at each point; None where there is none.
        floor: the relative L2 that rounding alone causes at each point.
        faults: by the index of a point at fault the relative L2 of what arises there.
        layers: by the index of its first point each layer's number.
    """

    names: Sequence[str]
    curves: Mapping[str, Sequence[float | None]]
    floor: Sequence[float]
    faults: Mapping[int, float]
    layers: Mapping[int, int]

    def values_of(self, name: str) -> Iterator[tuple[int, float]]:
        """Yield the points of a curve where it has a value, by index."""
        return ((index, value) for index, value in enumerate(self.curves[name]) if value is not None)
