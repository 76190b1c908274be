"""The comparison of a new trace's results with the model's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from embgrad.backend.protocol import Run
from embgrad.backend.replay import differ
from embgrad.backend.responses import Respond, Response

__all__ = ["MeasuredObjective", "UntraceableError", "difference_of"]


#: The name of two arrays, the arrays, and the absolute difference allowed for each entry.
_Pair = tuple[str, np.ndarray | None, np.ndarray | None, float]


class UntraceableError(Exception):
    """The error that no trace of a model can be kept; its message is the reason, without the prefix "compile=True: "."""


class MeasuredObjective:
    """An objective that records the largest number of its cotangents, by which rounding in the gradients is judged.

    Attributes:
        largest: the number; 0 before the objective was asked.
    """

    def __init__(self, objective: Respond) -> None:
        self.largest = 0.0
        self.outputs = objective.outputs
        self.reads = objective.reads
        self._objective = objective

    def __call__(self, outputs: Mapping[str | None, np.ndarray]) -> Response:
        """Return the objective's response."""
        response = self._objective(outputs)
        largest = [np.abs(cotangent).max(initial=0) for named in response.sets for cotangent in named.values()]
        self.largest = float(max(largest, default=0))
        return response


def difference_of(result: Run, traced: Run, tolerance: float, size: float) -> str | None:
    """Return a message about the first result of a trace that differs by more than rounding, or None.

    Args:
        tolerance: the largest relative difference allowed.
        size: the largest number of the cotangents.
    """
    for name, first, second, slack in _pairs(result, traced, size):
        if differ(first, second, tolerance, slack):
            return f"{name} differ between a trace and the model itself"
    return None


def _pairs(result: Run, traced: Run, size: float) -> Iterator[_Pair]:
    for name, values in result.points.items():
        others = traced.points[name]
        if len(values.gradients) != len(others.gradients):
            yield f"the gradients at {name!r}", np.zeros(1), None, 0.0
        for pair in (*zip(values.gradients, others.gradients), *zip(values.before, others.before)):  # noqa: B905
            yield f"the gradients at {name!r}", *pair, 1e-6 * size
        yield f"the values at {name!r}", values.activation, others.activation, 1e-6
    for own, of_trace in zip(result.objectives, traced.objectives, strict=True):
        yield "the objective's values", own.values, of_trace.values, 1e-6
