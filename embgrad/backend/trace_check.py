"""The comparison of a new trace's results with the model's, in which the user's functions are called once for both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embgrad.backend.protocol import Change, Request, Respond, Response, Run
from embgrad.backend.replay import differ, with_functions
from embgrad.objectives.native import NativeObjective

__all__ = ["Trial", "UntraceableError"]


#: The name of two arrays, the arrays, and the absolute difference allowed for each entry.
_Pair = tuple[str, np.ndarray | None, np.ndarray | None, float]


class UntraceableError(Exception):
    """The error that no trace of a model can be kept; its message is the reason, without the prefix "compile=True: "."""


class Trial:
    """Two runs of one request, in which each of the user's functions is called once, except a native objective.

    Args:
        request: the request.
        watched: wraps a native objective's function to report the tensors that it uses, see `TraceMaker.watched`.

    Attributes:
        used: the indices of the tensors that a native objective used in the first run.
    """

    def __init__(self, request: Request, watched: Callable[..., Callable[[Any], Any]]) -> None:
        self.used: tuple[int, ...] = ()
        self._request = request
        self._watched = watched
        self._changes: defaultdict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
        self._response: Response | None = None
        self._outputs: list[Mapping[str | None, np.ndarray]] = []

    def first(self) -> Request:
        """Return the request for the model itself."""
        objective = self._objective
        ours: Respond | NativeObjective
        if isinstance(objective, NativeObjective):
            ours = replace(objective, function=self._watched(objective.function, self._use))
        else:
            ours = _Wrapped(objective, self._respond)
        return with_functions(self._request, self._recording, compiled=False, objectives=self._with(ours))

    def second(self) -> Request:
        """Return the request for a trace."""
        del self._outputs[1:]
        objective = self._objective
        ours = objective if isinstance(objective, NativeObjective) else _Wrapped(objective, self._answer)
        return with_functions(self._request, self._replaying, compiled=False, objectives=self._with(ours))

    @property
    def _objective(self) -> Respond | NativeObjective:
        return self._request.objectives[0]

    def _with(self, objective: Respond | NativeObjective) -> tuple[Respond | NativeObjective, ...]:
        return (objective, *self._request.objectives[1:])

    def difference(self, result: Run, traced: Run, tolerance: float) -> str | None:
        """Return a message about the first result that differs by more than rounding, or None; the prefix is not included.

        Args:
            result: the result of the model itself.
            traced: the result of the trace.
            tolerance: the largest relative difference allowed.
        """
        pairs = self._pairs(result, traced)
        differing = next(
            (name for name, first, second, slack in pairs if differ(first, second, tolerance, slack)), None
        )
        if differing is None:
            return None
        native = isinstance(self._objective, NativeObjective)
        hint = ", or the objective gives different results each time" if native else ""
        return f"{differing} differ between a trace and the model itself{hint}"

    def _pairs(self, result: Run, traced: Run) -> Iterator[_Pair]:
        sets = () if self._response is None else self._response.sets
        size = max(
            (float(np.abs(cotangent).max(initial=0)) for cotangents in sets for cotangent in cotangents.values()),
            default=1,
        )
        for name, values in result.points.items():
            traced_values = traced.points[name]
            if len(values.gradients) != len(traced_values.gradients):
                yield f"the gradients at {name!r}", np.zeros(1), None, 0.0
            for pair in (*zip(values.gradients, traced_values.gradients), *zip(values.before, traced_values.before)):  # noqa: B905
                yield f"the gradients at {name!r}", *pair, 1e-6 * size
            yield f"the values at {name!r}", values.activation, traced_values.activation, 1e-6
        if len(self._outputs) == 2:
            for output_name, output in self._outputs[0].items():
                yield "the outputs", output, self._outputs[1][output_name], 1e-6
        for own, of_trace in zip(result.objectives, traced.objectives, strict=True):
            yield "the objective's values", own.values, of_trace.values, 1e-6

    def _use(self, used: tuple[int, ...]) -> None:
        self.used = used

    def _recording(self, option: str, key: str, change: Change) -> Change:
        def recorded(value: np.ndarray) -> np.ndarray:
            changed = change(value)
            self._changes[option, key].append(np.array(changed))
            return changed

        return recorded

    def _replaying(self, option: str, key: str, change: Change) -> Change:
        order = iter(self._changes[option, key])

        def replayed(value: np.ndarray) -> np.ndarray:
            changed = next(order, None)
            if changed is None or changed.shape != value.shape:
                raise UntraceableError("a trace reaches the points differently from the model itself")
            return changed

        return replayed

    def _respond(self, objective: Respond, outputs: Mapping[str | None, np.ndarray]) -> Response:
        self._outputs.append(outputs)
        self._response = objective(outputs)
        return self._response

    def _answer(self, objective: Respond, outputs: Mapping[str | None, np.ndarray]) -> Response:
        self._outputs.append(outputs)
        if any(output.shape != outputs[name].shape for name, output in self._outputs[0].items()):
            raise UntraceableError("a trace gives outputs of other shapes than the model itself")
        assert self._response is not None, "the model itself ran first"
        return self._response


@dataclass(frozen=True)
class _Wrapped:
    """An objective whose calls go to a function, which takes the objective and the outputs."""

    objective: Respond
    function: Callable[[Respond, Mapping[str | None, np.ndarray]], Response]

    @property
    def outputs(self) -> tuple[str | None, ...]:
        return self.objective.outputs

    def reads(self, name: str | None, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
        return self.objective.reads(name, shape)

    def __call__(self, outputs: Mapping[str | None, np.ndarray]) -> Response:
        return self.function(self.objective, outputs)
