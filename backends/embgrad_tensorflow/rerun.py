"""Runs a kept trace once: tells its watch what it came by, and answers what the graph asks, with this call's values."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from embgrad.answering import native_answer, values_at
from embgrad.arrays import owned, taken
from embgrad.backend import NativeObjective, Request, Run
from embgrad.batch import TokenBatch
from embgrad.responding import Respond
from embgrad.watching import PointWatch
from embgrad_tensorflow.exchange import run_answering
from embgrad_tensorflow.inputs import Plan, TensorFlowTensors
from embgrad_tensorflow.ownmask import left_out
from embgrad_tensorflow.returned import mapped
from embgrad_tensorflow.trace import Trace, is_placeholder
from embgrad_tensorflow.tracing import UnfitError

__all__ = ["OtherUseError", "run_trace"]


class OtherUseError(Exception):
    """An objective uses something else than the trace was made for.

    Attributes:
        used: what, see `Trace.used`.
    """

    def __init__(self, used: tuple[int, ...]) -> None:
        super().__init__(used)
        self.used = used


def run_trace(trace: Trace, planned: Plan, batch: TokenBatch, request: Request) -> Run:
    """What the trace gives.

    Raises:
        FailedError: the graph failed.
        UnfitError: the trace does not serve for this.
        OtherUseError: nor this, another may.
        EmbgradError: as without a trace.
    """
    leaves = [one for one in tf.nest.flatten(planned.arguments) if is_placeholder(one)]
    answering = _Answering(trace, batch, request)
    anywhere = isinstance(request.respond, Respond) and request.respond.is_ours and not _changes(request)
    with _put_back(trace.written):
        given = run_answering(trace.function, leaves, answering.answer, answering.blank, anywhere=anywhere)
    activations = {key: taken(one.numpy()) for key, one in zip(trace.keys, given, strict=False)}
    found = iter(given[len(trace.keys) :])
    gradients = {key: next(found) if reached else None for key, reached in zip(trace.keys, trace.reached, strict=True)}
    points = values_at(
        {name: trace.chosen[name] for name in request.points},
        answering.watch,
        activations,
        _by_sets(gradients, answering.sets, request.several),
        answering.before(),
    )
    unused, masked_id = left_out(planned.unused, batch, answering.watch, points.values())
    return Run(points, trace.compute_dtype, unused, answering.objective, masked_id=masked_id)


def _changes(request: Request) -> bool:
    """Whether functions of the user's are called at points."""
    return bool(request.override or request.add or request.edit)


class _Answering:
    """The answers of one run.

    Attributes:
        watch: what takes it down.
        sets: how many sets of cotangents there are.
        objective: the values of a native objective.
    """

    def __init__(self, trace: Trace, batch: TokenBatch, request: Request) -> None:
        self.watch = PointWatch(batch, request.reached)
        self.sets = 1
        self.objective: np.ndarray | None = None
        self._trace = trace
        self._batch = batch
        self._request = request
        self._before: dict[str, list[np.ndarray]] = defaultdict(list)

    def answer(self, name: str, values: Sequence[np.ndarray]) -> Sequence[Any]:
        """The answer to a question; for what is changed at a point its name is the option and the point's key."""
        option, _, key = name.partition(" ")
        if option in ("override", "add"):
            return [_as(getattr(self._request, option)[key](owned(values[0])), values[0].dtype)]
        if option == "edit":
            return [self._edit(key, values[0])]
        answers = {"places": self._places, "respond": self._respond, "whole": self._whole, "native": self._native}
        return answers[name](values)

    def blank(self, name: str, values: Sequence[np.ndarray]) -> Sequence[Any]:
        """Zeros of the answer's shapes, and nothing to pull back where that can be said."""
        sets = 0 if self._request.several else 1
        told = values[len(self._trace.script.tensors) :]
        if name == "places":
            return [np.bool_(False), np.zeros((0, 2), np.int64)] * len(told)
        if name == "respond":
            return [np.zeros((sets, *one.shape), one.dtype) for one in values]
        if name in ("whole", "native"):
            targets = told if name == "whole" else [told[place] for place in self._trace.used]
            return [*(np.zeros((sets, *one.shape), one.dtype) for one in targets), np.int32(0)]
        return [np.zeros_like(values[0])]

    def before(self) -> list[dict[str, np.ndarray]]:
        """For each set of cotangents by key the gradients that were edited, as they came."""
        return [
            {key: came[number] for key, came in self._before.items() if number < len(came)}
            for number in range(self.sets)
        ]

    def _tell(self, values: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """What comes after that of the script, which is told to the watch."""
        count = len(self._trace.script.tensors)
        self._trace.script.tell(self.watch, values[:count])
        chosen = self.watch.resolve()
        if any(self._trace.chosen[name] != key for name, key in chosen.items()):
            raise UnfitError("another lookup is that of the ids than when the trace was made")
        return values[count:]

    def _places(self, values: Sequence[np.ndarray]) -> list[Any]:
        answer: list[Any] = []
        for (name, by_rows), shape in zip(self._trace.outputs, self._tell(values), strict=True):
            places = self._reads(name, tuple(map(int, shape)), by_rows=by_rows)
            rows = np.zeros((0, 2), np.int64) if places is None else np.stack(places, axis=1).astype(np.int64)
            answer += [np.bool_(places is not None), rows]
        return answer

    def _reads(self, name: str | None, shape: tuple[int, ...], *, by_rows: bool) -> Any:
        places = self._request.reads(name, shape)
        if places is not None and not by_rows:
            raise UnfitError(f"the objective reads some rows of an output of shape {shape}")
        return places

    def _respond(self, values: Sequence[np.ndarray]) -> list[Any]:
        assert not isinstance(self._request.respond, NativeObjective)
        names = [name for name, _ in self._trace.outputs]
        sets = self._request.respond({name: owned(value) for name, value in zip(names, values, strict=True)})
        self.sets = len(sets)
        dtypes = [one.as_numpy_dtype for one in self._trace.dtypes]
        if not self._request.several:
            if not sets:  # values alone are asked for: the graph pulls zeros back, which nobody gets
                return [np.zeros((1, *value.shape), dtype) for value, dtype in zip(values, dtypes, strict=True)]
            (one,) = sets
            return [_as(one[name], dtype)[None] for name, dtype in zip(names, dtypes, strict=True)]
        return [
            _as(np.stack([one[name] for one in sets]), dtype) if sets else np.zeros((0, *value.shape), dtype)
            for name, value, dtype in zip(names, values, dtypes, strict=True)
        ]

    def _whole(self, values: Sequence[np.ndarray]) -> list[Any]:
        outputs = self._tell(values)
        for (name, _), output in zip(self._trace.outputs, outputs, strict=True):
            self._reads(name, output.shape, by_rows=False)
        return [*self._respond(outputs), np.int32(0)]

    def _native(self, values: Sequence[np.ndarray]) -> list[Any]:
        objective, request = self._request.respond, self._request
        assert isinstance(objective, NativeObjective)
        tensors = [tf.constant(one) for one in self._tell(values)]
        floating = [place for place, one in enumerate(tensors) if one.dtype.is_floating]
        order = iter(tensors)
        with tf.GradientTape(persistent=request.several, watch_accessed_variables=False) as tape:
            tape.watch([tensors[place] for place in floating])
            value = objective.function(mapped(self._trace.returned, lambda _: next(order)))
            answer = native_answer(value, objective, self._batch, TensorFlowTensors(), several=request.several)
        self.objective, self.sets = answer.objective, len(answer.sets)
        pulled = [
            tape.gradient(value, [tensors[place] for place in floating], tf.cast(tf.constant(one), value.dtype))
            for ((value, one),) in answer.sets
        ]
        used = tuple(
            place for place, *ones in zip(floating, *pulled, strict=True) if any(one is not None for one in ones)
        )
        if used != self._trace.used:
            raise OtherUseError(used)
        found = {place: [*ones] for place, *ones in zip(floating, *pulled, strict=True)}
        return [*(np.stack([_filled(one, tensors[place]) for one in found[place]]) for place in used), np.int32(0)]

    def _edit(self, key: str, gradient: np.ndarray) -> np.ndarray:
        came = owned(gradient)
        if not self.sets:
            return came
        self._before[key].append(came.copy())
        return _as(self._request.edit[key](came), gradient.dtype)


@contextlib.contextmanager
def _put_back(written: Sequence[Any]) -> Iterator[None]:
    """The variables that a run writes to hold afterwards what they hold now."""
    held = [(one, tf.raw_ops.ReadVariableOp(resource=one, dtype=_dtype_of(one))) for one in written]
    try:
        yield
    finally:
        for handle, value in held:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)


def _dtype_of(handle: Any) -> Any:
    return tf.as_dtype(handle._handle_data.shape_and_type[0].dtype)


def _by_sets(gradients: Mapping[str, Any], sets: int, several: bool) -> list[dict[str, np.ndarray | None]]:
    arrays = {key: None if one is None else one.numpy() for key, one in gradients.items()}
    if not several:
        return [{key: None if one is None else taken(one) for key, one in arrays.items()}] * sets
    return [{key: None if one is None else owned(one[number]) for key, one in arrays.items()} for number in range(sets)]


def _filled(gradient: Any, tensor: Any) -> np.ndarray:
    filled: np.ndarray = (tf.zeros_like(tensor) if gradient is None else tf.convert_to_tensor(gradient)).numpy()
    return filled


def _as(array: Any, dtype: Any) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(array), dtype=dtype)
