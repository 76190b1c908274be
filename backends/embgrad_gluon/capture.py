"""Report the user's own passes through a model, and the gradients at its points, to a listener, or add to values there."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from embgrad.backend import (
    Listener,
    PassListener,
    PassRecorder,
    Perturber,
    Reached,
    Request,
    Run,
    TokenBatch,
    additions,
    split_name,
)
from embgrad.errors import NoGradientError, UnsupportedError
from embgrad.toolkit import Interception, call_recorded, copy_owned, preserve_generators
from embgrad_gluon import run
from embgrad_gluon.cures import GUARDED, Guards, copy_input_of_max_pooling
from embgrad_gluon.graphs import ValueCallback, expect_agreement, intercept_cached_graphs, run_imperatively
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import GluonArrays, arguments_of
from embgrad_gluon.lookup import (
    LOOKUPS,
    PRODUCTS,
    Handler,
    Lookups,
    Operation,
    Tables,
    ignore_operators,
    intercept_operators,
)
from embgrad_gluon.modules import Modules, ignore_calls, intercept_calls
from embgrad_gluon.pullback import is_regrouped, section_between
from embgrad_gluon.scopes import observe_scopes
from embgrad_gluon.state import RANDOM_OPERATORS, RandomDraws, without_random_numbers
from embgrad_gluon.tap import Taps
from embgrad_gluon.walk import all_blocks, arrays_of, contexts_of, named_blocks

__all__ = ["capture", "perturb"]


@contextlib.contextmanager
def capture(model: Any, listener: Listener) -> Iterator[None]:
    """Report the user's own recorded passes through the model in this thread to the listener while it is open.

    Raises:
        NoGradientError: on leaving, where the model was called, but never under `autograd.record`.
    """
    capturing = _Capture(model, listener)
    with _open(capturing):
        yield
    if capturing.unrecorded and not capturing.recorded:
        raise NoGradientError(
            f"the model was called {capturing.unrecorded} time(s) while the capture was open, and never under "
            "autograd.record(), without which MXNet computes no gradient. Run the training loop inside the capture"
        )


def perturb(model: Any, perturber: Perturber) -> AbstractContextManager[None]:
    """Add what the perturber returns to values in the user's own passes in this thread while it is open."""
    return _open(_Perturbation(model, perturber))


@contextlib.contextmanager
def _open(observer: _Observer) -> Iterator[None]:
    observers = _state.observers
    with (
        intercept_calls(_on_call),
        intercept_operators({name: functools.partial(_on_operator, name) for name in _WATCHED}),
        intercept_cached_graphs(_on_cached_graph),
        _intercept_backward_passes(),
    ):
        # What a perturbation changes is seen by those after it.
        observers.insert(0 if observer.perturbs else len(observers), observer)
        try:
            yield
        finally:
            observers.remove(observer)
            _reset_guards()


@dataclass(frozen=True)
class _Pass:
    """A forward pass through a captured model."""

    taps: Taps
    modules: Modules
    handlers: dict[str, Handler]


class _Observer:
    """An observer of the passes through one model.

    Attributes:
        marks: the marks of the passes whose backward pass may still follow.
        perturbs: whether it changes values, in passes that are not recorded, too.
    """

    perturbs = False

    def __init__(self, model: Any, listener: PassListener, taps_of: Callable[[PassRecorder], Taps]) -> None:
        self.model = model
        self.current: _Pass | None = None
        self.recorded = 0
        self.unrecorded = 0
        self.marks: list[_Marks] = []
        self._listener = listener
        self._taps_of = taps_of
        self._tables = Tables([model])
        self._children = {id(block): path for path, block in reversed([*named_blocks([model])]) if block is not model}

    def report_outside(self, block: Any) -> None:
        """Report a block of the model that is called under `autograd.record`, outside any call of the model."""
        if self.current is None and id(block) in self._children:
            self._listener.outside(self._children[id(block)])

    def begin(self, args: tuple[Any, ...]) -> None:
        """Begin a pass."""
        self.recorded += 1

        def discover(batch: TokenBatch) -> Reached:
            _expect_initialised(self.model)

            def call(*_: Any) -> Any:
                return import_mxnet().gluon.Block.__call__(self.model, *args)

            def again(request: Request) -> Run:
                with preserve_generators():
                    return run.run(self.model, batch, replace(request, call=call))

            with preserve_generators():
                reached = run.points(self.model, batch, call, without_random_numbers())
            return reached.repeat_by(again, args)

        taps = self._taps_of(self._listener.begin(arguments_of(self.model, args), discover))
        handlers = Lookups(self._tables, taps, cut=False).handlers()
        self.current = _Pass(taps, Modules([self.model], taps), handlers)

    def end(self, ended: _Pass) -> None:
        """End a pass."""
        self._listener.end(ended.taps.watch, {}, "float32")


class _Capture(_Observer):
    """An open capture."""

    def __init__(self, model: Any, listener: Listener) -> None:
        super().__init__(model, listener, lambda watch: Taps(watch, Request()))
        self._capturing = listener

    def end(self, ended: _Pass) -> None:
        """End a pass. Only its marks are held: the values that the model went on with would keep the graph."""
        kept = ended.taps.kept
        for key in kept:
            ended.taps.expect_unwritten(key)
        values = {key: copy_owned(entry.forwarded.asnumpy()) for key, entry in kept.items()}
        dtype = next((GluonArrays().dtype(entry.forwarded) for entry in kept.values()), "float32")
        pass_record = self._listener.end(ended.taps.watch, values, dtype)
        marks = {key: entry.mark for key, entry in kept.items()}
        self.marks.append(_Marks(self._capturing, pass_record, marks, self.marks))


class _Perturbation(_Observer):
    """An open perturbation."""

    perturbs = True

    def __init__(self, model: Any, perturber: Perturber) -> None:
        def taps_of(watch: PassRecorder) -> Taps:
            return Taps(watch, additions(perturber, watch), keeps=False, aside=_run_unobserved)

        super().__init__(model, perturber, taps_of)


@contextlib.contextmanager
def _run_unobserved() -> Iterator[None]:
    """Let a function of the user's run unobserved while it is open; it may call the model."""
    observers, _state.observers = _state.observers, []
    try:
        with ignore_operators(), ignore_calls(), import_mxnet().autograd.pause(train_mode=False):
            yield
    finally:
        _state.observers = observers


@dataclass
class _ThreadState(threading.local):
    """A thread's observers.

    Attributes:
        observers: those that are open, those first whose changes the others see.
        guards: the operators with a wrong gradient that were recorded since.
        draws: while a hybridised block runs operator by operator, the random numbers that it draws; else None.
    """

    observers: list[_Observer] = field(default_factory=list)
    guards: Guards = field(default_factory=Guards)
    draws: RandomDraws | None = None

    def active(self) -> list[_Pass]:
        """Return the passes in progress."""
        return [observer.current for observer in self.observers if observer.current is not None]


_state = _ThreadState()


def _open_marks() -> list[_Marks]:
    """Return the marks that a backward pass may reach."""
    return [marks for observer in _state.observers for marks in observer.marks]


def _reset_guards() -> None:
    """Forget the guards when no backward pass can reach a mark any more."""
    if not _open_marks() and not _state.active():
        _state.guards = Guards()


# Calls, operators and cached graphs

_WATCHED: Final = tuple(dict.fromkeys((*LOOKUPS, *PRODUCTS, *GUARDED, *RANDOM_OPERATORS)))


def _on_call(block: Any, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
    starting = [observer for observer in _state.observers if observer.model is block and observer.current is None]
    if import_mxnet().autograd.is_recording():
        for observer in _state.observers:
            if observer.model is not block:
                observer.report_outside(block)
    else:
        for observer in starting:
            observer.unrecorded += 1
        starting = [observer for observer in starting if observer.perturbs]
    if not starting and not _state.active():
        return proceed(*args)
    try:
        for observer in starting:
            observer.begin(args)
        begun = [(observer, observer.current) for observer in starting if observer.current is not None]
        records = [current.modules.record_of(block) for current in _state.active()]
        returned = call_recorded(records, proceed, type(block).__name__, args, {})
    finally:
        for observer in starting:
            observer.current = None
    for observer, ended in begun:
        observer.end(ended)
    return returned


def _on_operator(name: str, operation: Operation, proceed: Callable[[], Any]) -> Any:
    if import_mxnet().autograd.is_recording():
        _state.guards.record(operation)
    for current in _state.active():
        if name in current.handlers:
            proceed = functools.partial(current.handlers[name], operation, proceed)
    if (
        name == "Pooling" and _state.draws is not None
    ):  # run operator by operator, it may be a view, which the graph's is not
        copy_input_of_max_pooling(operation)
    returned = proceed()
    if _state.draws is not None and name in RANDOM_OPERATORS:
        _state.draws.record(operation, returned)
    return returned


def _on_cached_graph(original: Callable[..., Any], block: Any, *args: Any) -> Any:
    """Run a block that holds the model, is inside it or runs after it operator by operator, so that all are intercepted."""
    recording = import_mxnet().autograd.is_recording()
    if not _is_watched(block, recording=recording):
        return original(block, *args)
    if _state.draws is not None:
        return run_imperatively(block, args, _observe_values)
    _initialise(block, functools.partial(original, block), args)
    expect_agreement(block, args)
    draws = _state.draws = RandomDraws()
    try:
        returned = run_imperatively(block, args, _observe_values)
    finally:
        _state.draws = None
    if recording and not isinstance(
        block, import_mxnet().gluon.SymbolBlock
    ):  # a SymbolBlock's operators run in the order of its graph
        draws.expect_graph_order(block, returned)
    return returned


@contextlib.contextmanager
def _observe_values(block: Any, args: Sequence[Any]) -> Iterator[ValueCallback | None]:
    """Yield the function that passes a value of a SymbolBlock's graph through all passes in progress, or None."""
    with contextlib.ExitStack() as stack:
        observers = [stack.enter_context(observe_scopes(current.taps, block, args)) for current in _state.active()]
        callbacks = [on_value for on_value in observers if on_value is not None]

        def on_value(node: int, output: int, value: Any) -> Any:
            for replace in callbacks:
                value = replace(node, output, value)
            return value

        yield on_value if callbacks else None


def _is_watched(block: Any, *, recording: bool) -> bool:
    """Return whether a block holds a model whose pass is observed, is inside it, or is on the way to its gradients."""
    if _state.draws is not None or _state.active() or (recording and _open_marks()):
        return True
    models = [observer.model for observer in _state.observers if recording or observer.perturbs]
    return any(inner is model for inner in all_blocks([block]) for model in models)


def _expect_initialised(model: Any) -> None:
    """Refuse a model whose parameters wait for their shapes: a pass of embgrad's own would initialize them too early."""
    if _awaits_shapes(model):
        raise UnsupportedError(
            "some parameters of the model wait for their shapes, and embgrad's own forward pass, which finds the point, would "
            "initialize them earlier than your training does. Make one forward pass yourself before the capture"
        )


def _initialise(block: Any, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Call a block whose parameters wait for their shapes once, unrecorded, so that it initializes them in its own order."""
    if _awaits_shapes(block):
        with import_mxnet().autograd.pause(train_mode=False), ignore_operators(), ignore_calls():
            call(*args)


def _awaits_shapes(block: Any) -> bool:
    return any(contexts_of(p) and not arrays_of(p) for p in block.collect_params().values())


# Backward passes

_backward = Interception(lambda: import_mxnet().autograd, "backward")
_grad = Interception(lambda: import_mxnet().autograd, "grad")
_method = Interception(lambda: import_mxnet().nd.NDArray, "backward")


@dataclass(eq=False)
class _Marks:
    """The arrays that were marked in one forward pass.

    Attributes:
        pass_record: the listener's object for the pass.
        registry: the list that holds these marks as long as a backward pass may reach them.
    """

    listener: Listener
    pass_record: Any
    arrays: Mapping[str, Any]
    registry: list[_Marks] = field(repr=False)


@dataclass(frozen=True)
class _Reached:
    marks: _Marks
    key: str
    array: Any


@contextlib.contextmanager
def _intercept_backward_passes() -> Iterator[None]:
    """Intercept this thread's backward passes while it is open."""

    def pull_back(original: Any, *args: Any, **kwargs: Any) -> Any:
        bound = _bind(original, args, kwargs)
        reached = _find_reached(bound.get("heads", bound.get("self")), training=bool(bound["train_mode"]))
        returned = original(*args, **kwargs)
        _report(reached, [entry.array.grad for entry in reached], keep=bool(bound["retain_graph"]))
        return returned

    def compute_gradients(original: Any, *args: Any, **kwargs: Any) -> Any:
        bound = _bind(original, args, kwargs)
        reached = _find_reached(bound["heads"], training=bool(bound["train_mode"]))
        if not reached:
            return original(*args, **kwargs)
        requested = bound["variables"]
        variables = [requested] if isinstance(requested, import_mxnet().nd.NDArray) else list(requested)
        gradients = original(**{**bound, "variables": [*variables, *(entry.array for entry in reached)]})
        keep = bound["create_graph"] if bound["retain_graph"] is None else bound["retain_graph"]
        _report(reached, gradients[len(variables) :], keep=bool(keep))
        return gradients[: len(variables)]

    with _backward.by(pull_back), _method.by(pull_back), _grad.by(compute_gradients):
        yield


def _bind(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _find_reached(heads: Any, *, training: bool) -> list[_Reached]:
    """Return the marks that a backward pass from the heads in this mode reaches."""
    marked = [_Reached(marks, key, array) for marks in _open_marks() for key, array in marks.arrays.items()]
    if not marked:
        return []
    outputs = [heads] if isinstance(heads, import_mxnet().nd.NDArray) else list(heads)
    sections = [section_between(output, [entry.array for entry in marked]) for output in outputs]
    reached = [entry for index, entry in enumerate(marked) if any(section.reached[index] for section in sections)]
    for entry in reached:
        if split_name(entry.key).side is not None and any(is_regrouped(section, entry.array) for section in sections):
            raise UnsupportedError(
                f"the value at the point {entry.key!r} is also used elsewhere, and with the capture MXNet would sum its gradient "
                "in another order than without. Name the output of the module that computed it, or capture at='word'"
            )
    for section in sections if reached else ():
        _state.guards.expect_right(section.operators, training=training)
    return reached


def _report(reached: Sequence[_Reached], gradients: Sequence[Any], *, keep: bool) -> None:
    """Pass the gradients of one backward pass to the listeners, each once."""
    steps: dict[int, tuple[Listener, list[tuple[Any, str, np.ndarray]]]] = {}
    for entry, gradient in zip(reached, gradients, strict=True):
        _, entries = steps.setdefault(id(entry.marks.listener), (entry.marks.listener, []))
        entries.append((entry.marks.pass_record, entry.key, copy_owned(gradient.asnumpy())))
        if not keep and entry.marks in entry.marks.registry:  # MXNet has freed its graph
            entry.marks.registry.remove(entry.marks)
    _reset_guards()
    for listener, entries in steps.values():
        listener.step(entries)
