"""Asks a backend, and the model itself where a graph of it gave a gradient that is not finite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from embgrad.backend import Backend, Request, Run
from embgrad.batch import TokenBatch
from embgrad.replaying import Tries

__all__ = ["is_finite", "run_finite"]


def run_finite(backend: Backend, model: Any, batch: TokenBatch, request: Request) -> Run:
    """What the backend gives, by the framework's own gradients where those of a graph overflow.

    A backend may compute a graph's slopes otherwise than the framework does, and a graph may multiply what nobody reads by
    zero; either can be infinite where the model's own gradient is not. In training mode each run draws, and one is all.

    Args:
        backend: of the model; it gets `model`, `batch` and `request`, whose functions are called once for the same values.
    """
    tries = Tries(request)
    found = backend.run(model, batch, tries.next())
    if not found.traced or request.training or is_finite(found):
        return found
    again = backend.run(model, batch, replace(tries.next(), compiled=False))
    return replace(again, uncompiled="its graph's gradient is not finite" if request.compiled else None)


def is_finite(found: Run) -> bool:
    """Whether all gradients are finite numbers."""
    values = found.points.values()
    return all(bool(np.isfinite(one).all()) for point in values for one in point.gradients if one is not None)
