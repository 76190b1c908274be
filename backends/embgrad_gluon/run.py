"""Runs one forward pass of a model, and the pullbacks through it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from embgrad.backend import Call, NativeObjective, ParameterValues, Request, Run
from embgrad.backend.cotangents import Answer, answer, answered_in_turn, compute_dtype, native_answer, values_at
from embgrad.backend.signature import as_parts
from embgrad.common.pytree import every, first
from embgrad.errors import UnsupportedError
from embgrad.forward.descent import Reached
from embgrad.forward.recorder import PassRecorder
from embgrad.inputs.batch import TokenBatch
from embgrad_gluon import bert
from embgrad_gluon.cures import Cures, Functions
from embgrad_gluon.graphs import imperatively, observe_scopes, output_names
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import GluonArrays, call_model, is_floating
from embgrad_gluon.lookup import HINT, Handler, Lookups, Tables, composed, intercept_operators
from embgrad_gluon.modules import Modules, ignore_calls, intercept_calls
from embgrad_gluon.normalising import LayerNorms
from embgrad_gluon.parameters import TableParameters, array_of, record_frozen_tables, trainable, values_of
from embgrad_gluon.pullback import Pullback, PulledGradients
from embgrad_gluon.state import preserve
from embgrad_gluon.tap import Taps

__all__ = ["points", "run"]

#: A request that changes no point and reads none.
NOTHING: Final = Request((), lambda outputs: [])

#: The message where MXNet refuses to write into an array that it records.
WRITES_WHILE_RECORDING: Final = (
    "the model writes into an array that it has computed from the lookup or from parameters (x += ..., x[i] = ...), "
    "which MXNet cannot do while it records. Compute a new array, such as x + ..., concat or where(...)"
)


def points(model: Any, batch: TokenBatch, call: Call | None, handlers: Mapping[str, Handler] | None = None) -> Reached:
    """Return the points that a forward pass in evaluation mode reaches, in order.

    Args:
        model: the model.
        batch: the batch that it is run on.
        call: calls it in another way than by its arguments' names.
        handlers: by operators' names further handlers.
    """
    parts = as_parts(model)
    with preserve(parts, training=False):
        watch = PassRecorder(batch, None)
        forward = _run_forward(model, parts, batch, Taps(watch, NOTHING), NOTHING, call, handlers or {})
        _wait_for(forward.returned)
        return watch.points()


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """Run one forward pass, and a pullback for each set of cotangents."""
    parts = as_parts(model)
    recorded = record_frozen_tables(parts) if request.tables else contextlib.nullcontext()
    with preserve(parts, training=request.training), recorded:
        return _run(model, parts, batch, request)


def _run(model: Any, parts: Sequence[Any], batch: TokenBatch, request: Request) -> Run:
    watch = request.recorder(batch)
    taps = Taps(watch, request)
    norms = LayerNorms(lambda array: any(array is kept.mark for kept in taps.kept.values()))
    try:
        forward = _run_forward(model, parts, batch, taps, request, request.call, _faster_handlers(request, norms))
        return _pull_back(model, parts, batch, request, forward)
    finally:
        norms.release()


def _pull_back(model: Any, parts: Sequence[Any], batch: TokenBatch, request: Request, forward: _Forward) -> Run:
    watch, kept = forward.taps.watch, forward.taps.kept
    try:
        chosen = watch.resolve(HINT)
        named = request.keys_to_read(chosen)
        keys = list(dict.fromkeys(named.values()))
        others = _OtherGradients(parts, request, forward, keys)
        answered = answered_in_turn(request, lambda part: _answer(forward, batch, part, model))
    finally:
        _wait_for(forward.returned)
    dtype = _compute_dtype(forward, keys, answered)
    if not request.further:
        forward.returned = None  # frees the outputs that are not read before the pullback
    for key in dict.fromkeys(chosen.values()):
        forward.taps.expect_unwritten(key)
    extra, changes = forward.extra_variables, forward.taps.changes
    pullback = Pullback(kept, keys, others.arrays, extra, changes, training=request.training)
    activations = {key: kept[key].values() for key in keys}
    pulled = []
    with forward.functions.reraise():
        for cotangents in answered.sets if request.pullback else ():
            gradients = pullback(cotangents)
            pulled.append(replace(gradients, gradients=request.reduced(gradients.gradients, activations)))
    values = values_at(
        named,
        watch,
        activations,
        [gradients.gradients for gradients in pulled],
        [gradients.before for gradients in pulled],
        others.rests(pulled),
    )
    return Run(
        values,
        dtype,
        forward.unused,
        answered.objective,
        others.values(pulled),
        further=answered.further,
        lookups=watch.looked_up(),
        reached=watch.points() if request.record else None,
    )


@dataclass
class _Forward:
    """One recorded forward pass.

    Attributes:
        returned: what the model returned; None once it was read.
        native: by the identities of the user's objective functions their values, computed in the same graph.
        taps: the points.
        tables: by key the tables of the lookups among them.
        extra_variables: see `Cures`.
        unused: the names of the batch's parts that the model could not take.
        functions: the user's functions that were called.
    """

    returned: Any
    native: Mapping[int, Any]
    taps: Taps
    tables: Mapping[str, Any]
    extra_variables: list[Any]
    unused: tuple[str, ...]
    functions: Functions


class _OtherGradients:
    """The gradients besides those of the points: of the parameters, or of the tables."""

    def __init__(self, parts: Sequence[Any], request: Request, forward: _Forward, keys: Sequence[str]) -> None:
        self._parameters = trainable(parts) if request.parameters else None
        arrays = {name: array_of(p) for name, p in (self._parameters or {}).items()}
        self._arrays = {name: array for name, array in arrays.items() if array is not None}
        self._tables = None
        if request.tables:
            tables = {key: forward.tables[key] for key in keys if key in forward.tables}
            self._tables = TableParameters(parts, tables)
        self.arrays = [*self._arrays.values(), *(self._tables.arrays.values() if self._tables is not None else ())]

    def values(self, pulled: Sequence[PulledGradients]) -> dict[str, ParameterValues] | None:
        """Return the parameters' gradients by name; None where they are not requested."""
        if self._parameters is None:
            return None
        gradients = dict(zip(self._arrays, pulled[0].others if pulled else (), strict=False))
        return {name: values_of(p, gradients.get(name)) for name, p in self._parameters.items()}

    def rests(self, pulled: Sequence[PulledGradients]) -> Any:
        """Return by key the gradients that reach the tables in other ways; None where they are not requested."""
        if self._tables is None:
            return None
        return self._tables.rests(pulled[0].others[len(self._arrays) :] if pulled else ())


def _run_forward(
    model: Any,
    parts: Sequence[Any],
    batch: TokenBatch,
    taps: Taps,
    request: Request,
    call: Call | None,
    handlers: Mapping[str, Handler],
) -> _Forward:
    mx, functions = import_mxnet(), Functions()
    cures = Cures(request.training, parameters=request.parameters, repeats=request.repeats or bool(request.edit))
    cured = {**cures.handlers(), **handlers}
    # Parameters' gradients pass through the lookups, too; otherwise nothing below them is differentiated.
    lookups = Lookups(Tables(parts), taps, cut=not request.parameters)
    modules = intercept_calls(Modules(parts, taps)) if taps.watch.needs_modules else ignore_calls()
    native: dict[int, Any] = {}
    observe = functools.partial(observe_scopes, taps)
    recording = mx.autograd.record if request.pullback else mx.autograd.pause
    with recording(train_mode=request.training), imperatively(observe), functions.intercepted():
        with intercept_operators(composed(lookups.handlers(), cured)), modules:
            try:
                returned, unused = call_model(model, parts, batch, call)
            except mx.MXNetError as error:
                if "already in a computational graph" not in str(error):
                    raise
                raise UnsupportedError(WRITES_WHILE_RECORDING) from error
        for respond in (part.respond for part in request.each):
            if isinstance(respond, NativeObjective):  # its lookups and calls are not the model's
                with intercept_operators(cured), ignore_calls():
                    native[id(respond)] = respond.function(returned)
    return _Forward(returned, native, taps, lookups.tables, cures.extra_variables, unused, functions)


def _faster_handlers(request: Request, norms: LayerNorms) -> dict[str, Handler]:
    """Return the handlers of operators whose gradients are computed faster than by MXNet, by name."""
    return {"LayerNorm": norms.run} if request.pullback and not (request.parameters or request.tables) else {}


def _answer(forward: _Forward, batch: TokenBatch, request: Request, model: Any) -> Answer:
    arrays, returned = GluonArrays(training=request.training), forward.returned
    if isinstance(request.respond, NativeObjective):
        return native_answer(
            forward.native[id(request.respond)], request.respond, batch, arrays, several=request.several
        )
    known, exported = bert.output_names(model, returned), output_names(model)
    # The only output of a symbol has its name where it is requested by that, and otherwise the role of a single output.
    single = known or tuple(name for name in exported if name in request.outputs)
    if single and arrays.is_tensor(returned):
        returned = {single[0]: returned}
    return answer(returned, request, arrays, known or exported)


def _compute_dtype(forward: _Forward, keys: Sequence[str], answered: Answer) -> str:
    """Return the coarsest dtype of the points and of the outputs that were read, or else that of the first output."""
    arrays = [*(forward.taps.kept[key].forwarded for key in keys), *answered.outputs]
    returned = first(forward.returned, is_floating)
    dtype = GluonArrays().dtype
    return compute_dtype(map(dtype, arrays), [] if returned is None else [dtype(returned)])


def _wait_for(returned: Any) -> None:
    """Raise the errors of the operators: MXNet raises them only when a result is read."""
    for array in every(returned, GluonArrays().is_tensor):
        array.wait_to_read()
