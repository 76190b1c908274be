"""Measures of the difference between two arrays: relative L2, largest difference, cosine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Figures", "PositionFigures", "figures_of", "length", "lengths", "position_figures"]


@dataclass(frozen=True)
class Figures:
    """The measures of the difference between two arrays a and b.

    Attributes:
        relative_l2: ‖b − a‖ / ‖a‖; 0 where both are zero, infinite where only a is.
        largest: the largest absolute difference of two entries.
        cosine: the cosine of the angle between them; 1 where both are zero, 0 where only one is.
    """

    relative_l2: float
    largest: float
    cosine: float

    def to_dict(self) -> dict[str, float | None]:
        """Return the measures by name; None for those that are not finite, which JSON cannot represent."""
        figures = {"relative_l2": self.relative_l2, "largest": self.largest, "cosine": self.cosine}
        return {name: figure if np.isfinite(figure) else None for name, figure in figures.items()}


@dataclass(frozen=True, eq=False)
class PositionFigures:
    """The measures of the difference between a and b at each position: float64, shape (example, position), as in a.

    Entries are NaN where b has no such position. Each measure is defined as in `Figures`, over the position's vector.
    """

    relative_l2: np.ndarray
    largest: np.ndarray
    cosine: np.ndarray


def figures_of(a: np.ndarray, b: np.ndarray) -> Figures:
    """Return the measures for two arrays of the same shape, computed in float64."""
    a, b = (np.asarray(array, np.float64).reshape(1, -1) for array in (a, b))
    return Figures(*(float(figure.item()) for figure in _figures(a, b)))


def position_figures(a: np.ndarray, b: np.ndarray, matched: np.ndarray) -> PositionFigures:
    """Return the measures for each position.

    Args:
        a: values, (example, position, …).
        b: likewise, aligned with a.
        matched: whether b has a counterpart of a's position, bool, (example, position).
    """
    a, b = (np.asarray(array, np.float64).reshape(*matched.shape, -1) for array in (a, b))
    return PositionFigures(*(np.where(matched, figure, np.nan) for figure in _figures(a, b)))


def lengths(array: np.ndarray) -> np.ndarray:
    """Return the L2 norms along the last axis, without overflow or underflow of the squares."""
    unit = _unit(array)
    return np.asarray(np.linalg.norm(array / unit, axis=-1) * unit[..., 0])


def length(array: np.ndarray) -> float:
    """Return the L2 norm of a whole array of any shape, computed as `lengths` does, in float64."""
    return float(lengths(np.asarray(array, np.float64).reshape(-1)))


def _figures(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the relative L2, the largest difference and the cosine, each along the last axis."""
    unit, other_unit = _unit(a), _unit(b)
    common = np.maximum(unit, other_unit)
    difference = b / common - a / common
    a, b = a / unit, b / other_unit
    norm_a, norm_b, distance = (np.linalg.norm(array, axis=-1) for array in (a, b, difference))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        relative = np.where(distance == 0, 0.0, distance / norm_a * (common / unit)[..., 0])
        angle = ((a / norm_a[..., None]) * (b / norm_b[..., None])).sum(-1)
        largest = np.abs(difference).max(axis=-1, initial=0.0) * common[..., 0]
    cosine = np.where((norm_a > 0) & (norm_b > 0), angle, (norm_a == norm_b).astype(np.float64))
    return relative, largest, cosine


def _unit(array: np.ndarray) -> np.ndarray:
    """Return the power of two above the largest number along the last axis, with that axis of length 1; 1 for zeros.

    In these units no square overflows and no relevant square underflows, and the division does not round.
    """
    largest = np.abs(array).max(axis=-1, initial=0.0, keepdims=True)
    return np.asarray(np.ldexp(1.0, np.clip(np.frexp(np.where(largest > 0, largest, 1.0))[1], -1021, 1023)))
