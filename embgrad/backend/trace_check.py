"""The comparison of a new trace's results with the model's, in which the user's functions are called once for both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from embgrad.backend.protocol import Change, Request, Run
from embgrad.backend.replay import differ, with_functions
from embgrad.backend.responses import Respond, Response
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
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._changes: defaultdict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
        self._answers: list[tuple[Mapping[str | None, np.ndarray], Response]] = []
        self._outputs: list[Mapping[str | None, np.ndarray]] = []

    def first(self) -> Request:
        """Return the request for the model itself."""
        return with_functions(self._request, self._recording, compiled=False, objectives=self._asking(self._respond))

    def second(self) -> Request:
        """Return the request for a trace."""
        self._outputs.clear()
        return with_functions(self._request, self._replaying, objectives=self._asking(self._answer))

    def _asking(self, function: Callable[..., Response]) -> tuple[Respond | NativeObjective, ...]:
        """Return the objectives; those that are not native ask a function that takes the objective and the outputs."""
        return tuple(
            objective if isinstance(objective, NativeObjective) else _Wrapped(objective, function)
            for objective in self._request.objectives
        )

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
        hint = ", or the objective gives different results each time" if self._request.has_native else ""
        return f"{differing} differ between a trace and the model itself{hint}"

    def _pairs(self, result: Run, traced: Run) -> Iterator[_Pair]:
        cotangents = [entry for _, response in self._answers for named in response.sets for entry in named.values()]
        size = max((float(np.abs(cotangent).max(initial=0)) for cotangent in cotangents), default=1)
        for name, values in result.points.items():
            traced_values = traced.points[name]
            if len(values.gradients) != len(traced_values.gradients):
                yield f"the gradients at {name!r}", np.zeros(1), None, 0.0
            for pair in (*zip(values.gradients, traced_values.gradients), *zip(values.before, traced_values.before)):  # noqa: B905
                yield f"the gradients at {name!r}", *pair, 1e-6 * size
            yield f"the values at {name!r}", values.activation, traced_values.activation, 1e-6
        for (outputs, _), traced_outputs in zip(self._answers, self._outputs, strict=False):
            for output_name, output in outputs.items():
                yield "the outputs", output, traced_outputs[output_name], 1e-6
        for own, of_trace in zip(result.objectives, traced.objectives, strict=True):
            yield "the objective's values", own.values, of_trace.values, 1e-6

    def _recording(self, option: str, key: str, change: Change) -> Change:
        def recorded(value: np.ndarray) -> np.ndarray:
            changed = change(value)
            self._changes[option, key].append(np.array(changed))
            return changed

        return recorded

    def _replaying(self, option: str, key: str, change: Change) -> Change:
        order = iter(self._changes[option, key])

        def replay_call(value: np.ndarray) -> np.ndarray:
            changed = next(order, None)
            if changed is None or changed.shape != value.shape:
                raise UntraceableError("a trace reaches the points differently from the model itself")
            return changed

        return replay_call

    def _respond(self, objective: Respond, outputs: Mapping[str | None, np.ndarray]) -> Response:
        response = objective(outputs)
        self._answers.append((outputs, response))
        return response

    def _answer(self, objective: Respond, outputs: Mapping[str | None, np.ndarray]) -> Response:
        earlier, response = self._answers[len(self._outputs)]
        if any(output.shape != outputs[name].shape for name, output in earlier.items()):
            raise UntraceableError("a trace gives outputs of other shapes than the model itself")
        self._outputs.append(outputs)
        return response


@dataclass(frozen=True)
class _Wrapped:
    """An objective whose calls go to a function, which takes the objective and the outputs."""

    objective: Respond
    function: Callable[[Respond, Mapping[str | None, np.ndarray]], Response]

    @property
    def outputs(self) -> tuple[str | None, ...]:
        return self.objective.outputs

    @property
    def is_ours(self) -> bool:
        """Return whether only embgrad's code runs, see `BatchObjective.is_ours`."""
        return bool(getattr(self.objective, "is_ours", False))

    def reads(self, name: str | None, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
        return self.objective.reads(name, shape)

    def __call__(self, outputs: Mapping[str | None, np.ndarray]) -> Response:
        return self.function(self.objective, outputs)
