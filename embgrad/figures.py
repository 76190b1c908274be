"""Figures of how far one array is from another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Figures", "PositionFigures", "figures_of", "position_figures"]


@dataclass(frozen=True)
class Figures:
    """How far b is from a.

    Attributes:
        relative_l2: ‖b − a‖ / ‖a‖; 0 where both are zero, infinite where only a is.
        largest: the largest difference of two entries.
        cosine: of the angle between them; 1 where both are zero, 0 where one is.
    """

    relative_l2: float
    largest: float
    cosine: float

    def to_dict(self) -> dict[str, float | None]:
        """The figures by name; None where one is not finite, which JSON has no number for."""
        figures = {"relative_l2": self.relative_l2, "largest": self.largest, "cosine": self.cosine}
        return {name: figure if np.isfinite(figure) else None for name, figure in figures.items()}


@dataclass(frozen=True, eq=False)
class PositionFigures:
    """How far b is from a at each position: float64 arrays of shape (example, position), as in a.

    NaN stands where b has no such position. Each is defined as in `Figures`, over the position's vector.
    """

    relative_l2: np.ndarray
    largest: np.ndarray
    cosine: np.ndarray


def figures_of(a: np.ndarray, b: np.ndarray) -> Figures:
    """The figures of two arrays of the same shape, computed in float64."""
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    length, other = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    difference = float(np.linalg.norm(b - a))
    relative = difference / length if length else float("inf") if difference else 0.0
    # Divided one by one: the product of two tiny lengths would underflow.
    cosine = float((a / length) @ (b / other)) if length and other else float(length == other)
    return Figures(relative, float(np.abs(b - a).max(initial=0.0)), cosine)


def position_figures(a: np.ndarray, b: np.ndarray, matched: np.ndarray) -> PositionFigures:
    """The figures of each position.

    Args:
        a: values, (example, position, …).
        b: likewise, arranged as a.
        matched: where b has a partner for a's position, bool, (example, position).
    """
    a, b = (np.asarray(one, np.float64).reshape(*matched.shape, -1) for one in (a, b))
    length, other, difference = (np.linalg.norm(one, axis=-1) for one in (a, b, b - a))
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(difference == 0, 0.0, difference / length)
        angle = ((a / length[..., None]) * (b / other[..., None])).sum(-1)
    cosine = np.where((length > 0) & (other > 0), angle, (length == other).astype(np.float64))
    largest = np.abs(b - a).max(axis=-1, initial=0.0)
    return PositionFigures(*(np.where(matched, one, np.nan) for one in (relative, largest, cosine)))
