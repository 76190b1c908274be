"""Keeps traces of models, and runs one in a model's place where it gives what the model gives."""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record

from embgrad.backend import Change, NativeObjective, Request, Run
from embgrad.batch import TokenBatch
from embgrad.calling import as_parts
from embgrad.points import WORD
from embgrad.traces import Traces
from embgrad_tensorflow.exchange import FailedError
from embgrad_tensorflow.inputs import Plan
from embgrad_tensorflow.rerun import OtherUseError, run_trace
from embgrad_tensorflow.returned import tensors_in
from embgrad_tensorflow.state import GENERATORS
from embgrad_tensorflow.symbolic import UntraceableError
from embgrad_tensorflow.trace import Trace, is_placeholder, traced
from embgrad_tensorflow.tracing import UnfitError
from embgrad_tensorflow.walk import handle_of, is_keras, walk

__all__ = ["run_kept"]

#: How many lengths have a trace of their own, where one of any length cannot be had.
LENGTHS: Final = 8

#: How far, relative to its size, what a trace gives may be from what the model gives, by the dtype that rounds most in it.
AGREEING: Final[Mapping[Any, float]] = {tf.float64: 1e-8, tf.float32: 1e-4, tf.float16: 5e-2, tf.bfloat16: 1e-1}

_forms: Traces[_Form] = Traces()

#: Runs a request without a trace.
Plain = Callable[[Request], Run]


class _Form:
    """The traces of one way of asking.

    Attributes:
        why: why there can be none.
        exact: whether a trace takes only the lengths that it was made for.
        traces: by the lengths, where they are exact, and the tensors that a native objective uses.
        checked: those and the lengths, as far as they are 1, for which a trace gave what the model gives.
        used: by the code of native objectives what they used last.
    """

    def __init__(self, exact: bool) -> None:
        self.why: str | None = None
        self.exact = exact
        self.traces: OrderedDict[Hashable, Trace] = OrderedDict()
        self.checked: set[Hashable] = set()
        self.used: dict[Hashable, tuple[int, ...]] = {}


def run_kept(model: Any, batch: TokenBatch, request: Request, planned: Plan, plain: Plain) -> Run:
    """Run a trace of the model, if there is one or can be one; else the model.

    A trace is made at the first call, so that each call gives the same bits. Whenever one is new, or meets a length
    of 1 for the first time, which Python often treats apart, the model is run too, and what they give is compared.

    Args:
        model: as in `run`; so are `batch` and `request`.
        planned: how it is called.
        plain: runs it without a trace.
    """
    try:
        expect_traceable(model)
        form = _forms.get(as_parts(model), _key(planned, request), lambda: _Form(planned.fixed))
    except (UntraceableError, TypeError) as error:
        return replace(plain(request), uncompiled=str(error))
    return _Keeper(form, model, batch, request, planned, plain).run()


def expect_traceable(model: Any) -> None:
    """Refuse what its author wants to run as Python.

    Raises:
        UntraceableError: TensorFlow is told to run functions eagerly, or a layer is.
    """
    if tf.config.functions_run_eagerly():
        raise UntraceableError("tf.config.run_functions_eagerly(True) is in force")
    for part in as_parts(model):
        if is_keras(part) and (getattr(part, "_run_eagerly", False) is True or getattr(part, "dynamic", False) is True):
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
        self._planned = planned
        self._plain = plain
        leaves = [one for one in tf.nest.flatten(planned.arguments) if is_placeholder(one)]
        self._lengths = tuple(tuple(map(int, one.shape)) for one in leaves)
        native = request.respond.function if isinstance(request.respond, NativeObjective) else None
        self._code: Hashable = getattr(native, "__code__", type(native).__qualname__)

    def run(self) -> Run:
        """What a trace gives, or the model."""
        if self._form.why is not None:
            return self._without(self._form.why)
        used = self._form.used.get(self._code, ())
        trace = self._form.traces.get(self._place(used))
        if trace is None or self._mark(used) not in self._form.checked:
            return self._first(trace)
        self._form.traces.move_to_end(self._place(used))
        try:
            return run_trace(trace, self._planned, self._batch, self._request)
        except OtherUseError as error:
            self._form.used[self._code] = error.used
            return self._first(self._form.traces.get(self._place(error.used)))
        except (UnfitError, FailedError) as error:
            return self._without(f"the trace failed on this batch ({error})")

    def _first(self, trace: Trace | None) -> Run:
        """What a trace gives, checked by what the model gives; or that."""
        generators = _Generators(self._model, self._request.training)
        recorder = _Recorder(self._request)
        found = self._plain(recorder.recording())
        generators.remember()
        try:
            if trace is None and self._form.exact and len(self._form.traces) >= LENGTHS:
                return self._as_asked(found, f"each length takes a trace of its own, and {LENGTHS} are kept")
            made, given = self._made(trace, recorder, found, generators)
            apart = recorder.apart(found, given, AGREEING[made.coarsest])
            if apart is not None:
                raise UntraceableError(f"{apart} a trace of it differ from what it gives itself")
        except (UntraceableError, UnfitError, FailedError, OtherUseError) as error:
            self._form.why = str(error)
            generators.put_back()
            return self._as_asked(found, self._form.why)
        self._form.traces[self._place(made.used)] = made
        self._form.checked.add(self._mark(made.used))
        self._form.used[self._code] = made.used
        return given

    def _made(self, trace: Trace | None, recorder: _Recorder, found: Run, generators: _Generators) -> tuple[Trace, Run]:
        """A trace that serves, and what it gives."""
        used = recorder.used if trace is None else trace.used
        for _ in range(2):  # what a native objective uses shows when it is run
            trace = trace or self._traced(found, used)
            generators.rewind()
            try:
                return trace, run_trace(trace, self._planned, self._batch, recorder.replaying())
            except OtherUseError as error:
                used = error.used
                trace = self._form.traces.get(self._place(used))
        raise UnfitError("the objective depends on other outputs each time")

    def _traced(self, found: Run, used: tuple[int, ...]) -> Trace:
        chosen = {name: _key_of(name, found) for name in self._request.reached}
        if not self._form.exact:
            try:
                return traced(self._model, self._planned, self._request, chosen, used)
            except UntraceableError:
                self._form.exact = True
        return traced(self._model, self._planned, self._request, chosen, used, relaxed=False)

    def _without(self, why: str) -> Run:
        return self._as_asked(self._plain(self._request), why)

    def _as_asked(self, found: Run, why: str) -> Run:
        return replace(found, uncompiled=why) if self._request.compiled else found

    def _place(self, used: tuple[int, ...]) -> Hashable:
        return (self._lengths if self._form.exact else (), used)

    def _mark(self, used: tuple[int, ...]) -> Hashable:
        return (self._place(used), tuple(tuple(min(size, 2) for size in one) for one in self._lengths))


class _Recorder:
    """Keeps what the functions of a request gave, so that a second run gets the same and none is called twice.

    A native objective is called again, on the trace's own outputs.

    Attributes:
        used: which of the tensors that the model returned a native objective depends on.
    """

    def __init__(self, request: Request) -> None:
        self.used: tuple[int, ...] = ()
        self._request = request
        self._gave: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
        self._sets: Sequence[Mapping[str | None, np.ndarray]] = []
        self._outputs: list[Mapping[str | None, np.ndarray]] = []

    def recording(self) -> Request:
        """The request, for the first run."""
        respond = self._request.respond
        if isinstance(respond, NativeObjective):
            return self._with(self._record, replace(respond, function=self._native(respond)))
        return self._with(self._record, self._respond)

    def replaying(self) -> Request:
        """The request, for another."""
        del self._outputs[1:]
        native = isinstance(self._request.respond, NativeObjective)
        return self._with(self._replay, self._request.respond if native else self._answer)

    def apart(self, found: Run, given: Run, far: float) -> str | None:
        """What is further apart than rounding takes two runs; None for nothing."""
        slack = 1e-6 * max(
            (float(np.abs(one).max(initial=0)) for each in self._sets for one in each.values()), default=1
        )
        for name, values in found.points.items():
            other = given.points[name]
            pairs = [
                *zip(values.gradients, other.gradients, strict=False),
                *zip(values.before, other.before, strict=False),
            ]
            if len(values.gradients) != len(other.gradients) or any(_apart(*pair, far, slack) for pair in pairs):
                return f"the gradients at {name!r} of"
            if _apart(values.activation, other.activation, far, 1e-6):
                return f"the values at {name!r} of"
        if len(self._outputs) == 2 and any(
            _apart(one, self._outputs[1][name], far, 1e-6) for name, one in self._outputs[0].items()
        ):
            return "the outputs of"
        return "the objective's values of" if _apart(found.objective, given.objective, far, 1e-6) else None

    def _with(self, change: Callable[[str, str, Change], Change], respond: Any) -> Request:
        request = self._request

        def made(option: str) -> dict[str, Change]:
            return {key: change(option, key, one) for key, one in getattr(request, option).items()}

        override, add, edit = map(made, ("override", "add", "edit"))
        return replace(request, compiled=False, respond=respond, override=override, add=add, edit=edit)

    def _native(self, objective: NativeObjective) -> Callable[[Any], Any]:
        def function(returned: Any) -> Any:
            tensors = tensors_in(returned)
            floating = [place for place, one in enumerate(tensors) if one.dtype.is_floating]
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch([tensors[place] for place in floating])
                value = objective.function(returned)
            if isinstance(value, tf.Tensor) and value.dtype.is_floating:
                with record.stop_recording():
                    pulled = tape.gradient(value, [tensors[place] for place in floating])
                self.used = tuple(place for place, one in zip(floating, pulled, strict=True) if one is not None)
            return value

        return function

    def _record(self, option: str, key: str, change: Change) -> Change:
        def recorded(value: np.ndarray) -> np.ndarray:
            gave = change(value)
            self._gave[option, key].append(np.array(gave))
            return gave

        return recorded

    def _replay(self, option: str, key: str, change: Change) -> Change:
        order = iter(self._gave[option, key])

        def replayed(value: np.ndarray) -> np.ndarray:
            gave = next(order, None)
            if gave is None or gave.shape != value.shape:
                raise UnfitError("a trace of it comes by the points otherwise than the model itself")
            return gave

        return replayed

    def _respond(self, outputs: Mapping[str | None, np.ndarray]) -> Any:
        assert not isinstance(self._request.respond, NativeObjective)
        self._outputs.append(outputs)
        self._sets = self._request.respond(outputs)
        return self._sets

    def _answer(self, outputs: Mapping[str | None, np.ndarray]) -> Any:
        self._outputs.append(outputs)
        if any(one.shape != outputs[name].shape for name, one in self._outputs[0].items()):
            raise UnfitError("a trace of it gives outputs of other shapes than the model itself")
        return self._sets


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


def _apart(one: np.ndarray | None, other: np.ndarray | None, far: float, slack: float) -> bool:
    """Whether two arrays are further apart than so much of their size, and so much an entry."""
    if one is None or other is None:
        return one is not other
    if one.shape != other.shape or not np.array_equal(np.isfinite(one), np.isfinite(other)):
        return True
    own, others = np.nan_to_num(one).astype(np.float64), np.nan_to_num(other).astype(np.float64)
    return bool(np.linalg.norm(own - others) > far * np.linalg.norm(own) + slack * np.sqrt(own.size))


def _key_of(name: str, found: Run) -> str:
    """The key of the point that a name meant in a run."""
    if name != WORD:
        return name
    lookup = found.points[name].lookup
    assert lookup is not None, "'word' is a lookup"
    return lookup.key


def _key(planned: Plan, request: Request) -> Hashable:
    """All that a trace depends on, beside shapes and values."""
    native = isinstance(request.respond, NativeObjective)
    return (
        repr(tf.nest.map_structure(_described, planned.arguments)),
        planned.outputs,
        planned.graph,
        request.points,
        request.outputs,
        *(tuple(sorted(getattr(request, option))) for option in ("override", "add", "edit")),
        request.training,
        request.several,
        native and request.respond.scalar,  # type: ignore[union-attr]
        native,
        None if request.call is None else _code(request.call),
    )


def _described(value: Any) -> str:
    if is_placeholder(value):
        return f"{value.dtype.name}/{value.shape.rank}"
    if isinstance(value, tf.Tensor):
        return f"{value.dtype.name} {value.numpy()!r}"
    if isinstance(value, (bool, int, float, str, bytes, type(None))):
        return repr(value)
    raise UntraceableError(f"the model is given a {type(value).__qualname__}, which is neither a tensor nor plain")


def _code(function: Any) -> Hashable:
    """Stands for a function: two made of one piece of Python, around the same objects, do the same."""
    if isinstance(function, types.MethodType):
        return (_code(function.__func__), _Same(function.__self__))
    if not isinstance(function, types.FunctionType):
        return _Same(function)
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    held = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
    return (function.__code__, id(function.__globals__), *map(_held, held))


def _held(value: Any) -> Hashable:
    return (type(value), value) if isinstance(value, (bool, int, float, str, bytes, type(None))) else _Same(value)


class _Same:
    """Equal to another that stands for the very same object, for as long as that lives; does not keep it alive."""

    def __init__(self, value: Any) -> None:
        self._number = id(value)
        try:
            self._value: Any = weakref.ref(value)
        except TypeError:  # no weak references to it: equal to nothing
            self._value = lambda: None

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value() is not None and self._value() is other._value()
