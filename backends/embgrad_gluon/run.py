"""Values and pullbacks of one forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np

from embgrad.answering import Answer, answer, native_answer, values_at
from embgrad.backend import Call, NativeObjective, ParameterValues, Point, Request, Run
from embgrad.batch import TokenBatch
from embgrad.calling import as_parts
from embgrad.errors import UnsupportedError
from embgrad.finite import is_finite
from embgrad.replaying import Recorder, ReplayError, Tries, agreeing
from embgrad.structures import first
from embgrad.watching import PointWatch
from embgrad_gluon import bert, symbolic
from embgrad_gluon.cures import Cures
from embgrad_gluon.functions import Functions
from embgrad_gluon.graph import next_number
from embgrad_gluon.graphpoints import GraphPoints
from embgrad_gluon.graphs import Graphs
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import GluonArrays, call_model, is_floating
from embgrad_gluon.keptgraph import Kept
from embgrad_gluon.lookup import HINT, Lookups, Tables
from embgrad_gluon.modules import Modules, calling, unheard
from embgrad_gluon.normalising import Needed, layer_norm
from embgrad_gluon.opening import imperatively
from embgrad_gluon.operators import Handler, watching
from embgrad_gluon.parameters import FrozenTwins, TableParameters, array_of, trainable, values_of
from embgrad_gluon.pullback import Pullback, Pulled
from embgrad_gluon.state import as_found
from embgrad_gluon.structure import Structure, structure
from embgrad_gluon.tap import Taps

__all__ = ["points", "run"]

#: A request that changes nothing and reads no point.
NOTHING: Final = Request((), lambda outputs: [])

#: From so many positions on, what was recorded is given up while it is pulled back, which takes a look at it before. Of smaller
#: batches it takes little memory, and is looked at while MXNet computes.
LARGE: Final = 256

#: What is said where MXNet refuses to write into an array that it records.
WRITTEN: Final = (
    "the model writes into an array that it has computed from the lookup or from parameters (x += ..., x[i] = ...), "
    "which MXNet cannot do while it records: expected a new array, such as x + ..., concat or where(...)"
)


def points(
    model: Any, batch: TokenBatch, call: Call | None, handlers: Mapping[str, Handler] | None = None
) -> list[Point]:
    """What a forward pass reaches, in order.

    Args:
        model: is run in evaluation mode.
        batch: what it is run on.
        call: calls it in another way than by its arguments' names.
        handlers: by operators' names further handlers.
    """
    parts = as_parts(model)
    with as_found(parts, training=False) as known:
        trace = _forward(model, known, batch, PointWatch(batch, None), NOTHING, call, handlers)
        _wait_for(trace.returned)
        return trace.taps.watch.points()


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """One forward pass, and a pullback for each set of cotangents."""
    tries, why = Tries(request), _why_no_graphs(request)
    if why is None:
        try:
            found = _run_compared(model, batch, tries.next()) if request.compiled else None
            return found or _run_graphs(model, batch, tries.next())[0]
        except _FailedError as error:
            why = str(error)
    with as_found(as_parts(model), training=request.training) as known:
        found = _run(model, known, batch, tries.next(), None)
    return replace(found, uncompiled=why if request.compiled else None)


def _run_compared(model: Any, batch: TokenBatch, request: Request) -> Run | None:
    """What graphs give; of new ones the gradients are compared with those of their blocks' Python. None where they differ.

    The Python may stop gradients of arrays alone. An objective of the user's may give something else each time, and tells
    nothing.

    Raises:
        _FailedError: see there.
    """
    if isinstance(request.respond, NativeObjective):
        return _run_graphs(model, batch, request)[0]
    recorder = Recorder(request, lambda function, tell: function)
    found, unpulled = _run_graphs(model, batch, replace(recorder.recording(), compiled=True))
    if not unpulled or not is_finite(found):
        return found
    try:
        given, _ = _run_graphs(model, batch, replace(recorder.replaying(), compiled=None))
        _, dtypes = structure(as_parts(model)).identity()
        apart = recorder.apart(found, given, agreeing(np.dtype(one).name for one in dtypes)) is not None
    except ReplayError:
        apart = True
    for one in unpulled:
        one.pulled = True
        one.apart = "its Python gives other gradients on arrays than on symbols" if apart else one.apart
    return None if apart else found


class _FailedError(Exception):
    """MXNet failed where a graph ran; says how."""


def _run_graphs(model: Any, batch: TokenBatch, request: Request) -> tuple[Run, Sequence[Kept]]:
    """What the model gives, whose blocks run as graphs where they can, and the new ones of these, see `Graphs.unpulled`.

    Raises:
        _FailedError: see there.
    """
    parts = as_parts(model)
    with as_found(parts, training=request.training) as known:
        graphs = Graphs(parts, PointWatch(batch, request.reached, request.times), compiled=bool(request.compiled))
        try:
            found = _run(model, known, batch, request, graphs)
        except (import_mxnet().MXNetError, UnsupportedError) as error:
            if not graphs.began:
                raise
            raise _FailedError(f"its graph failed ({str(error).partition(chr(10))[0]})") from error
    uncompiled = graphs.uncompiled if request.compiled else None
    return replace(found, uncompiled=uncompiled), graphs.unpulled


def _why_no_graphs(request: Request) -> str | None:
    """Why a request is for operators that run one by one; None where a graph can do."""
    if request.compiled is False:
        return "it is asked for without one"
    if request.parameters or request.tables:
        return "the gradients of parameters are asked for, which kept graphs do not have"
    if request.training:
        return "training=True draws its random numbers as the model's own Python does"
    return None


def _run(model: Any, known: Structure, batch: TokenBatch, request: Request, graphs: Graphs | None) -> Run:
    watch = PointWatch(batch, request.reached, request.times)
    trace = _forward(model, known, batch, watch, request, request.call, graphs=graphs)
    try:
        chosen = trace.taps.watch.resolve(HINT)
        keys = list(dict.fromkeys(chosen[name] for name in request.points))
        wanted = _Wanted(known.parts, request, trace, keys)
        pullback = Pullback(
            trace.taps.kept,
            keys,
            wanted.arrays,
            trace.also,
            request.edit,
            training=request.training,
            bodies=graphs.bodies if graphs is not None else {},
            first=trace.first,
            forgetting=trace.needed.give_up,
        )
        answered = _answer(trace, batch, request, model, pullback.look_at)
    finally:
        _wait_for(trace.returned)
    dtype = _compute_dtype(trace, keys, answered)
    trace.returned = None  # what nobody reads takes no memory while the rest is pulled back

    def expect_unwritten() -> None:
        for key in dict.fromkeys(chosen.values()):
            trace.taps.expect_unwritten(key)

    with trace.functions.raised():
        pulled = [
            pullback(cotangents, expect_unwritten, last=place == len(answered.sets))
            for place, cotangents in enumerate(answered.sets, 1)
        ]
    if not pulled:
        expect_unwritten()
    found = values_at(
        {name: chosen[name] for name in request.points},
        trace.taps.watch,
        {key: trace.taps.kept[key].values() for key in keys},
        [one.gradients for one in pulled],
        [one.before for one in pulled],
        wanted.rests(pulled),
    )
    return Run(found, dtype, trace.unused, answered.objective, wanted.values(pulled))


@dataclass
class _Trace:
    """One recorded forward pass.

    Attributes:
        returned: what the model returned; None once it was read.
        value: of the user's own objective, computed in the same graph; else None.
        taps: the points that were kept hold of.
        tables: by key the tables of the lookups among them.
        twins: of the frozen parameters, where tables' gradients are asked for.
        also: see `Cures`.
        unused: what of the batch the model could not take.
        first: see `Pullback`.
        functions: those of the user's own that were called.
        needed: tells until when what norms keep is.
    """

    returned: Any
    value: Any
    taps: Taps
    tables: Mapping[str, Any]
    twins: FrozenTwins
    also: list[Any]
    unused: tuple[str, ...]
    first: int | None
    functions: Functions
    needed: Needed


class _Wanted:
    """The arrays beside the points whose gradient is asked for: the parameters', or the tables'."""

    def __init__(self, parts: Sequence[Any], request: Request, trace: _Trace, keys: Sequence[str]) -> None:
        self._parameters = trainable(parts) if request.parameters else None
        arrays = {name: array_of(p) for name, p in (self._parameters or {}).items()}
        self._arrays = {name: array for name, array in arrays.items() if array is not None}
        self._tables = None
        if request.tables:
            self._tables = TableParameters(
                parts, {key: trace.tables[key] for key in keys if key in trace.tables}, trace.twins
            )
        self.arrays = [*self._arrays.values(), *(self._tables.arrays if self._tables is not None else ())]

    def values(self, pulled: Sequence[Pulled]) -> dict[str, ParameterValues] | None:
        """The parameters' gradients by name."""
        if self._parameters is None:
            return None
        gradients = dict(zip(self._arrays, pulled[0].others if pulled else (), strict=False))
        return {name: values_of(p, gradients.get(name)) for name, p in self._parameters.items()}

    def rests(self, pulled: Sequence[Pulled]) -> Any:
        """What else reaches the tables, by key."""
        if self._tables is None:
            return None
        others = pulled[0].others if pulled else [None] * len(self.arrays)
        return self._tables.rests(others[len(self._arrays) :])


def _forward(
    model: Any,
    known: Structure,
    batch: TokenBatch,
    watch: PointWatch,
    request: Request,
    call: Call | None,
    handlers: Mapping[str, Handler] | None = None,
    graphs: Graphs | None = None,
) -> _Trace:
    mx, parts, functions, needed = import_mxnet(), known.parts, Functions(), Needed()
    taps, cures = Taps(watch, request), Cures(request.training, parameters=request.parameters)
    # What reaches a parameter goes through the lookups, too; else nothing below them is differentiated.
    lookups = Lookups(Tables(parts), taps, cut=not request.parameters)
    twins = FrozenTwins(parts if request.tables else ())
    substitute = twins.of if request.tables else None
    value = None
    modules = calling(Modules(parts, taps)) if watch.hears_modules else unheard()
    first = _first_number() if batch.ids.size >= LARGE else None
    running = imperatively if graphs is None else graphs.running
    quicker = _quicker(request, taps, needed)
    with (
        mx.autograd.record(train_mode=request.training),
        running(GraphPoints(taps).within),
        functions.heard(),
        needed.heard(),
    ):
        with (
            watching({**lookups.handlers(), **cures.handlers(), **quicker, **(handlers or {})}, substitute),
            modules,
        ):
            try:
                returned, unused = call_model(model, known, batch, call)
            except mx.MXNetError as error:
                if "already in a computational graph" not in str(error):
                    raise
                raise UnsupportedError(WRITTEN) from error
        if isinstance(request.respond, NativeObjective):  # what is looked up and called from here on is not the model's
            with watching({**cures.handlers(), **quicker}, substitute), unheard():
                value = request.respond.function(returned)
    also = [*cures.also, *(graphs.also if graphs is not None else ())]
    return _Trace(returned, value, taps, lookups.tables, twins, also, unused, first, functions, needed)


def _quicker(request: Request, taps: Taps, needed: Needed) -> dict[str, Handler]:
    """By their names operators whose gradients are computed in another way than MXNet's, which takes longer."""
    if request.parameters or request.tables:
        return {}

    def marked(array: Any) -> bool:
        return any(array is kept.mark for kept in taps.kept.values())

    return {"LayerNorm": partial(layer_norm, is_wanted=marked, needed=needed)}


def _first_number() -> int:
    """The number of what is recorded next."""
    variable = import_mxnet().nd.zeros((1,))
    variable.attach_grad()
    return next_number(variable)


def _answer(trace: _Trace, batch: TokenBatch, request: Request, model: Any, reading: Callable[[Any], None]) -> Answer:
    arrays = GluonArrays(training=request.training, reading=reading)
    if isinstance(request.respond, NativeObjective):
        return native_answer(trace.value, request.respond, batch, arrays, several=request.several)
    known, exported = bert.output_names(model), symbolic.output_names(model)
    # The only output of a symbol goes by its name where it is asked for by that, and else as any model's only output.
    alone = known or tuple(name for name in exported if name in request.outputs)
    named = alone and arrays.is_tensor(trace.returned)
    returned = {alone[0]: trace.returned} if named else trace.returned
    return answer(returned, request, arrays, known or exported)


def _compute_dtype(trace: _Trace, keys: Sequence[str], answered: Answer) -> str:
    """Of the first point, or else of the first output that was read, or else of the first that there is."""
    read = [trace.taps.kept[key].gone_on for key in keys] + [output for one in answered.sets for output, _ in one]
    array = read[0] if read else first(trace.returned, is_floating)
    return "float32" if array is None else GluonArrays().dtype(array)


def _wait_for(returned: Any) -> None:
    """MXNet fails when a result is read: read before anything goes on with it."""
    if GluonArrays().is_tensor(returned):
        returned.wait_to_read()
    elif isinstance(returned, Mapping) or hasattr(returned, "__dataclass_fields__"):
        _wait_for(list((returned if isinstance(returned, Mapping) else vars(returned)).values()))
    elif isinstance(returned, (list, tuple)):
        for entry in returned:
            _wait_for(entry)
