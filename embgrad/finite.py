"""Tells whether a run's gradients are finite numbers."""

from __future__ import annotations

import numpy as np

from embgrad.backend import Run

__all__ = ["is_finite"]


def is_finite(found: Run) -> bool:
    """Return whether all gradients are finite numbers."""
    values = found.points.values()
    return all(bool(np.isfinite(one).all()) for point in values for one in point.gradients if one is not None)
