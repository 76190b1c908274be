"""The numbers of two results that are compared: of gradients their values, of attributions their contributions."""

from __future__ import annotations

import numpy as np

from embgrad.common.metrics import length, lengths
from embgrad.common.tolerance import tolerance_of
from embgrad.errors import EmbgradError
from embgrad.results.attribution import Attribution
from embgrad.results.io import Result

__all__ = ["name_of", "numbers_of", "usual_tolerance"]


def numbers_of(a: Result, b: Result) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers of two results of one class: values, or where an attribution has none, scores, (example, position, 1).

    Raises:
        EmbgradError: one is a gradient and the other an attribution.
    """
    if isinstance(a, Attribution) != isinstance(b, Attribution):
        raise EmbgradError(
            f"a is {name_of(a, article=True)} and b {name_of(b, article=True)}: expected two results of embgrad.gradients, or "
            "two of embgrad.attribute"
        )
    if a.values is None or b.values is None:
        assert isinstance(a, Attribution), "gradients have values"
        assert isinstance(b, Attribution), "gradients have values"
        return a.scores[..., None], b.scores[..., None]
    return a.values, b.values


def name_of(result: Result, *, article: bool = False) -> str:
    """Return "gradient" or "attribution", with an article if requested."""
    name = "attribution" if isinstance(result, Attribution) else "gradient"
    return f"{'an' if name == 'attribution' else 'a'} {name}" if article else name


def usual_tolerance(a: Result, b: Result) -> tuple[float, float | np.ndarray]:
    """Return the relative L2 up to which two results agree, and that of each example, from their dtypes and depths.

    Scores without values are differences of objectives, and have the rounding errors of those, however small they are.
    """
    tolerance = tolerance_of(a, b)
    if not isinstance(a, Attribution) or (a.values is not None and b.values is not None):
        return tolerance, tolerance
    sizes = lengths(a.scores)
    levels = np.abs(a.objective) * np.sqrt(a.real.sum(1))
    each = tolerance * np.maximum(1.0, np.divide(levels, sizes, out=np.ones_like(sizes), where=sizes > 0))
    size = length(a.scores)
    return (tolerance * max(1.0, length(levels) / size) if size else tolerance), each
