"""How far two right gradients may lie apart by rounding alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, Final, Protocol

import numpy as np

from embgrad.errors import EmbgradError, brief

__all__ = ["HALVES", "checked_tolerance", "coarsest", "tolerance_for", "tolerance_of", "unit_roundoff"]

#: The unit roundoff of the dtypes with fewer digits than float32: half the gap between 1 and the next number.
HALVES: Final = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

#: The same with the dtypes that NumPy has.
ROUNDOFFS: Final = {**HALVES, **{name: float(np.finfo(name).eps) / 2 for name in ("float32", "float64")}}

#: What rounding adds up to over one layer of weights, in unit roundoffs. Between PyTorch, TensorFlow and MXNet the
#: gradient of a BERT of 6 layers (40 weight matrices) differs by 1.7e-6, which is 4.5 of these times √40.
PER_MATRIX: Final = 24.0

#: The number of weight matrices that is taken where it is not known: that of a BERT of 12 layers.
USUAL_DEPTH: Final = 76


#: The most weight matrices that are believed.
MOST_DEPTH: Final = 100_000


class Result(Protocol):
    """The part of an `EmbeddingGradients` that says how precisely it was computed."""

    @property
    def values(self) -> np.ndarray:
        """The gradient."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """How it was made."""


def checked_tolerance(given: Any) -> float | None:
    """The option `tolerance`, a number of Python's or NumPy's; None where it is left to what rounding explains.

    Raises:
        EmbgradError: it is neither None nor a finite number of at least 0; True would count as 1, by which all but agrees.
    """
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, Real) or not 0 <= float(given) < float("inf"):
        raise EmbgradError(f"tolerance is {brief(given)}: expected a number of at least 0, such as 1e-5, or None")
    return float(given)


def unit_roundoff(dtype: Any) -> float:
    """Half the gap between 1 and the next number: of "bfloat16" too, which NumPy lacks."""
    return ROUNDOFFS.get(str(dtype), ROUNDOFFS["float32"])


def coarsest(dtypes: Iterable[Any]) -> str:
    """The name of the dtype in which most is lost to rounding: so well are results known in which all take part."""
    return max(map(str, dtypes), key=unit_roundoff)


def tolerance_for(dtype: Any, depth: int | None = None) -> float:
    """The relative L2 up to which two gradients of one function agree.

    Rounding errors of successive layers add up like independent ones, so the bound grows with the square root of the depth.

    Args:
        dtype: in which both were computed, such as "float32".
        depth: the number of weight matrices of the model; None where it is not known.
    """
    return PER_MATRIX * unit_roundoff(dtype) * float(np.sqrt(1 + (USUAL_DEPTH if depth is None else depth)))


def tolerance_of(a: Result, b: Result) -> float:
    """That for two results, by the dtypes and the depth which they remember.

    Of two dtypes the coarser counts, down to float32; a dtype of half precision only where both were computed in it: where
    one was, that is what sets the two apart.
    """
    names = [str(one.provenance.get("compute_dtype", one.values.dtype)) for one in (a, b)]
    coarse = coarsest(name if name in HALVES else "float32" for name in names)
    if not all(name in HALVES for name in names):
        coarse = "float64" if all(name == "float64" for name in names) else "float32"
    known = [depth for depth in map(remembered_depth, (a, b)) if depth is not None]
    return tolerance_for(coarse, max(known, default=None))


def remembered_depth(result: Result) -> int | None:
    """The number of weight matrices that a result says its model has; None where it says none, or what no model has.

    It may come from a file, and must not make the tolerance as wide as one likes.
    """
    depth = result.provenance.get("matrices")
    if not isinstance(depth, int) or isinstance(depth, bool) or not 0 <= depth <= MOST_DEPTH:
        return None
    return depth
