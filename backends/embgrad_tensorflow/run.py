"""Values and pullbacks at points: one eager forward pass under a tape that records only what lies behind them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import tensorflow as tf

from embgrad.backend import Call, Request, Run
from embgrad.backend.cotangents import Answer, answered, answered_in_turn, values_at
from embgrad.backend.locks import model_lock
from embgrad.backend.objective_callback import Respond
from embgrad.backend.own_mask import GradientSizes, unused_inputs
from embgrad.backend.signature import as_parts
from embgrad.common.arrays import taken
from embgrad.errors import EmbgradWarning, PointNotReachedError, UnsupportedError
from embgrad.forward.descent import Reached
from embgrad.forward.points import split_name
from embgrad.forward.recorder import PassRecorder
from embgrad.inputs.batch import TokenBatch
from embgrad_tensorflow.compile import run_kept
from embgrad_tensorflow.graphs import CutFunctions, CutGraph, GraphGradients, GraphObjective, opened
from embgrad_tensorflow.inputs import Plan, TensorFlowTensors, plan
from embgrad_tensorflow.lookup import Watcher, table_of
from embgrad_tensorflow.modules import Calls, Modules, intercept_calls
from embgrad_tensorflow.parameters import Parameters
from embgrad_tensorflow.pullback import compute_dtype, parameter_values, pull_back, rests, sources
from embgrad_tensorflow.restored import plan_restored
from embgrad_tensorflow.state import (
    Snapshot,
    eagerly,
    expect_eager,
    in_mode,
    nested,
    other_tapes_paused,
    preserve_random_state,
    refuse_gradient_overrides,
    refuse_replica_sync,
)
from embgrad_tensorflow.tap import Taps, for_user_code, snapshot_of
from embgrad_tensorflow.walk import Tables, native_variable

__all__ = ["closed_graphs", "paths", "points", "run"]

#: A request that changes nothing and reads no point.
NOTHING: Final = Request((), lambda outputs: [])


class _Pass:
    """One forward pass of a model, watched.

    Attributes:
        watcher: sees its operations.
        taps: hold what was read.
        answering: the objective, where a saved graph is all that the model runs, which is to ask it itself.
    """

    answering: GraphObjective | None = None
    _snapshot: Snapshot

    def __init__(self, model: Any, request: Request, watch: PassRecorder, tape: Any) -> None:
        self.taps = Taps(tape, request)
        self.watcher = Watcher(watch, Tables(as_parts(model)), self.taps)
        self._model = model
        self._request = request

    @contextlib.contextmanager
    def preserved(self, snapshot: Snapshot | None = None) -> Iterator[None]:
        """Run the model in its mode, watched; afterwards it is as it was, also when it raises, and so is what `call` holds.

        Args:
            snapshot: the model as it is; taken now unless it has been.
        """
        parts, call, watch = as_parts(self._model), self._request.call, self.watcher.watch
        with eagerly(), contextlib.ExitStack() as stack:
            stack.enter_context(preserve_random_state(training=self._request.training))
            self._snapshot = snapshot = snapshot or snapshot_of(self._model, self._request)
            stack.callback(lambda: snapshot.restore(self.watcher.written))
            if call is None:
                self.watcher.tables.learn(snapshot.nodes, snapshot.structure.learned)
            if watch.needs_modules:
                modules = Modules(parts)
                calls = Calls(watch, modules, self.taps.replace, lambda: self.taps.working)
                stack.enter_context(intercept_calls(calls.around, modules.classes))
            learns = self._request.parameters or self._request.tables
            replace, perform = self.taps.replace, self.watcher.perform
            unwatched, reached = self.taps.unwatched, lambda: bool(self.taps.kept)
            opening = CutFunctions(
                watch,
                replace,
                perform,
                self._record_graph,
                unwatched,
                learns=learns,
                is_reached=reached,
                answering=self.answering,
            )
            self.watcher.closed = opening.closed
            stack.enter_context(opened(opening))
            stack.enter_context(in_mode(self._request.training))
            stack.enter_context(refuse_gradient_overrides())
            stack.enter_context(self.watcher.watching())
            yield

    def _record_graph(self, graph: CutGraph) -> None:
        self.watcher.computing |= graph.casts
        for handle, is_random in graph.written:
            _, dtype = table_of(handle)
            if dtype != tf.resource and not (is_random and self._request.training):
                self._snapshot.keep(handle, dtype)
                self.watcher.written.append(handle)
        if self._request.parameters or self._request.tables:  # a layer may not show its variables before its first call
            self.taps.tape.watch([variable for variable in graph.variables if variable.dtype.is_floating])


def points(model: Any, batch: TokenBatch, call: Call | None) -> Reached:
    """Return the lookups and the calls of modules that a forward pass on the batch makes, in order."""
    with _working(model):
        planned = _planned(model, batch, False, call)
        tape = tf.GradientTape(watch_accessed_variables=False)
        forward = _Pass(model, Request((), NOTHING.respond, call=call), PassRecorder(batch, None), tape)
        with tape, tape.stop_recording(), forward.preserved():
            planned.call()
    return forward.watcher.watch.points()


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """Run one forward pass and a pullback for each set of cotangents."""
    with _working(model):
        planned = _planned(model, batch, request.training, request.call)
        if request.parameters or request.tables or not request.compiled or planned.graph is not None:
            return _run(model, batch, request, planned)
        if request.further or request.reduce is not None:
            reason = "a trace pulls back one objective and returns whole gradients, and other is requested"
            return replace(_run(model, batch, request, planned), uncompiled=reason)
        return run_kept(model, batch, request, planned, lambda changed: _run(model, batch, changed, planned))


def _run(model: Any, batch: TokenBatch, request: Request, planned: Plan) -> Run:
    """Run the model's Python."""
    snapshot = snapshot_of(model, request)
    with for_user_code(request, lambda: snapshot) as wrapped:
        return _passed(model, batch, wrapped, planned, snapshot)


def _passed(model: Any, batch: TokenBatch, request: Request, planned: Plan, snapshot: Snapshot) -> Run:
    tape = tf.GradientTape(persistent=request.repeats, watch_accessed_variables=request.parameters)
    forward = _Pass(
        model,
        request,
        request.recorder(batch),
        tape,
    )
    unrecorded = contextlib.nullcontext() if request.pullback else tape.stop_recording()
    if planned.graph == "alone" and _can_ask_in_graph(request):
        forward.answering = GraphObjective(request, planned.outputs, tape.stop_recording)
    with tape, unrecorded, forward.preserved(snapshot):
        _watch_variables(tape, model, forward.watcher.tables, request)
        returned = planned.call()
    chosen = _resolve(forward.watcher)
    answer = answered_in_turn(request, lambda part: _answer(returned, planned, batch, part, tape))
    named = request.keys_to_read(chosen)
    keys = list(dict.fromkeys(named.values()))
    parameters = Parameters(as_parts(model)) if request.parameters or request.tables else None
    variables = sources(forward.watcher, keys, parameters, request)
    marks = [forward.taps.kept[key] for key in keys]
    activations = {key: taken(mark.numpy()) for key, mark in zip(keys, marks, strict=True)}
    pulled: list[Mapping[str, np.ndarray | None]] = []
    below: dict[str, np.ndarray | None] = dict.fromkeys(variables)
    sizes = GradientSizes(request, planned.unused)
    with _prepared_to_recompute(forward, model, batch, request):
        for cotangents in answer.sets if request.pullback else ():
            gradients = pull_back(forward.taps, cotangents, marks, variables)
            if not pulled:
                below = dict(zip(variables, gradients[len(keys) :], strict=True))
            at_points = dict(zip(keys, gradients, strict=False))
            pulled.append(sizes.request.reduced(at_points, activations))
    point_values = values_at(
        named,
        forward.watcher.watch,
        activations,
        pulled,
        forward.taps.before,
        rests(forward.watcher, keys, parameters, below) if parameters is not None and request.tables else None,
    )
    rows = [lookup.padding for lookup in forward.watcher.watch.lookups if lookup.layout is not None]
    unused, masked_id = unused_inputs(planned.unused, batch, rows, sizes.of(point_values, chosen))
    return Run(
        point_values,
        compute_dtype(forward.watcher, marks, answer, returned, variables),
        unused,
        answer.objective,
        {name: parameter_values(variable, below[name]) for name, variable in parameters.trainable.items()}
        if parameters is not None and request.parameters
        else None,
        masked_id=masked_id,
        further=answer.further,
        lookups=forward.watcher.watch.looked_up(),
        reached=forward.watcher.watch.points() if request.record else None,
    )


def paths(model: Any) -> list[str]:
    """Return the names of the model's modules and tables."""
    parts = as_parts(model)
    return list(dict.fromkeys([*Modules(parts).names(), *Tables(parts).named()]))


@contextlib.contextmanager
def _working(model: Any) -> Iterator[None]:
    """Keep other threads from the model, and the user's tapes from recording."""
    expect_eager()
    with refuse_replica_sync(), model_lock(as_parts(model)), nested(), other_tapes_paused():
        yield


def _watch_variables(tape: Any, model: Any, tables: Tables, request: Request) -> None:
    """Watch the variables that are frozen or do not exist yet, which TensorFlow does not watch by itself."""
    if request.parameters:
        tape.watch([native_variable(variable) for variable in Parameters(as_parts(model)).trainable.values()])
    if request.tables:
        for key in request.points:
            tape.watch([native_variable(variable) for variable in tables.variables(split_name(key).path)])


def _planned(model: Any, batch: TokenBatch, training: bool, call: Call | None) -> Plan:
    parts = as_parts(model)
    restored = plan_restored(parts[0], batch, training) if call is None and parts == (model,) else None
    return restored or plan(model, batch, training, call)


def closed_graphs(watcher: Watcher) -> str:
    """Return the message about compiled functions whose operations were not seen; empty where there were none."""
    if not watcher.graphs:
        return ""
    why = f" ({watcher.closed[0]})" if watcher.closed else ""
    return (
        f"The model ran {len(watcher.graphs)} compiled graph(s), such as {watcher.graphs[0]!r}, and lookups inside them are "
        f"not visible{why}"
    )


def _resolve(watcher: Watcher) -> dict[str, str]:
    """Return the keys of the requested points; warn of graphs whose lookups cannot be seen."""
    hint = closed_graphs(watcher)
    if not hint:
        uses = "; ".join(dict.fromkeys(watcher.unusable))
        return watcher.watch.resolve(f"The ids were used otherwise: {uses}" if uses else "")
    try:
        chosen = watcher.watch.resolve(hint)
    except PointNotReachedError as error:
        raise UnsupportedError(
            f"{error.message}. Save the model again as a graph of TensorFlow 2 with its lookups outside of loops and branches, "
            "or pass it as Keras layers, a tf.Module or a tf.function"
        ) from error
    warnings.warn(
        f"{hint}. Rows looked up there have no gradient in the result; pass the model as Python code to include them",
        EmbgradWarning,
        stacklevel=6,
    )
    return chosen


def _answer(returned: Any, planned: Plan, batch: TokenBatch, request: Request, tape: Any) -> Answer:
    if isinstance(returned, GraphGradients):
        return Answer([returned.pairs] * returned.sets, outputs=[tensor for tensor, _ in returned.pairs])
    with tape if request.pullback else contextlib.nullcontext():
        return answered(returned, batch, request, TensorFlowTensors(), planned.outputs)


def _can_ask_in_graph(request: Request) -> bool:
    """Return whether a graph may ask the objective: no code of the user's, and a single pullback to points alone."""
    is_internal = isinstance(request.respond, Respond) and request.respond.is_ours
    beside = request.repeats or request.parameters or request.tables
    return bool(is_internal and request.outputs and request.compiled is not False and request.pullback and not beside)


@contextlib.contextmanager
def _prepared_to_recompute(forward: _Pass, model: Any, batch: TokenBatch, request: Request) -> Iterator[None]:
    """Prepare the model for a pullback that recomputes modules, so that they run as before."""
    if not forward.watcher.recomputed:
        yield
        return
    again = Request((), NOTHING.respond, training=request.training, call=request.call)
    with _Pass(model, again, PassRecorder(batch, ()), forward.taps.tape).preserved():
        yield
