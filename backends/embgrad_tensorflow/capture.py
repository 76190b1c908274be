"""Capture or perturb a user's passes through a model: the user's tape computes the gradients at the points too."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import tensorflow as tf

from embgrad.backend import Listener, PassListener, PassRecorder, Perturber, Reached, TokenBatch, additions
from embgrad.errors import PointNotReachedError, UnsupportedError
from embgrad.toolkit import Interception, coarsest, copy_owned
from embgrad_tensorflow.functions import function_calls
from embgrad_tensorflow.inputs import integers, is_symbolic, like_evaluation
from embgrad_tensorflow.lookup import Replacing, Watcher
from embgrad_tensorflow.modules import Calls, Modules, around, intercept_calls
from embgrad_tensorflow.run import closed_graphs, points, run
from embgrad_tensorflow.state import depth, expect_eager, tape_pushes, tapes_of_this_thread
from embgrad_tensorflow.tap import Additions, PointWork, dense, with_mask
from embgrad_tensorflow.walk import Tables, handle_of, walk

__all__ = ["capture", "perturb"]

_gradient_calls: Final = Interception(lambda: tf.GradientTape, "gradient")

_observers: ContextVar[tuple[_Observer, ...]] = ContextVar("observers", default=())

#: The advice for a compiled pass.
RUN_EAGERLY: Final = (
    "Run the step eagerly: remove the tf.function or call tf.config.run_functions_eagerly(True), compile a Keras model with "
    "run_eagerly=True for Model.fit, or make compiled steps outside of the `with` block"
)

#: The advice for a pass through a saved model, which cannot be cut in the user's loop.
SAVED: Final = "a SavedModel always runs compiled, so name a Keras layer around or behind it, or call embgrad.gradients"


def capture(model: Any, listener: Listener) -> AbstractContextManager[None]:
    """Report the user's passes through the model in this thread to the listener while the context is open."""
    return _observing(lambda: _Capture(model, listener))


def perturb(model: Any, perturber: Perturber) -> AbstractContextManager[None]:
    """Add what the perturber returns to values in the user's passes in this thread while the context is open."""
    return _observing(lambda: _Perturbation(model, perturber), first=True)


@contextlib.contextmanager
def _observing(make: Callable[[], _Observer], *, first: bool = False) -> Iterator[None]:
    """Let an observer see this thread's passes; one that comes first has its changes seen by the others."""
    expect_eager()
    observer = make()
    _observers.set((observer, *_observers.get()) if first else (*_observers.get(), observer))
    try:
        with (
            intercept_calls(_module_called, observer.modules.classes),
            _gradient_calls.by(_gradient),
            tape_pushes.by(_tape_pushed),
            function_calls.by(_function_called),
        ):
            yield
    finally:
        _observers.set(tuple(other for other in _observers.get() if other is not observer))


class _Recorder(PointWork):
    """The points of one of the user's forward passes.

    A lookup's rows are kept as they are. At a module an identity stands in for its tensor, since what a module passes on
    unchanged is used by others too; the sums of gradients come about in the same order, so that the bits stay the same.
    """

    replaces = False

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[str, Any] = {}

    def record_rows(self, key: str, rows: Any) -> bool:
        """Take the rows of a lookup, which go on."""
        self.tensors[key] = rows
        return False

    def replace_rows(self, key: str, rows: Any) -> Any:
        """Return the rows themselves."""
        return rows

    def replace(self, key: str, tensor: Any) -> Any:
        """Return the tensor that goes on in place of one that a module was given or returned."""
        self.tensors[key] = with_mask(tf.identity(tensor), tensor)
        return self.tensors[key]


@dataclass(frozen=True, eq=False)
class _Point:
    """A point that one of the user's forward passes came by.

    Attributes:
        table: the variable that a lookup was made in; None at a module, or where the table was computed.
    """

    tensor: Any
    passed: Any
    key: str
    table: Any

    def leads_to(self, handles: Collection[int]) -> bool:
        """Return whether a pullback to these variables passes the point: only its table lies beyond a lookup."""
        return self.table is None or id(self.table) in handles


class _Observer:
    """An observer that reports the forward passes of one model to one listener.

    Attributes:
        calls: the module calls of the pass that runs; None between passes.
        tensors: the tensors at the points of the pass that runs, by key.
        replacing: replaces lookups' rows in the pass that runs, also for other observers; None between passes.
    """

    def __init__(self, model: Any, listener: PassListener) -> None:
        self.modules = Modules([model])
        self.calls: Calls | None = None
        self.tensors: dict[str, Any] = {}
        self.replacing: Replacing | None = None
        self._model = model
        self._listener = listener
        self._pulling = False
        self._traced: WeakSet[Any] = WeakSet()
        self._refused: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
        self._tapes: WeakSet[Any] = WeakSet()
        # an entry lives as long as its tape
        self._kept: WeakKeyDictionary[Any, list[_Point]] = WeakKeyDictionary()

    def around(self, function: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a call of a module outside of the model's passes, in place of its `__call__`."""
        if is_symbolic(args, kwargs):
            return function(module, *args, **kwargs)
        if module is not self._model:
            self._report_outside(module)
            return function(module, *args, **kwargs)
        if not tf.executing_eagerly():
            self._record_trace()
            return function(module, *args, **kwargs)
        return self._forward(function, args, kwargs)

    def add_tape(self, tape: Any) -> None:
        """Note that a tape begins to record."""
        self._tapes.add(tape)

    def find_known(self, tape: Any) -> list[_Point]:
        """Return the points of which the tape knows."""
        return self._kept.get(tape, [])

    @contextlib.contextmanager
    def pulling(self, tape: Any) -> Iterator[None]:
        """Ignore operations while the tape computes gradients, and forget a tape that is then used up."""
        before, self._pulling = self._pulling, True
        try:
            yield
        finally:
            self._pulling = before
            if tape._tape is None:  # a tape that is not persistent is used up
                self._kept.pop(tape, None)

    def step(self, points: Sequence[_Point], gradients: Sequence[Any]) -> None:
        """Take the tape's gradients at these points."""

    def follow(self, rows: Any, changed: Any) -> None:
        """Note that other rows went on in place of a lookup's."""
        for key, tensor in self.tensors.items():
            if tensor is rows:
                self.tensors[key] = changed

    def expect_open(self, function: Any) -> None:
        """Refuse a compiled function that holds a pass through the model."""
        if self.calls is not None or self._pulling:
            return
        if function not in self._refused:
            self._refused[function] = function.graph in self._traced or _runs_model(function, self._model)
        if self._refused[function]:
            raise UnsupportedError(
                f"the model runs inside the compiled function {function.name!r} (tf.function, Model.fit, Model.predict), where "
                f"embgrad sees no values and changes none. {RUN_EAGERLY}"
            )

    def _report_outside(self, module: Any) -> None:
        """Tell the listener of a module that is called under a tape, outside of any call of the model."""
        name = self.modules.name(module) if any(tape._recording for tape in self._tapes) else None
        if name is not None:
            self._listener.outside(name[0])

    def _record_trace(self) -> None:
        graph: Any = tf.compat.v1.get_default_graph()
        while graph is not None:
            self._traced.add(graph)
            graph = getattr(graph, "outer_graph", None)

    def _forward(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        def discover(batch: TokenBatch) -> Reached:
            positional, by_name = like_evaluation(self._model, args, kwargs)

            def call(model: Any, _: Any) -> Any:
                return model(*positional, **by_name)

            reached = points(self._model, batch, call)
            return reached.repeat_by(
                lambda request: run(self._model, batch, replace(request, call=call)), (args, kwargs)
            )

        watch = self._listener.begin(integers(self._model, args, kwargs), discover)
        at = self._points_of(watch)
        tensors = self.tensors = at.tensors
        others = (other.replacing for other in _observers.get())
        self.replacing = next((replacing for replacing in others if replacing is not None), Replacing())
        watcher = Watcher(watch, Tables([self._model]), at, self.replacing)
        self.calls = Calls(watch, self.modules, at.replace)
        try:
            with watcher.watching():
                returned = self.calls.around(function, self._model, *args, **kwargs)
        finally:
            self.calls, self.replacing, self.tensors = None, None, {}
        passed = self._end(watcher, tensors)
        for tape in [open_tape for open_tape in self._tapes if open_tape._recording]:
            self._kept.setdefault(tape, []).extend(
                _Point(tensor, passed, key, watcher.handles.get(key)) for key, tensor in tensors.items()
            )
        return returned

    def _points_of(self, watch: PassRecorder) -> _Recorder | Additions:
        return _Recorder()

    def _end(self, watcher: Watcher, tensors: Mapping[str, Any]) -> Any:
        values = {key: copy_owned(tensor.numpy()) for key, tensor in tensors.items()}
        dtypes = [dtype.name for dtype in (*(tensor.dtype for tensor in tensors.values()), *watcher.computing)]
        try:
            return self._listener.end(watcher.watch, values, coarsest(dtypes or ["float32"]))
        except PointNotReachedError as error:
            hint = closed_graphs(watcher)
            if not hint:
                raise
            raise UnsupportedError(f"{error.message}. {hint}. {RUN_EAGERLY}; {SAVED}") from error


class _Capture(_Observer):
    """An observer that reports gradients, too."""

    def __init__(self, model: Any, listener: Listener) -> None:
        super().__init__(model, listener)
        self._capturing = listener
        self._tapes.update(tapes_of_this_thread())

    def step(self, points: Sequence[_Point], gradients: Sequence[Any]) -> None:
        """Report the tape's gradients at these points as a step."""
        reached = [
            (point.passed, point.key, copy_owned(dense(gradient).numpy()))
            for point, gradient in zip(points, gradients, strict=True)
            if gradient is not None
        ]
        if reached:
            self._capturing.step(reached)


class _Perturbation(_Observer):
    """An observer that adds to values."""

    def __init__(self, model: Any, perturber: Perturber) -> None:
        super().__init__(model, perturber)
        self._perturber = perturber

    def _points_of(self, watch: PassRecorder) -> _Recorder | Additions:
        def announce(rows: Any, changed: Any) -> None:
            for observer in _observers.get():
                observer.follow(rows, changed)

        return Additions(additions(self._perturber, watch), announce)


def _module_called(function: Callable[..., Any], module: Any, *args: Any, **kwargs: Any) -> Any:
    observers = _observers.get() if depth() == 0 else ()
    passes = [observer.calls for observer in observers if observer.calls is not None]
    call = functools.partial(around, passes, function) if passes else function
    for observer in observers:
        if observer.calls is None:
            call = functools.partial(observer.around, call)
    return call(module, *args, **kwargs)


def _function_called(original: Callable[..., Any], function: Any, *args: Any, **kwargs: Any) -> Any:
    if tf.executing_eagerly() and depth() == 0:
        for observer in _observers.get():
            observer.expect_open(function)
    return original(function, *args, **kwargs)


def _tape_pushed(original: Callable[..., Any], tape: Any, *args: Any, **kwargs: Any) -> Any:
    if depth() == 0:
        for observer in _observers.get():
            observer.add_tape(tape)
    return original(tape, *args, **kwargs)


def _gradient(
    original: Callable[..., Any],
    tape: Any,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
) -> Any:
    """Compute the gradients at the points in the same pullback, in place of `GradientTape.gradient`."""
    reached: list[tuple[_Observer, list[_Point]]] = []
    if depth() == 0 and tf.executing_eagerly():
        handles = {id(handle_of(source)) for source in tf.nest.flatten(sources)}
        reached = [
            (observer, [point for point in observer.find_known(tape) if point.leads_to(handles)])
            for observer in _observers.get()
        ]
    tensors = [[point.tensor for point in known] for _, known in reached]
    if not any(tensors):
        return original(tape, target, sources, output_gradients, unconnected_gradients)
    with contextlib.ExitStack() as stack:
        for observer, _ in reached:
            stack.enter_context(observer.pulling(tape))
        # zeros for unconnected points would become steps of passes on which the loss does not depend
        result, point_gradients = original(
            tape, target, (sources, tensors), output_gradients, tf.UnconnectedGradients.NONE
        )
    for (observer, known), gradients in zip(reached, point_gradients, strict=True):
        observer.step(known, gradients)
    if tf.UnconnectedGradients(unconnected_gradients) == tf.UnconnectedGradients.ZERO:
        return tf.nest.map_structure(
            lambda gradient, source: tf.zeros_like(source) if gradient is None else gradient, result, sources
        )
    return result


#: Operations that a forward pass makes with a model's variables, and an update of them does not.
FORWARD: Final = frozenset(
    {"BatchMatMulV2", "BatchMatMulV3", "Conv1D", "Conv2D", "Einsum", "MatMul", "ResourceGather", "ResourceGatherNd"}
)


def _runs_model(function: Any, model: Any) -> bool:
    """Return whether a ConcreteFunction computes with a model's variables, and does not only write to them."""
    resources = {id(tensor) for tensor in function.captured_inputs if tensor.dtype == tf.resource}
    if not resources or not any(name in FORWARD for name in _operations(function)):
        return False
    return any(id(handle_of(node.value)) in resources for node in walk([model]) if node.kind == "variable")


def _operations(function: Any) -> Iterator[str]:
    definition = function.graph.as_graph_def()
    yield from (node.op for node in definition.node)
    for inner in definition.library.function:
        yield from (node.op for node in inner.node_def)
