"""Keep a `tf.function` of a model's forward pass, the objective's callback and the pullback, and run it at later calls."""

from __future__ import annotations

import contextlib
import queue
import re
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import tensorflow as tf

from embgrad.backend import (
    WORD,
    NativeObjective,
    OtherUseError,
    PassRecorder,
    PointValues,
    Request,
    Response,
    Run,
    TokenBatch,
    TraceCache,
    UnfitError,
    UntraceableError,
    choose_output,
    name_outputs,
    native_answer,
    split_name,
    unused_inputs,
    whole_cotangents,
    with_functions,
)
from embgrad.keras import is_keras
from embgrad.toolkit import (
    PLAIN,
    as_parts,
    coarsest,
    drawn,
    every,
    first,
    is_nest,
    mapped,
    owned,
    process_lock,
    states_of,
    taken,
)
from embgrad_tensorflow.fingerprint import Fingerprint
from embgrad_tensorflow.graphs import CutFunctions, opened
from embgrad_tensorflow.inputs import Plan, TensorFlowTensors
from embgrad_tensorflow.lookup import table_of
from embgrad_tensorflow.modules import Calls, Modules, intercept_calls
from embgrad_tensorflow.state import GENERATORS, depth, eagerly, functions_inlined, in_mode, wants_eager
from embgrad_tensorflow.tap import Taps, dense, for_user_code, snapshot_of
from embgrad_tensorflow.tracing import Script, Tracer
from embgrad_tensorflow.walk import Tables, handle_of, has_base, kind_of, native_variable, on_devices, walk

__all__ = ["Trace", "run_kept", "run_trace", "traced"]

#: The reason why a model that draws from Python's or NumPy's generators is not traced.
DRAWS: Final = "the model draws random numbers from Python's or NumPy's generator, which a trace would draw once"

#: Text that Keras, TensorFlow and terminals add to an error's message.
WRAPPED: Final = re.compile(r"^(Exception encountered when calling|in user code:|\s*File \")")
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")

#: The types of returned values that hold no tensor.
WITHOUT_TENSORS: Final = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    np.ndarray,
    np.generic,
    tf.DType,
    tf.TensorShape,
)


def run_kept(model: Any, batch: TokenBatch, request: Request, planned: Plan, plain: Callable[[Request], Run]) -> Run:
    """Run a trace of the model, if there is one or can be one; else the model.

    Args:
        model: as in `run`; so are `batch` and `request`.
        planned: how it is called.
        plain: runs it without a trace.
    """
    if depth() > 1:
        return replace(plain(request), uncompiled="a callback of another embgrad call requested it")
    call = () if request.call is None else (request.call,)
    try:
        _expect_traceable(model)
        question = (
            repr(tf.nest.map_structure(_described, planned.arguments)),
            planned.outputs,
            *(request.points, _outputs_of(request), request.training, request.several),
            *(tuple(sorted(getattr(request, option))) for option in ("override", "add", "edit")),
            *(objective.scalar for objective in request.objectives if isinstance(objective, NativeObjective)),
        )
    except UntraceableError as error:
        return replace(plain(request), uncompiled=str(error))
    fingerprint = Fingerprint((*as_parts(model), *call))
    question = (*question, repr(fingerprint.of_parts[-1]) if call else None)
    lengths = tuple(tuple(map(int, tensor.shape)) for tensor in _placeholders(planned))
    maker = _Maker(model, batch, request, planned, plain)
    return _kept.run(as_parts(model), question, fingerprint, lengths, request, maker)


def _outputs_of(request: Request) -> tuple[str | None, ...]:
    """Return the names of the outputs that the objective reads; none where it is native."""
    return tuple(
        name
        for objective in request.objectives
        if not isinstance(objective, NativeObjective)
        for name in objective.outputs
    )


def _expect_traceable(model: Any) -> None:
    """Refuse a model whose author wants it to run as Python.

    Raises:
        UntraceableError: TensorFlow was set to run functions eagerly, or a layer was.
    """
    if wants_eager():
        raise UntraceableError("tf.config.run_functions_eagerly(True) is set")
    for part in as_parts(model):
        if is_keras(part) and getattr(part, "run_eagerly", False) is True:
            raise UntraceableError(
                f"{type(part).__qualname__} is set to run eagerly (run_eagerly=True or dynamic=True)"
            )


def _described(value: Any) -> str:
    if _is_placeholder(value):
        return f"{value.dtype.name}/{value.shape.rank}"
    if isinstance(value, tf.Tensor):
        return f"{value.dtype.name} {value.numpy()!r}"
    if isinstance(value, PLAIN):
        return repr(value)
    raise UntraceableError(
        f"the model receives a {type(value).__qualname__}, which is neither a tensor nor a plain value"
    )


def _is_placeholder(value: Any) -> bool:
    """Return whether an argument is a tensor that a trace takes; a flag is a part of the trace."""
    return isinstance(value, tf.Tensor) and not (value.dtype == tf.bool and value.shape.rank == 0)


def _placeholders(planned: Plan) -> list[Any]:
    return [value for value in tf.nest.flatten(planned.arguments) if _is_placeholder(value)]


class _Maker:
    """One call of a model, see `embgrad.backend.trace_cache.TraceMaker`."""

    def __init__(
        self, model: Any, batch: TokenBatch, request: Request, planned: Plan, plain: Callable[[Request], Run]
    ) -> None:
        self._model = model
        self._batch = batch
        self._request = request
        self._planned = planned
        self._plain = plain
        self._before: list[tuple[Any, Any]] = []

    def plain(self, request: Request) -> Run:
        """Run the model without a trace."""
        self._before = self._generators()
        return self._plain(request)

    def watched(self, function: Callable[[Any], Any], tell: Callable[[tuple[int, ...]], None]) -> Callable[[Any], Any]:
        """Return a native objective's function that reports on which of the returned tensors its value depends."""

        def calling(returned: Any) -> Any:
            tensors = every(returned, _is_tensor)
            floating = [index for index, entry in enumerate(tensors) if entry.dtype.is_floating]
            with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
                tape.watch([tensors[index] for index in floating])
                value = function(returned)
                if isinstance(value, tf.Tensor) and value.dtype.is_floating:
                    with tape.stop_recording():
                        pulled = tape.gradient(value, [tensors[index] for index in floating])
                    tell(tuple(index for index, entry in zip(floating, pulled, strict=True) if entry is not None))
            return value

        return calling

    def make(self, result: Run, used: tuple[int, ...], *, exact: bool) -> Trace:
        """Return a new trace."""
        if any(getattr(part, "dynamic", False) is True for part in as_parts(self._model) if is_keras(part)):
            raise UntraceableError("a layer is set to run eagerly (dynamic=True)")  # Keras asks all layers
        chosen = {name: _key_of(name, result) for name in self._request.reached}
        return traced(self._model, self._planned, self._request, chosen, used, relaxed=not exact)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Turn the model's generators back for another run that draws the same."""
        states = self._generators()
        for variable, value in self._before:
            variable.assign(value)
        try:
            yield
        except BaseException:
            for variable, value in states:
                variable.assign(value)
            raise

    def run(self, trace: Trace, request: Request) -> Run:
        """Run a trace."""
        with for_user_code(request, lambda: snapshot_of(self._model, request)) as asked:
            return run_trace(trace, self._planned, self._batch, asked)

    def dtypes(self, trace: Trace) -> Sequence[str]:
        """Return the names of the dtypes in which a trace computes."""
        return [*trace.computing]

    def _generators(self) -> list[tuple[Any, Any]]:
        """Return the variables of the model's random generators in training mode, with their values."""
        nodes = walk(as_parts(self._model)) if self._request.training else ()
        variables = [
            native_variable(node.value) for node in nodes if _is_generators(node) and handle_of(node.value) is not None
        ]
        return [(variable, tf.identity(variable)) for variable in variables]


def _is_generators(node: Any) -> bool:
    return node.kind == "variable" and has_base(node.owner, *GENERATORS)


def _key_of(name: str, result: Run) -> str:
    """Return the key of the point that a name meant in a run."""
    if name != WORD:
        return name
    lookup = result.points[name].lookup
    assert lookup is not None, "'word' is a lookup"
    return lookup.key


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor)  # no sparse, ragged or symbolic one


def _is_unknown(value: Any) -> bool:
    """Return whether a returned value may hold tensors which nobody finds."""
    known = is_nest(value) or isinstance(value, (tf.Tensor, *WITHOUT_TENSORS))
    return not (known or kind_of(type(value)) == "variable")


# Making a trace


@dataclass(frozen=True, eq=False)
class Trace:
    """A kept trace of a model.

    Attributes:
        function: takes the tensors among the arguments, and gives the values at the points and then the gradients.
        exchange: answers the function's questions.
        script: the lookups of the forward pass.
        chosen: by the name asked for the key of its point.
        keys: those to read, in order.
        reached: for each whether the objective depends on it.
        returned: the model's return value with the graph's tensors, for a native objective.
        used: the numbers of the tensors in it that a native objective depends on.
        written: the resources of the variables that a run writes to and that are restored.
        compute_dtype: that of the first point or output, or the coarsest of those into which it is cast.
        computing: the names of the dtypes in the graph.
    """

    function: Any
    exchange: _Exchange
    script: Script
    chosen: Mapping[str, str]
    keys: tuple[str, ...]
    reached: tuple[bool, ...]
    returned: Any
    used: tuple[int, ...]
    written: tuple[Any, ...]
    compute_dtype: str
    computing: frozenset[str]


_kept: Final[TraceCache[Trace]] = TraceCache()


def traced(
    model: Any, planned: Plan, request: Request, chosen: Mapping[str, str], used: tuple[int, ...], *, relaxed: bool
) -> Trace:
    """Return a trace of the model, which refers neither to the model nor to what may differ from call to call.

    Args:
        model: as in `run`.
        planned: how it is called.
        request: the request.
        chosen: by the name of each point asked for its key.
        used: see `Trace.used`.
        relaxed: whether it is to take tensors of any lengths.

    Raises:
        UntraceableError: there is no such trace.
    """
    tracing = _Tracing(model, planned, request, chosen, used)
    specs = [
        tf.TensorSpec([None] * tensor.shape.rank if relaxed else tensor.shape, tensor.dtype)
        for tensor in _placeholders(planned)
    ]
    try:
        with process_lock, tracing.preserved():
            function = tf.function(tracing.body, autograph=False).get_concrete_function(*specs)
    except Exception as error:  # the model's Python may do anything that a graph cannot
        raise UntraceableError(_why(error)) from error
    return tracing.trace(function)


class _Tracing:
    """One trace while it is made."""

    def __init__(
        self, model: Any, planned: Plan, request: Request, chosen: Mapping[str, str], used: tuple[int, ...]
    ) -> None:
        self._model = model
        self._parts = as_parts(model)
        self._planned = planned
        self._request = request
        self._chosen = chosen
        self._keys = tuple(dict.fromkeys(chosen[name] for name in request.points))
        self._used = used
        self._seeds: set[int] = set()
        self._facts: dict[str, Any] = {}
        self._reached: list[bool] = []
        self._exchange = _Exchange()

    @contextlib.contextmanager
    def preserved(self) -> Iterator[None]:
        """Trace the model in its mode; afterwards it is as it was. A model that draws from Python's generators is refused."""
        snapshot = snapshot_of(self._model, self._request)
        self._seeds = {
            id(handle_of(variable))
            for node in snapshot.nodes
            if _is_generators(node)
            for variable in on_devices(node.value)
        }
        states = (drawn(), states_of(snapshot.generators))
        try:
            with eagerly(), in_mode(self._request.training), functions_inlined():
                yield
            if (drawn(), states_of(snapshot.generators)) != states:
                raise UntraceableError(DRAWS)
        finally:
            snapshot.restore(())

    def body(self, *tensors: Any) -> list[Any]:
        """Run the forward pass, ask for the cotangents and pull them back, in the graph."""
        tape = tf.GradientTape(watch_accessed_variables=False)  # a loop over the sets contains a single pullback
        taps = Taps(tape, self._asking(), symbolic=True)
        script = Script({*self._chosen.values(), *self._request.reached} - {WORD})
        tracer = Tracer(script, Tables(self._parts), taps)
        with tape, self._watched(script, tracer, taps):
            values = iter(tensors)
            returned = self._planned.invoke(
                tf.nest.map_structure(
                    lambda value: next(values) if _is_placeholder(value) else value, self._planned.arguments
                )
            )
        missing = [key for key in dict.fromkeys(self._chosen.values()) if key not in taps.kept]
        if missing:
            raise UntraceableError(
                f"the traced pass does not reach {missing[0]!r} (a product with one-hot rows is recognized only in "
                "eager execution)"
            )
        marks = [taps.kept[key] for key in self._keys]
        everything = every(returned, _is_tensor)
        targets, cotangents = self._answered(script, returned, everything)
        start = [*marks, *targets, *everything][0].dtype
        self._facts.update(script=script, written=tracer.written)
        self._facts["coarsest"] = coarsest(dtype.name for dtype in (start, *tracer.computing))
        return [*marks, *self._pulled(tape, targets, cotangents, marks)]

    def trace(self, function: Any) -> Trace:
        """Return the trace of the function that was made."""
        facts = self._facts
        seeds = self._seeds if self._request.training else set()
        written = {id(entry): entry for entry in facts["written"] if id(entry) not in seeds}
        dtypes = {entry.dtype for operation in function.graph.get_operations() for entry in operation.outputs}
        native = self._request.has_native
        return Trace(
            function,
            self._exchange,
            facts["script"],
            dict(self._chosen),
            self._keys,
            tuple(self._reached),
            facts["returned"] if native else None,
            self._used,
            tuple(written.values()),
            facts["coarsest"],
            frozenset(entry.name for entry in dtypes),
        )

    def _asking(self) -> Request:
        """Return the request with functions at its points that ask for the tensor when the trace runs."""

        def ask_at(option: str, key: str, _: Any) -> Callable[[Any], Any]:
            def ask(tensor: Any) -> Any:
                (changed,) = self._exchange.ask(f"{option} {key}", [tensor], [tensor.dtype])
                changed.set_shape(tensor.shape)
                return changed

            return ask

        return with_functions(self._request, ask_at)

    @contextlib.contextmanager
    def _watched(self, script: Script, tracer: Tracer, taps: Taps) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if script.modules:
                modules = Modules(self._parts)
                calls = Calls(script, modules, taps.replace, lambda: taps.working, traced=True)
                stack.enter_context(intercept_calls(calls.around, modules.classes))
            stack.enter_context(opened(CutFunctions(script, taps.replace, tracer.perform, tracer.record_graph)))
            stack.enter_context(tracer.watching())
            yield

    def _answered(self, script: Script, returned: Any, tensors: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the tensors that are pulled back and their cotangents, with an axis of sets first."""
        if self._request.has_native:
            unknown = first(returned, _is_unknown)
            if unknown is not None:  # the objective would read a tensor of the graph
                raise UntraceableError(
                    f"it returns a {type(unknown).__qualname__}, which is neither a tensor nor a plain value"
                )
            self._facts["returned"] = returned
            targets, handed = [tensors[index] for index in self._used], [*tensors]
        else:
            named = name_outputs(returned, _is_tensor, self._planned.outputs)
            targets = handed = [named[choose_output(named, wanted)] for wanted in _outputs_of(self._request)]
        dtypes = [target.dtype for target in targets]
        *cotangents, _ = self._exchange.ask("respond", [*script.tensors, *handed], [*dtypes, tf.int32])
        for cotangent, target in zip(cotangents, targets, strict=True):
            if target.shape.rank is not None:
                cotangent.set_shape([None, *target.shape])
        return targets, cotangents

    def _pulled(self, tape: Any, targets: Sequence[Any], cotangents: Sequence[Any], marks: Sequence[Any]) -> list[Any]:
        """Return the gradients at the points that the objective depends on; with several sets, an axis of sets first."""

        def pull_back(upstream: Sequence[Any]) -> list[Any]:
            pulled: Sequence[Any] = [None] * len(marks)
            if marks and targets:
                pulled = tape.gradient(list(targets), list(marks), output_gradients=list(upstream))
            self._reached[:] = [entry is not None for entry in pulled]
            return [dense(entry) for entry in pulled if entry is not None]

        if not self._request.several or not targets or not marks:
            return pull_back([entry[0] for entry in cotangents])

        def pull_back_set(upstream: Sequence[Any]) -> list[Any]:
            gradients = iter(pull_back(upstream))
            return [
                next(gradients) if is_reached else tf.zeros_like(mark)
                for mark, is_reached in zip(marks, self._reached, strict=True)
            ]

        stacked = tf.map_fn(
            pull_back_set, list(cotangents), fn_output_signature=[entry.dtype for entry in marks], parallel_iterations=1
        )
        return [entry for entry, is_reached in zip(stacked, self._reached, strict=True) if is_reached]


def _why(error: BaseException) -> str:
    """Return the reason why a model could not be traced. Keras wraps errors that a layer raises."""
    own_error: BaseException | None = None
    current: BaseException | None = error
    while current is not None:
        own_error = current if isinstance(current, UntraceableError) else own_error
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    if own_error is not None:
        return str(own_error)
    lines = [line for line in COLOURS.sub("", str(error)).splitlines() if line.strip() and not WRAPPED.search(line)]
    first = lines[0].strip() if lines else ""
    first = first if len(first) <= 160 else f"{first[:159]}…"
    return f"the model's Python cannot be traced into a graph ({type(error).__name__}: {first})"


# Running a trace


def run_trace(trace: Trace, planned: Plan, batch: TokenBatch, request: Request) -> Run:
    """Run a trace.

    Raises:
        UnfitError: the trace does not serve for this batch.
        OtherUseError: it does not serve for this objective.
        EmbgradError: as without a trace.
    """
    answering = _Responder(trace, batch, request)
    with _restored(trace.written):
        results = trace.exchange.run(trace.function, _placeholders(planned), answering.answer)
    activations = {key: taken(value.numpy()) for key, value in zip(trace.keys, results, strict=False)}
    gradients_left = iter(results[len(trace.keys) :])
    arrays = {
        key: next(gradients_left).numpy() if is_reached else None
        for key, is_reached in zip(trace.keys, trace.reached, strict=True)
    }
    points = {}
    for name in request.points:
        key = trace.chosen[name]
        gradient = arrays[key]
        gradients = [_of_set(gradient, number, request.several) for number in range(answering.sets)]
        before = tuple(answering.before[key][: answering.sets])
        lookup = answering.lookup(key) if split_name(key).side is None else None
        points[name] = PointValues(activations[key], tuple(gradients), lookup, before)
    rows = [lookup.padding for lookup in answering.watch.lookups if lookup.layout is not None]
    unused, masked_id = unused_inputs(planned.unused, batch, rows, points.values())
    responses = () if answering.response is None else (answering.response,)
    return Run(points, trace.compute_dtype, unused, responses, masked_id=masked_id)


def _of_set(gradient: np.ndarray | None, number: int, several: bool) -> np.ndarray | None:
    if gradient is None:
        return None
    return owned(gradient[number]) if several else taken(gradient)


class _Responder:
    """The answers of one run.

    Attributes:
        watch: records the lookups.
        sets: how many sets of cotangents there are.
        response: what the objective returned.
        before: by key the gradients that were edited, as they came, one for each set.
    """

    def __init__(self, trace: Trace, batch: TokenBatch, request: Request) -> None:
        lookups = [name for name in request.reached if name == WORD or split_name(name).side is None]
        self.watch = PassRecorder(batch, lookups)
        self.sets = 1
        self.response: Response | None = None
        self.before: defaultdict[str, list[np.ndarray]] = defaultdict(list)
        self._trace = trace
        self._batch = batch
        self._request = request

    def lookup(self, key: str) -> Any:
        """Return the lookup of that key."""
        return self.watch.recorded(key)

    def answer(self, name: str, values: Sequence[np.ndarray]) -> Sequence[Any]:
        """Return the answer to a question; that of a change is named by the option and the point's key."""
        option, _, key = name.partition(" ")
        if option == "edit":
            return [self._edit(key, values[0])]
        if option != "respond":
            return [_as(getattr(self._request, option)[key](owned(values[0])), values[0].dtype)]
        count = len(self._trace.script.tensors)
        self._trace.script.report(self.watch, values[:count])
        chosen = self.watch.resolve()
        if any(self._trace.chosen[name] != key for name, key in chosen.items()):
            raise UnfitError("the ids were looked up elsewhere when the trace was made")
        native = self._request.has_native
        return [*(self._native if native else self._respond)(values[count:]), np.int32(0)]

    def _respond(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        # where only values are requested, the graph pulls back zeros, which are discarded
        (objective,) = self._request.objectives
        assert not isinstance(objective, NativeObjective)
        cotangents, self.sets, self.response = whole_cotangents(objective, values, several=self._request.several)
        return cotangents

    def _native(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        (objective,), request = self._request.objectives, self._request
        assert isinstance(objective, NativeObjective)
        tensors = [tf.constant(entry) for entry in values]
        floating = [index for index, entry in enumerate(tensors) if entry.dtype.is_floating]
        remaining = iter(tensors)
        with tf.GradientTape(persistent=request.several, watch_accessed_variables=False) as tape:
            tape.watch([tensors[index] for index in floating])
            value = objective.function(mapped(self._trace.returned, _is_tensor, lambda _: next(remaining)))
            answer = native_answer(value, objective, self._batch, TensorFlowTensors(), several=request.several)
        pulled = [
            tape.gradient(value, [tensors[index] for index in floating], tf.cast(tf.constant(entry), value.dtype))
            for ((value, entry),) in answer.sets
        ]
        self.response, self.sets = answer.response, len(pulled)
        gradients = {
            index: entries
            for index, *entries in zip(floating, *pulled, strict=True)
            if any(entry is not None for entry in entries)
        }
        if tuple(gradients) != self._trace.used:
            raise OtherUseError(tuple(gradients))
        return [np.stack([_filled(entry, tensors[index]) for entry in entries]) for index, entries in gradients.items()]

    def _edit(self, key: str, gradient: np.ndarray) -> np.ndarray:
        original = owned(gradient)
        if not self.sets:
            return original
        self.before[key].append(original.copy())
        return _as(self._request.edit[key](original), gradient.dtype)


def _filled(gradient: Any, tensor: Any) -> np.ndarray:
    filled: np.ndarray = (tf.zeros_like(tensor) if gradient is None else tf.convert_to_tensor(gradient)).numpy()
    return filled


def _as(array: Any, dtype: Any) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(array), dtype=dtype)


@contextlib.contextmanager
def _restored(written: Sequence[Any]) -> Iterator[None]:
    """Restore the variables that a run writes to."""
    values = [(handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=table_of(handle)[1])) for handle in written]
    try:
        yield
    finally:
        for handle, value in values:
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)


class _Exchange:
    """A way for a graph to ask questions, which the thread that runs it answers.

    That thread holds the caller's locks and state and can be interrupted, so another one runs the function meanwhile.
    """

    def __init__(self) -> None:
        self._questions: queue.SimpleQueue[tuple[str, Sequence[Any], Future[list[Any]]] | None] = queue.SimpleQueue()

    def ask(self, name: str, tensors: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
        """Add a question to the graph that is being traced, and return the answer's tensors, which have no gradient."""

        def asked(*values: Any) -> list[Any]:
            reply: Future[list[Any]] = Future()
            self._questions.put((name, values, reply))
            return reply.result()

        # the inputs of a py_function would be kept for a gradient until the next run
        return list(tf.numpy_function(asked, [*tensors], list(dtypes)))

    def run(
        self, function: Any, arguments: Sequence[Any], answer: Callable[[str, Sequence[np.ndarray]], Sequence[Any]]
    ) -> Sequence[Any]:
        """Return what a function gives, or raise what an answer raised once the function has ended.

        Raises:
            UnfitError: the function failed by itself.
        """
        result: Future[Sequence[Any]] = Future()
        thread = threading.Thread(target=self._call, args=(function, arguments, result), daemon=True)
        thread.start()
        failure: BaseException | None = None
        question: Any = ()
        while question is not None:
            try:
                question = question or self._questions.get()
                if question:
                    name, values, reply = question
                    if failure is not None and not reply.done():
                        reply.set_exception(_StoppedError("an answer failed"))
                    if not reply.done():
                        reply.set_result(list(answer(name, values)))
                    question = ()
            except BaseException as error:  # an interrupt, too: the function has to end before anything is restored
                failure = failure or error
        if failure is not None:
            raise failure
        wrong = result.exception()
        if wrong is not None:
            first = next(iter(str(wrong).strip().splitlines()), "")[:160]
            raise UnfitError(f"{type(wrong).__name__}: {first}") from wrong
        return result.result()

    def _call(self, function: Any, arguments: Sequence[Any], result: Future[Sequence[Any]]) -> None:
        try:
            result.set_result(function(*arguments))
        except BaseException as error:
            result.set_exception(error)
        finally:
            self._questions.put(None)


class _StoppedError(Exception):
    """The error that ends a function one of whose questions could not be answered."""
