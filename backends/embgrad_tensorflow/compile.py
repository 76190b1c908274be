"""Keep the graph of a model's call, and run it at later calls in the way in which the graph of a saved model runs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import tensorflow as tf

from embgrad.backend import ModelPass, Request, Run, TraceCache, UntraceableError, split_name
from embgrad.keras import is_keras
from embgrad.toolkit import PLAIN, as_parts, draw_states, every, first, is_nest, map_nest, process_lock, states_of
from embgrad_tensorflow.fingerprint import Fingerprint, Structure, structure
from embgrad_tensorflow.flattening import ClosedGraphError
from embgrad_tensorflow.functions import saved_functions_called
from embgrad_tensorflow.graphs import CutGraph, cut_trace
from embgrad_tensorflow.inputs import Plan
from embgrad_tensorflow.modules import Calls, Modules, intercept_calls
from embgrad_tensorflow.operations import PYTHON, RANDOM
from embgrad_tensorflow.state import (
    GENERATORS,
    Snapshot,
    depth,
    eagerly,
    find_shared,
    functions_inlined,
    in_mode,
    wants_eager,
)
from embgrad_tensorflow.tap import snapshot_of
from embgrad_tensorflow.tracing import TracedCalls
from embgrad_tensorflow.walk import handle_of, has_base, kinds, native_variable, on_devices

__all__ = ["Trace", "placeholders", "run_kept", "trace_model"]

#: The reason why a model that draws from Python's or NumPy's generators is not traced.
DRAWS: Final = "the model draws random numbers from Python's or NumPy's generator, which a trace would draw once"

#: Text that Keras, TensorFlow and terminals add to an error's message.
WRAPPED: Final = re.compile(r"^(Exception encountered when calling|in user code:|\s*File \")")
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")

#: The types of returned values that hold no tensor.
WITHOUT_TENSORS: Final = (
    *(type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, tf.DType, tf.TensorShape),
)


def run_kept(
    model: Any, request: Request, planned: Plan, pass_of: Callable[[Request, Trace | None, Structure | None], ModelPass]
) -> Run:
    """Run the kept graph of the model's call, if there is one or can be one; else the model.

    Args:
        model: as in `run`; so is `request`.
        planned: how it is called.
        pass_of: returns a pass of a request that runs the model's Python, or a trace of the model, with the model's structure.
    """
    reason = "a callback of another embgrad call requested it" if depth() > 1 else None
    if request.reduce is not None:
        reason = "a trace returns whole gradients, and reduced ones are requested"
    parts, call = as_parts(model), () if request.call is None else (request.call,)
    try:
        if reason is not None:
            raise UntraceableError(reason)
        _expect_traceable(parts)
        arguments = repr(tf.nest.map_structure(_describe, planned.arguments))
    except UntraceableError as error:
        return replace(pass_of(request, None, None).run(), uncompiled=str(error))
    known = structure(parts)
    fingerprint = Fingerprint((*parts, *call)) if call else known.fingerprint
    called = repr(fingerprint.of_parts[-1]) if call else None
    question = (arguments, called, request.training, _modules(request))
    lengths = tuple(tuple(map(int, tensor.shape)) for tensor in placeholders(planned))
    return _kept.run(parts, question, fingerprint, lengths, request, _Maker(model, planned, known, pass_of))


def _modules(request: Request) -> frozenset[str]:
    """Return the paths of the modules at whose calls a request reads or changes values."""
    return frozenset(name.path for name in map(split_name, request.reached) if name.side is not None)


def _expect_traceable(parts: Sequence[Any]) -> None:
    """Refuse a model whose author wants it to run as Python."""
    if wants_eager():
        raise UntraceableError("tf.config.run_functions_eagerly(True) is set")
    for part in parts:
        if is_keras(part) and getattr(part, "run_eagerly", False) is True:
            raise UntraceableError(
                f"{type(part).__qualname__} is set to run eagerly (run_eagerly=True or dynamic=True)"
            )


def _describe(value: Any) -> str:
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


def placeholders(planned: Plan) -> list[Any]:
    """Return the tensors among the arguments of a call that a trace takes."""
    return [value for value in tf.nest.flatten(planned.arguments) if _is_placeholder(value)]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor)  # no sparse, ragged or symbolic one


def _is_unknown(value: Any) -> bool:
    """Return whether a returned value may hold tensors which nobody finds."""
    known = is_nest(value) or isinstance(value, (tf.Tensor, *WITHOUT_TENSORS))
    return not (known or kinds[type(value)] == "variable")


@dataclass(frozen=True, eq=False)
class Trace:
    """The kept graph of a model's call.

    Attributes:
        returned: the model's return value with the graph's own tensors, and None for objects in which nobody finds tensors.
        unknown: the name of the class of such an object; None where there is none.
    """

    graph: CutGraph
    returned: Any
    unknown: str | None
    dtypes: frozenset[str]

    def pack(self, results: Sequence[Any]) -> Any:
        """Return the graph's results in the structure of the model's return value."""
        remaining = iter(results)
        return map_nest(self.returned, _is_tensor, lambda _: next(remaining))


_kept: Final[TraceCache[Trace]] = TraceCache()


class _Maker:
    """One call of a model, see `embgrad.backend.trace_cache.TraceMaker`."""

    def __init__(
        self,
        model: Any,
        planned: Plan,
        known: Structure,
        pass_of: Callable[[Request, Trace | None, Structure | None], ModelPass],
    ) -> None:
        self._model = model
        self._planned = planned
        self._known = known
        self._pass_of = pass_of
        self._before: list[tuple[Any, Any]] = []

    def plain(self, request: Request) -> Run:
        """Run the model without a trace."""
        generators = [
            native_variable(node.value)
            for node in (self._known.nodes if request.training else ())
            if _is_generators(node) and handle_of(node.value) is not None
        ]
        self._before = [(variable, tf.identity(variable)) for variable in generators]
        return self._pass_of(request, None, None).run()

    def make(self, request: Request, *, exact: bool) -> Trace:
        """Return a new trace."""
        if any(getattr(part, "dynamic", False) is True for part in as_parts(self._model) if is_keras(part)):
            raise UntraceableError("a layer is set to run eagerly (dynamic=True)")  # Keras asks all layers
        return trace_model(self._model, self._planned, request, relaxed=not exact)

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Turn the model's generators back for another run that draws the same."""
        states = [(variable, tf.identity(variable)) for variable, _ in self._before]
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
        if trace.unknown is not None and request.has_native:  # the objective would read a tensor of the graph
            raise UntraceableError(f"it returns a {trace.unknown}, which is neither a tensor nor a plain value")
        return self._pass_of(request, trace, self._known).run()

    def dtypes(self, trace: Trace) -> Sequence[str]:
        """Return the names of the dtypes in which a trace computes."""
        return [*trace.dtypes]


def _is_generators(node: Any) -> bool:
    return node.kind == "variable" and has_base(node.owner, *GENERATORS)


# Making a trace


def trace_model(model: Any, planned: Plan, request: Request, *, relaxed: bool) -> Trace:
    """Return a trace of the model, which refers neither to the model nor to what may differ from call to call.

    Args:
        model: as in `run`.
        planned: how it is called.
        request: the request.
        relaxed: whether it is to take tensors of any lengths.

    Raises:
        UntraceableError: there is no such trace.
    """
    made: list[tuple[Any, TracedCalls]] = []

    def body(*tensors: Any) -> list[Any]:
        values, calls = iter(tensors), TracedCalls(_modules(request))
        given = tf.nest.map_structure(
            lambda value: next(values) if _is_placeholder(value) else value, planned.arguments
        )
        with _calls_marked(as_parts(model), calls):
            returned = planned.invoke(given)
        made[:] = [(returned, calls)]  # TensorFlow traces again where the model makes variables
        return every(returned, _is_tensor)

    specs = [
        tf.TensorSpec([None] * tensor.shape.rank if relaxed else tensor.shape, tensor.dtype)
        for tensor in placeholders(planned)
    ]
    snapshot = snapshot_of(model, request)
    generators = {
        id(handle_of(variable))
        for node in snapshot.nodes
        if _is_generators(node)
        for variable in on_devices(node.value)
    }
    try:
        with process_lock, _preserve(snapshot, request.training):
            function = tf.function(body, autograph=False).get_concrete_function(*specs)
        (returned, calls), *_ = made
        graph = cut_trace(function, calls.calls, generators)
        _expect_repeatable(graph)
    except Exception as error:  # the model's Python may do anything that a graph cannot
        raise UntraceableError(_why(error)) from error
    unknown = first(returned, _is_unknown)
    dtypes = {entry.dtype.name for operation in function.graph.get_operations() for entry in operation.outputs}
    return Trace(
        graph,
        map_nest(returned, _is_unknown, lambda _: None),
        None if unknown is None else type(unknown).__qualname__,
        frozenset(dtypes),
    )


@contextlib.contextmanager
def _preserve(snapshot: Snapshot, training: bool) -> Iterator[None]:
    """Trace the model in its mode; afterwards it is as it was. A model that draws from Python's generators is refused."""
    states = (draw_states(), states_of(snapshot.generators))
    try:
        with eagerly(), in_mode(training), functions_inlined(), saved_functions_called():
            yield
        if (draw_states(), states_of(snapshot.generators)) != states:
            raise UntraceableError(DRAWS)
    finally:
        snapshot.restore(())


@contextlib.contextmanager
def _calls_marked(parts: Sequence[Any], recorded: TracedCalls) -> Iterator[None]:
    """Mark the tensors at which the calls of requested modules begin and end."""
    if not recorded.modules:
        yield
        return
    modules = Modules(parts)
    calls = Calls(recorded, modules, recorded.mark, traced=True)
    with intercept_calls(calls.around, modules.classes):
        yield


def _expect_repeatable(graph: CutGraph) -> None:
    """Refuse a graph that does not give in each run what the model's Python would."""
    operations = graph.operations
    draws = next((name for name in operations if name in RANDOM), None)
    if draws is not None:
        raise UntraceableError(f"the model draws random numbers ({draws}), which a trace would draw differently")
    python = next((name for name in operations if name in PYTHON), None)
    if python is not None:
        raise UntraceableError(
            f"the model runs Python in its graph ({python}), which may write to objects outside the trace"
        )
    if any(handle is variable.handle for handle, _ in graph.written for variable in find_shared()):
        raise UntraceableError(
            "the model draws from a random generator that models share, which a trace cannot restore"
        )
    if graph.foreign is not None:
        raise UntraceableError(f"the model writes ({graph.foreign}) to a resource that is not a variable of the model")
    opaque = next((gradient for gradient in graph.flat.gradients if gradient.function is None), None)
    if opaque is not None:
        raise UntraceableError(f"the gradient of its own of {opaque.where!r} {opaque.why}")


def _why(error: BaseException) -> str:
    """Return the reason why a model could not be traced. Keras wraps errors that a layer raises."""
    own_error: BaseException | None = None
    current: BaseException | None = error
    while current is not None:
        own_error = current if isinstance(current, (UntraceableError, ClosedGraphError)) else own_error
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    if own_error is not None:
        return str(own_error)
    lines = [line for line in COLOURS.sub("", str(error)).splitlines() if line.strip() and not WRAPPED.search(line)]
    line = lines[0].strip() if lines else ""
    line = line if len(line) <= 160 else f"{line[:159]}…"
    return f"the model's Python cannot be traced into a graph ({type(error).__name__}: {line})"
