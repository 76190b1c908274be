"""The difference up to which two correct gradients agree, given rounding errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, Final, Protocol

import numpy as np

from embgrad.errors import EmbgradError, brief

__all__ = [
    "HALVES",
    "check_tolerance",
    "coarsest",
    "computation_dtype",
    "tolerance_for",
    "tolerance_of",
    "unit_roundoff",
]

#: The unit roundoff of the dtypes with fewer digits than float32: half the gap between 1 and the next number.
HALVES: Final = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

#: The same, with NumPy's dtypes added.
ROUNDOFFS: Final = {**HALVES, **{name: float(np.finfo(name).eps) / 2 for name in ("float32", "float64")}}

#: The rounding error of one weight matrix, in unit roundoffs. Between PyTorch, TensorFlow and MXNet the gradient of a
#: BERT of 6 layers (40 weight matrices) differs by 1.7e-6, which is 4.5 unit roundoffs times √40.
PER_MATRIX: Final = 24.0

#: The number of weight matrices that is assumed where it is not known: that of a BERT of 12 layers.
USUAL_DEPTH: Final = 76


#: The largest number of weight matrices that is accepted from a file.
MOST_DEPTH: Final = 100_000


class Result(Protocol):
    """The attributes of an `EmbeddingGradients` or an `Attribution` that determine its precision."""

    @property
    def values(self) -> np.ndarray | None:
        """The gradient, or the contributions."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The versions, dtype and model with which it was computed."""


def check_tolerance(value: Any) -> float | None:
    """Return the option `tolerance` as a float; None where it is left to the rounding errors.

    True is refused: it would count as 1, a tolerance within which almost everything agrees.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < float("inf"):
        raise EmbgradError(f"tolerance is {brief(value)}: expected a number of at least 0, such as 1e-5, or None")
    return float(value)


def unit_roundoff(dtype: Any) -> float:
    """Return half the gap between 1 and the next number of a dtype; "bfloat16", which NumPy lacks, is known as well."""
    return ROUNDOFFS.get(str(dtype), ROUNDOFFS["float32"])


def coarsest(dtypes: Iterable[Any]) -> str:
    """Return the name of the dtype with the largest rounding error, which limits the precision of a comparison."""
    return max(map(str, dtypes), key=unit_roundoff)


def tolerance_for(dtype: Any, depth: int | None = None) -> float:
    """Return the relative L2 difference up to which two gradients of one function agree.

    Rounding errors of successive layers add up like independent ones, so the bound grows with the square root of the depth.

    Args:
        dtype: the dtype in which both were computed, such as "float32".
        depth: the number of weight matrices of the model; None where it is not known.
    """
    return PER_MATRIX * unit_roundoff(dtype) * float(np.sqrt(1 + (USUAL_DEPTH if depth is None else depth)))


def tolerance_of(a: Result, b: Result) -> float:
    """Return the tolerance for two results, from the dtypes and depths in their provenance.

    Of two dtypes the coarser counts, down to float32. Half precision counts only where both were computed in it: if only
    one was, that is the difference to report.
    """
    names = [computation_dtype(result) for result in (a, b)]
    coarse = coarsest(name if name in HALVES else "float32" for name in names)
    if not all(name in HALVES for name in names):
        coarse = "float64" if all(name == "float64" for name in names) else "float32"
    known = [depth for depth in map(remembered_depth, (a, b)) if depth is not None]
    return tolerance_for(coarse, max(known, default=None))


def computation_dtype(result: Result) -> str:
    """Return the name of the dtype in which a result was computed, by default that of its values."""
    return str(result.provenance.get("compute_dtype", getattr(result.values, "dtype", "float32")))


def remembered_depth(result: Result) -> int | None:
    """Return the number of weight matrices in a result's provenance; None where there is none or it is implausible.

    The number may come from a file, which must not be able to make the tolerance arbitrarily wide.
    """
    depth = result.provenance.get("matrices")
    if not isinstance(depth, int) or isinstance(depth, bool) or not 0 <= depth <= MOST_DEPTH:
        return None
    return depth
