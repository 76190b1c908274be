"""Values and pullbacks at points: one eager forward pass under a tape that records only what lies behind them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from embgrad.backend import (
    Answer,
    Call,
    Cotangents,
    ModelPass,
    NativeObjective,
    ParameterValues,
    PassRecorder,
    Pullback,
    Reached,
    Request,
    Respond,
    Run,
    TableRest,
    TokenBatch,
    UnfitError,
    answer_objective,
    split_name,
)
from embgrad.errors import AmbiguousPointError, EmbgradWarning, PointNotReachedError, UnsupportedError, level_of_user
from embgrad.toolkit import as_parts, model_lock, take_owned
from embgrad_tensorflow.compile import Trace, placeholders, run_kept
from embgrad_tensorflow.fingerprint import Structure
from embgrad_tensorflow.functions import CutFunctions, open_functions
from embgrad_tensorflow.graphs import CutGraph
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
    mark_nested,
    other_tapes_paused,
    preserve_random_state,
    refuse_gradient_overrides,
    refuse_replica_sync,
)
from embgrad_tensorflow.stretches import GraphGradients, GraphObjective
from embgrad_tensorflow.tap import Taps, for_user_code, snapshot_of
from embgrad_tensorflow.walk import Tables, native_variable

__all__ = ["closed_graphs", "paths", "points", "run"]


class _WatchedCall:
    """One call of a model, watched.

    Attributes:
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
    def preserve(self, snapshot: Snapshot | None = None) -> Iterator[None]:
        """Run the model in its mode, watched; afterwards it is as it was, also when it raises, and so is what `call` holds."""
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
            opening = self._opening()
            self.watcher.closed = opening.closed
            stack.enter_context(open_functions(opening))
            stack.enter_context(in_mode(self._request.training))
            stack.enter_context(refuse_gradient_overrides())
            stack.enter_context(self.watcher.watching())
            yield

    @contextlib.contextmanager
    def graph_preserved(self, snapshot: Snapshot) -> Iterator[CutFunctions]:
        """Run a graph into which the model was traced, watched; afterwards the variables that it wrote to are as they were.

        No Python of the model runs, so that nothing of the process is set for it, and no other thread waits.
        """
        self._snapshot = snapshot
        self.watcher.tables.learn(snapshot.nodes, snapshot.structure.learned)
        try:
            with self.watcher.watching(is_graph=True):
                yield self._opening()
        finally:
            snapshot.restore(self.watcher.written)

    def _opening(self) -> CutFunctions:
        return CutFunctions(
            self.watcher.watch,
            self.taps.replace,
            self.watcher.perform,
            self._record_graph,
            self.taps.run_unwatched,
            learns=self._request.parameters or self._request.tables,
            is_reached=lambda: bool(self.taps.kept),
            answering=self.answering,
        )

    def _record_graph(self, graph: CutGraph) -> None:
        self.watcher.computing |= graph.casts
        for handle, is_random in graph.written:
            _, dtype = table_of(handle)
            if dtype != tf.resource and not (is_random and self._request.training):
                self._snapshot.keep(handle, dtype)
                self.watcher.written.append(handle)
        if self._request.parameters or self._request.tables:  # a layer may not show its variables before its first call
            self.taps.tape.watch([variable for variable in graph.variables if variable.dtype.is_floating])


def points(model: Any, batch: TokenBatch, call: Call | None = None) -> Reached:
    """Return the lookups and the calls of modules that a forward pass on the batch makes, in order."""
    with _working(model):
        planned = _plan(model, batch, False, call)
        request = Request(call=call, pullback=False)
        return TensorFlowPass(model, batch, request, planned, PassRecorder(batch, None)).points()


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """Run one forward pass and a pullback for each set of cotangents."""
    with _working(model):
        planned = _plan(model, batch, request.training, request.call)
        if request.parameters or request.tables or not request.compiled or planned.graph is not None:
            return TensorFlowPass(model, batch, request, planned).run()

        def pass_of(request: Request, trace: Trace | None, known: Structure | None) -> TensorFlowPass:
            if trace is None or known is None:
                return TensorFlowPass(model, batch, request, planned)
            return TracedPass(model, batch, request, planned, trace, known)

        return run_kept(model, request, planned, pass_of)


class TensorFlowPass(ModelPass):
    """A forward pass of the Python of a model of TensorFlow, see `ModelPass`."""

    tensors = TensorFlowTensors()

    def __init__(
        self, model: Any, batch: TokenBatch, request: Request, planned: Plan, recorder: PassRecorder | None = None
    ) -> None:
        super().__init__(model, batch, request, recorder)
        self.unused = planned.unused
        self._planned = planned
        self._parameters: Parameters | None = None

    @contextlib.contextmanager
    def prepare(self) -> Iterator[None]:
        """Take a snapshot of the model, and let the user's functions find it in the requested mode."""
        self._snapshot = self.snapshot()
        with for_user_code(self.request, self.whole_snapshot) as request, contextlib.ExitStack() as stack:
            self.request, self._stack = request, stack
            self._tape = tf.GradientTape(persistent=request.repeats, watch_accessed_variables=request.parameters)
            self._watched = _WatchedCall(self.model, request, self.recorder, self._tape)
            asked = _ask_in_graph(request) if self._planned.graph == "alone" else None
            if asked is not None:
                self._watched.answering = GraphObjective(asked, self._planned.outputs, self._tape.stop_recording)
            yield

    def snapshot(self) -> Snapshot:
        """Return what is restored after the forward pass."""
        return snapshot_of(self.model, self.request)

    def whole_snapshot(self) -> Snapshot:
        """Return what is restored where functions of the user run in the pass."""
        return self._snapshot

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record what runs on the tape, where there is a pullback."""
        with self._tape, contextlib.nullcontext() if self.request.pullback else self._tape.stop_recording():
            yield

    def call(self) -> Any:
        """Call the model under the tape; its state is restored as soon as it returns."""
        with self.recording(), self._watched.preserve(self._snapshot):
            _watch_variables(self._tape, self.model, self._watched.watcher.tables, self.request)
            return self._planned.call()

    def lookups(self) -> Mapping[str, str]:
        """Return the keys of the points that the request names; warn of graphs whose lookups cannot be seen."""
        return _resolve(self._watched.watcher)

    def objective(self, returned: Any, objective: Respond | NativeObjective) -> Answer:
        """Return the answer of one objective; that of a saved graph has been asked inside it."""
        if isinstance(returned, GraphGradients):
            return Answer([returned.pairs] * returned.sets, returned.response, [tensor for tensor, _ in returned.pairs])
        several, names = self.request.several, self._planned.outputs
        with self._tape if self.request.pullback else contextlib.nullcontext():
            return answer_objective(returned, self.batch, objective, self.tensors, names, several=several)

    def activations(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values at points."""
        if self.request.parameters or self.request.tables:  # some models make their variables in the first call
            self._parameters = Parameters(as_parts(self.model))
        self._variables = sources(self._watched.watcher, keys, self._parameters, self.request)
        self._stack.enter_context(self._prepare_to_recompute())  # once for all pullbacks
        return {key: take_owned(self._watched.taps.kept[key].numpy()) for key in keys}

    def pull_back(self, cotangents: Cotangents, keys: Sequence[str]) -> Pullback:
        """Pull one set of cotangents back to the points, and to the variables that the request needs."""
        taps = self._watched.taps
        gradients = pull_back(taps, cotangents, [taps.kept[key] for key in keys], self._variables)
        below = dict(zip(self._variables, gradients[len(keys) :], strict=True))
        return Pullback(dict(zip(keys, gradients, strict=False)), taps.before[-1], below)

    def compute_dtype(self, keys: Sequence[str], outputs: Sequence[Any], returned: Any) -> str:
        """Return the dtype of the first point or output, or the coarsest where it is cast on its way."""
        marks = [self._watched.taps.kept[key] for key in keys]
        return compute_dtype(self._watched.watcher, marks, outputs, returned, self._variables)

    def parameters(self, gradients: Mapping[str, np.ndarray | None]) -> Mapping[str, ParameterValues] | None:
        """Return the gradients of the trainable variables; None where they are not requested."""
        if self._parameters is None or not self.request.parameters:
            return None
        trainable = self._parameters.trainable
        return {name: parameter_values(variable, gradients.get(name)) for name, variable in trainable.items()}

    def rests(self, keys: Sequence[str], gradients: Mapping[str, np.ndarray | None]) -> Mapping[str, TableRest] | None:
        """Return by key the gradients that reach the tables in other ways; None where they are not requested."""
        if self._parameters is None or not self.request.tables:
            return None
        below = {name: gradients.get(name) for name in self._variables}
        return rests(self._watched.watcher, keys, self._parameters, below)

    @contextlib.contextmanager
    def _prepare_to_recompute(self) -> Iterator[None]:
        """Prepare the model for a pullback that recomputes modules, so that they run as before."""
        if not self._watched.watcher.recomputed:
            yield
            return
        again = Request(training=self.request.training, call=self.request.call)
        with _WatchedCall(self.model, again, PassRecorder(self.batch, ()), self._tape).preserve():
            yield


class TracedPass(TensorFlowPass):
    """A pass of the kept graph of a model's call, in which no Python of the model runs.

    Args:
        known: the model's structure, by which its tables have names.
    """

    def __init__(
        self, model: Any, batch: TokenBatch, request: Request, planned: Plan, trace: Trace, known: Structure
    ) -> None:
        super().__init__(model, batch, request, replace(planned, graph="alone"))
        self._trace = trace
        self._known = known

    def snapshot(self) -> Snapshot:
        """Return a snapshot of what the graph writes to alone."""
        return Snapshot.of_graph(self._known, self.request.training)

    def whole_snapshot(self) -> Snapshot:
        """Return what is restored where functions of the user run in the pass."""
        return snapshot_of(self.model, self.request)

    def call(self) -> Any:
        """Run the graph under the tape; what it writes to is restored as soon as it returns."""
        with self.recording(), self._watched.graph_preserved(self._snapshot) as running:
            try:
                return running.run(self._trace.graph, placeholders(self._planned), self._trace.pack)
            except tf.errors.OpError as error:
                first = next(iter(str(error).strip().splitlines()), "")[:160]
                raise UnfitError(f"{type(error).__name__}: {first}") from error

    def lookups(self) -> Mapping[str, str]:
        """Return the keys of the points that the request names."""
        try:
            return super().lookups()
        except (PointNotReachedError, AmbiguousPointError) as error:
            raise UnfitError(f"the graph reaches other points: {error.message}") from error


def paths(model: Any) -> list[str]:
    """Return the names of the model's modules and tables."""
    parts = as_parts(model)
    return list(dict.fromkeys([*Modules(parts).names(), *Tables(parts).paths()]))


@contextlib.contextmanager
def _working(model: Any) -> Iterator[None]:
    """Keep other threads from the model, and the user's tapes from recording."""
    expect_eager()
    with refuse_replica_sync(), model_lock(as_parts(model)), mark_nested(), other_tapes_paused():
        yield


def _watch_variables(tape: Any, model: Any, tables: Tables, request: Request) -> None:
    """Watch the variables that are frozen or do not exist yet, which TensorFlow does not watch by itself."""
    if request.parameters:
        tape.watch([native_variable(variable) for variable in Parameters(as_parts(model)).trainable.values()])
    if request.tables:
        for key in request.points:
            tape.watch([native_variable(variable) for variable in tables.variables(split_name(key).path)])


def _plan(model: Any, batch: TokenBatch, training: bool, call: Call | None) -> Plan:
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
        return watcher.watch.resolve()
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
        stacklevel=level_of_user() + 1,
    )
    return chosen


def _ask_in_graph(request: Request) -> Respond | None:
    """Return the objective that a graph may ask: no code of the user's, and a single pullback to points alone."""
    if not request.objectives or request.repeats or request.parameters or request.tables:
        return None
    (objective,) = request.objectives
    if isinstance(objective, NativeObjective) or request.compiled is False or not request.pullback:
        return None
    return objective if getattr(objective, "is_ours", False) else None
