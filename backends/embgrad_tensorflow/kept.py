"""Keeps traces of models, and runs one in a model's place where it gives what the model gives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import record

from embgrad.backend import NativeObjective, Request, Run
from embgrad.batch import TokenBatch
from embgrad.bounded import Bounded
from embgrad.calling import as_parts
from embgrad.identity import CHANGING, UntoldError, asked_of, code_of
from embgrad.keras_inputs import is_keras
from embgrad.points import WORD
from embgrad.refusals import OBJECTIVES, Refusals
from embgrad.replaying import Recorder, ReplayError, Tries, agreeing
from embgrad.structures import PLAIN
from embgrad.traces import Traces, UnsettledError
from embgrad_tensorflow.beside import of_the_user, snapshot_of
from embgrad_tensorflow.exchange import FailedError, is_answering
from embgrad_tensorflow.inputs import Plan
from embgrad_tensorflow.rerun import OtherUseError, run_trace
from embgrad_tensorflow.returned import tensors_in
from embgrad_tensorflow.state import GENERATORS, depth, wants_eager
from embgrad_tensorflow.structure import structure
from embgrad_tensorflow.symbolic import UntraceableError
from embgrad_tensorflow.trace import Trace, is_placeholder, traced
from embgrad_tensorflow.tracing import UnfitError
from embgrad_tensorflow.walk import handle_of, walk

__all__ = ["run_kept"]

#: How many lengths have a trace of their own, where one of any length cannot be had.
LENGTHS: Final = 8

#: For how many shapes it is remembered that a trace gives what the model gives.
SHAPES: Final = 256

#: After how many ways of asking in a row, each with a trace that no later call has used, none is made at once.
PATIENCE: Final = 16

_forms: Traces[_Form] = Traces(patience=PATIENCE)

#: Why a trace does not serve.
FAILURES: Final = (UntraceableError, UnfitError, ReplayError, FailedError, OtherUseError)

#: Runs a request without a trace.
Plain = Callable[[Request], Run]


class _FullError(Exception):
    """As many traces are kept as there are to be; says so."""


class _Form:
    """The traces of one way of asking.

    Attributes:
        refusals: why there can be none.
        exact: whether a trace takes only the lengths that it was made for.
        traces: by the lengths, where they are exact, and what the objective uses.
        checked: those and the lengths for which a trace gave what the model gives.
        used: by the kinds of objectives what they used last, see `Trace.used`.
    """

    def __init__(self, exact: bool) -> None:
        self.refusals = Refusals()
        self.exact = exact
        self.traces: dict[Hashable, Trace] = {}
        self.checked: Bounded[bool] = Bounded(SHAPES)
        self.used: Bounded[tuple[int, ...]] = Bounded(OBJECTIVES)


def run_kept(model: Any, batch: TokenBatch, request: Request, planned: Plan, plain: Plain) -> Run:
    """Run a trace of the model, if there is one or can be one; else the model.

    A trace is made at the first call, so that each call gives the same bits. Whenever one is new, or meets lengths
    for the first time, which the model's Python may treat apart, the model is run too, and what they give is compared.

    Args:
        model: as in `run`; so are `batch` and `request`.
        planned: how it is called.
        plain: runs it without a trace.
    """
    if is_answering() or depth() > 1:
        why = "it is asked for by a function that another call waits for"
        return replace(plain(request), uncompiled=why)
    try:
        expect_traceable(model)
        key = (_key(planned, request), _variables(model) if planned.graph is None else ())
        form = _forms.get(as_parts(model), key, lambda: _Form(planned.fixed))
    except (UntraceableError, UntoldError, UnsettledError, TypeError) as error:
        return replace(plain(request), uncompiled=str(error))
    return _Keeper(form, model, batch, request, planned, plain).run()


def expect_traceable(model: Any) -> None:
    """Refuse what its author wants to run as Python.

    Raises:
        UntraceableError: TensorFlow is told to run functions eagerly, or a layer is.
    """
    if wants_eager():
        raise UntraceableError("tf.config.run_functions_eagerly(True) is in force")
    _refuse(model, "_run_eagerly")


def _refuse(model: Any, setting: str) -> None:
    for part in as_parts(model):
        if is_keras(part) and getattr(part, setting, False) is True:
            raise UntraceableError(
                f"{type(part).__qualname__} is set to run eagerly (run_eagerly=True or dynamic=True)"
            )


class _Keeper:
    """One call, in one form."""

    def __init__(
        self, form: _Form, model: Any, batch: TokenBatch, request: Request, planned: Plan, plain: Plain
    ) -> None:
        self._form = form
        self._model = model
        self._batch = batch
        self._request = request
        self._tries = Tries(request)
        self._planned = planned
        self._plain = plain
        leaves = [one for one in tf.nest.flatten(planned.arguments) if is_placeholder(one)]
        self._lengths = tuple(tuple(map(int, one.shape)) for one in leaves)
        self._kind = _kind_of(request)

    def run(self) -> Run:
        """What a trace gives, or the model."""
        why = self._form.refusals.why(self._request)
        if why is not None:
            return self._without(why)
        for _ in range(2):  # what an objective uses shows when it is run
            used = self._form.used.get(self._kind, None)
            trace = None if used is None else self._form.traces.get(self._place(used))
            if used is None or trace is None or not self._form.checked.get(self._mark(used), False):
                break
            try:
                return self._run(trace, self._tries.next())
            except OtherUseError as error:
                self._form.used.put(self._kind, error.used)
            except (UnfitError, FailedError) as error:
                return self._without(_failed(error))
        return self._first()

    def _run(self, trace: Trace, request: Request) -> Run:
        with of_the_user(request, lambda: snapshot_of(self._model, request)) as asked:
            return run_trace(trace, self._planned, self._batch, asked)

    def _first(self) -> Run:
        """What a trace gives, checked by what the model gives; or that."""
        generators = _Generators(self._model, self._request.training)
        recorder = Recorder(self._tries.next(), _watching)
        asked = asked_of(self._request)
        found = self._plain(recorder.recording())
        if asked_of(self._request) != asked:
            return self._as_asked(found, CHANGING)
        generators.remember()
        trace = self._form.traces.get(self._place(recorder.used))
        try:
            return self._checked(recorder.used, recorder, found, generators)
        except _FullError as error:
            return self._as_asked(found, str(error))
        except FAILURES as error:
            generators.put_back()
            if trace is not None and isinstance(error, (UnfitError, FailedError)):  # it serves for other lengths
                return self._as_asked(found, _failed(error))
            self._form.refusals.add(str(error), self._request)
            return self._as_asked(found, str(error))

    def _checked(self, used: tuple[int, ...], recorder: Recorder, found: Run, generators: _Generators) -> Run:
        """What a trace gives that serves, and is kept.

        Args:
            used: what the objective uses, as far as is known.
            recorder: what replays the objective.
            found: what the model gave.
            generators: the random generators.

        Raises:
            _FullError: there would be too many.
        """
        if self._form.exact and self._place(used) not in self._form.traces and len(self._form.traces) >= LENGTHS:
            raise _FullError(f"each length takes a trace of its own, and {LENGTHS} are kept")
        made, given = self._made(used, recorder, found, generators)
        apart = recorder.apart(found, given, agreeing(made.computing))
        if apart is not None:
            raise UntraceableError(apart)
        self._form.traces[self._place(made.used)] = made
        self._form.checked.put(self._mark(made.used), True)
        self._form.used.put(self._kind, made.used)
        return given

    def _made(
        self, used: tuple[int, ...], recorder: Recorder, found: Run, generators: _Generators
    ) -> tuple[Trace, Run]:
        """A trace that serves, and what it gives."""
        for _ in range(2):  # what a native objective uses shows when it is run
            trace = self._form.traces.get(self._place(used)) or self._traced(found, used)
            generators.rewind()
            try:
                return trace, self._run(trace, recorder.replaying())
            except OtherUseError as error:
                used = error.used
        raise UnfitError("the objective depends on other outputs each time")

    def _traced(self, found: Run, used: tuple[int, ...]) -> Trace:
        _refuse(self._model, "dynamic")  # that of any layer, of which Keras asks all, so not at each call
        chosen = {name: _key_of(name, found) for name in self._request.reached}
        if not self._form.exact:
            try:
                return traced(self._model, self._planned, self._request, chosen, used)
            except UntraceableError:
                self._form.exact = True
        return traced(self._model, self._planned, self._request, chosen, used, relaxed=False)

    def _without(self, why: str) -> Run:
        return self._as_asked(self._plain(self._tries.next()), why)

    def _as_asked(self, found: Run, why: str) -> Run:
        return replace(found, uncompiled=why) if self._request.compiled else found

    def _place(self, used: tuple[int, ...]) -> Hashable:
        return (self._lengths if self._form.exact else (), used)

    def _mark(self, used: tuple[int, ...]) -> Hashable:
        """What must have been compared: the lengths, of a graph whether they are 1, of which it may have been made for more."""
        graph = self._planned.graph is not None
        seen = tuple(tuple(min(size, 2) if graph else size for size in one) for one in self._lengths)
        return (self._place(used), seen)


def _failed(error: Exception) -> str:
    return f"the trace failed on this batch ({error})"


def _kind_of(request: Request) -> Hashable:
    """Stands for what tells beforehand, as well as can be, what an objective will use."""
    respond = request.respond
    if isinstance(respond, NativeObjective):
        return code_of(respond.function)
    return None


class _Generators:
    """The random generators' states of a model in training mode: two runs are to draw the same, and count as one."""

    def __init__(self, model: Any, training: bool) -> None:
        nodes = walk(as_parts(model)) if training else ()
        self._variables = [
            getattr(node.value, "_value", node.value)
            for node in nodes
            if node.kind == "variable"
            and handle_of(node.value) is not None
            and any(base.__qualname__ in GENERATORS for base in type(node.owner).__mro__)
        ]
        self._first = self._values()
        self._then: list[Any] = []

    def remember(self) -> None:
        """The first run has ended."""
        self._then = self._values()

    def rewind(self) -> None:
        """Another run is to draw what the first has drawn."""
        self._put(self._first)

    def put_back(self) -> None:
        """As after the first run."""
        self._put(self._then)

    def _values(self) -> list[Any]:
        return [tf.identity(one) for one in self._variables]

    def _put(self, values: Sequence[Any]) -> None:
        for variable, value in zip(self._variables, values, strict=True):
            variable.assign(value)


def _watching(function: Callable[[Any], Any], tell: Callable[[tuple[int, ...]], None]) -> Callable[[Any], Any]:
    """The function of a native objective, which tells what of what the model returned its value depends on."""

    def watched(returned: Any) -> Any:
        tensors = tensors_in(returned)
        floating = [place for place, one in enumerate(tensors) if one.dtype.is_floating]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([tensors[place] for place in floating])
            value = function(returned)
        if isinstance(value, tf.Tensor) and value.dtype.is_floating:
            with record.stop_recording():
                pulled = tape.gradient(value, [tensors[place] for place in floating])
            tell(tuple(place for place, one in zip(floating, pulled, strict=True) if one is not None))
        return value

    return watched


def _key_of(name: str, found: Run) -> str:
    """The key of the point that a name meant in a run."""
    if name != WORD:
        return name
    lookup = found.points[name].lookup
    assert lookup is not None, "'word' is a lookup"
    return lookup.key


def _variables(model: Any) -> tuple[int, ...]:
    """Stands for a model's variables: a trace goes on reading those that it was made with, and keeps them alive.

    Those of a model that makes them in its first call are others before it.
    """
    return tuple([id(handle_of(node.value)) for node in structure(as_parts(model)).nodes if node.kind == "variable"])


def _key(planned: Plan, request: Request) -> Hashable:
    """All that a trace depends on, beside shapes and values."""
    return (
        repr(tf.nest.map_structure(_described, planned.arguments)),
        planned.outputs,
        planned.graph,
        asked_of(request),
    )


def _described(value: Any) -> str:
    if is_placeholder(value):
        return f"{value.dtype.name}/{value.shape.rank}"
    if isinstance(value, tf.Tensor):
        return f"{value.dtype.name} {value.numpy()!r}"
    if isinstance(value, PLAIN):
        return repr(value)
    raise UntraceableError(f"the model is given a {type(value).__qualname__}, which is neither a tensor nor plain")
