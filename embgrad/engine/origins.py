"""The origins of results: the versions, and the model's class and depth."""

from __future__ import annotations

import contextlib
import platform
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.backend.protocol import BoundModel
from embgrad.toolkit.signature import as_parts
from embgrad.version import __version__

__all__ = ["model_name", "origins"]

#: The origins that are the same throughout the process.
PLATFORM: Final = {"embgrad": __version__, "python": platform.python_version(), "numpy": np.__version__}

#: By a model's first part, the identities of its other parts and the number of its matrices.
_matrices: WeakKeyDictionary[Any, tuple[tuple[int, ...], int]] = WeakKeyDictionary()


def origins(bound: BoundModel) -> dict[str, Any]:
    """Return the provenance that depends on the model alone: the versions, and the model's class and depth."""
    return {
        **PLATFORM,
        "backend": bound.backend.name,
        "versions": dict(bound.backend.versions()),
        "model": model_name(bound),
        **({"matrices": _count_of_matrices(bound)} if bound.supports("weights") else {}),
    }


def model_name(bound: BoundModel) -> str:
    """Return the name of the model's class, or of those of its parts."""
    return " + ".join([f"{type(part).__module__}.{type(part).__qualname__}" for part in as_parts(bound.model)])


def _count_of_matrices(bound: BoundModel) -> int:
    """Return the number of weights with two axes or more, from which `compare` estimates rounding errors.

    They are counted once for each model, since that takes time; a model that is changed afterwards has about as many.
    """
    first, *others = as_parts(bound.model)
    identities = tuple(map(id, others))
    try:
        known = _matrices.get(first)
    except TypeError:  # the model has no weak references
        known = None
    if known is not None and known[0] == identities:
        return known[1]
    count = sum(weight.is_matrix for weight in bound.backend.weights(bound.model))
    with contextlib.suppress(TypeError):
        _matrices[first] = (identities, count)
    return count
