"""Reports the user's own passes through a model under `autograd.record`, and the gradients at its points, to a listener."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from embgrad.backend import Listener, Point
from embgrad.backend.patching import Interception
from embgrad.backend.rng import preserve_generators
from embgrad.common.arrays import owned
from embgrad.errors import NoGradientError, UnsupportedError
from embgrad.forward.points import split_name
from embgrad.inputs.batch import TokenBatch
from embgrad_gluon import run
from embgrad_gluon.cures import GUARDED, Guards, expect_no_view
from embgrad_gluon.graphs import GraphPoints, OnValue, at_cached_graphs, expect_agreement, run_open
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import GluonArrays, arguments_of
from embgrad_gluon.lookup import LOOKUPS, Handler, Lookups, Operation, Tables, unwatched, watching
from embgrad_gluon.modules import Modules, calling, unheard
from embgrad_gluon.pullback import is_regrouped, way_to
from embgrad_gluon.state import DRAWING, Draws, drawing_nothing
from embgrad_gluon.tap import Taps
from embgrad_gluon.walk import all_blocks, arrays_of, contexts_of, named_blocks

__all__ = ["capture"]


@contextlib.contextmanager
def capture(model: Any, listener: Listener) -> Iterator[None]:
    """Report the user's own recorded passes through the model in this thread to the listener while it is open.

    Raises:
        NoGradientError: on leaving, where the model was called, but never under `autograd.record`.
    """
    capturing = _Capture(model, listener)
    captures = _state.captures
    with (
        calling(_on_call),
        watching({name: functools.partial(_on_operator, name) for name in _WATCHED}),
        at_cached_graphs(_on_cached_graph),
        _hearing(),
    ):
        captures.append(capturing)
        try:
            yield
        finally:
            captures.remove(capturing)
            _begin_anew()
    if capturing.unrecorded and not capturing.recorded:
        raise NoGradientError(
            f"the model was called {capturing.unrecorded} time(s) while the capture was open, and never under autograd.record(), "
            "without which MXNet has no gradient: expected the training loop inside of the capture"
        )


@dataclass(frozen=True)
class _Pass:
    """A forward pass through a captured model.

    Attributes:
        taps: records the pass.
        modules: the model's blocks.
        graphs: the name scopes of its SymbolBlocks.
        handlers: the handlers of its lookups by the operators' names.
    """

    taps: Taps
    modules: Modules
    graphs: GraphPoints
    handlers: dict[str, Handler]


class _Capture:
    """An open capture.

    Attributes:
        model: the model.
        current: the pass that is under way, or None.
        recorded: the number of recorded passes.
        unrecorded: the number of other passes.
        marks: the marks of the passes that may still be pulled back.
    """

    def __init__(self, model: Any, listener: Listener) -> None:
        self.model = model
        self.current: _Pass | None = None
        self.recorded = 0
        self.unrecorded = 0
        self.marks: list[_Marks] = []
        self._listener = listener
        self._tables = Tables([model])
        self._children = {id(block): path for path, block in reversed([*named_blocks([model])]) if block is not model}

    def report_outside(self, block: Any) -> None:
        """Tell the listener of a block of the model that is called under `autograd.record`, outside of any call of the model."""
        if self.current is None and id(block) in self._children:
            self._listener.outside(self._children[id(block)])

    def begin(self, args: tuple[Any, ...]) -> None:
        """Begin a pass."""
        self.recorded += 1

        def discover(batch: TokenBatch) -> Sequence[Point]:
            _expect_initialised(self.model)

            def call(*_: Any) -> Any:
                return import_mxnet().gluon.Block.__call__(self.model, *args)

            with preserve_generators():
                return run.points(self.model, batch, call, drawing_nothing())

        taps = Taps(self._listener.begin(arguments_of(self.model, args), discover), run.NOTHING)
        handlers = Lookups(self._tables, taps, cut=False).handlers()
        self.current = _Pass(taps, Modules([self.model], taps), GraphPoints(taps), handlers)

    def end(self, ended: _Pass) -> None:
        """End a pass. Of its arrays only the marks are held: the values that went on would keep the graph."""
        kept = ended.taps.kept
        for key in kept:
            ended.taps.expect_unwritten(key)
        values = {key: owned(entry.gone_on.asnumpy()) for key, entry in kept.items()}
        dtype = next((GluonArrays().dtype(entry.gone_on) for entry in kept.values()), "float32")
        passed = self._listener.end(ended.taps.watch, values, dtype)
        marks = {key: entry.mark for key, entry in kept.items()}
        self.marks.append(_Marks(self._listener, passed, marks, self.marks))


@dataclass
class _State(threading.local):
    """A thread's captures.

    Attributes:
        captures: those that are open.
        guards: the operators of a wrong gradient that were recorded meanwhile.
        draws: while a hybridised block runs operator by operator, the random numbers that it draws; else None.
    """

    captures: list[_Capture] = field(default_factory=list)
    guards: Guards = field(default_factory=Guards)
    draws: Draws | None = None

    def active(self) -> list[_Pass]:
        """Return the passes that are under way."""
        return [opened.current for opened in self.captures if opened.current is not None]


_state = _State()


def _marks() -> list[_Marks]:
    """Return the marks that a backward pass may reach."""
    return [marks for opened in _state.captures for marks in opened.marks]


def _begin_anew() -> None:
    """Forget the guards where no mark is left to be reached."""
    if not _marks() and not _state.active():
        _state.guards = Guards()


# Calls, operators and cached graphs

_WATCHED: Final = tuple(dict.fromkeys((*LOOKUPS, *GUARDED, *DRAWING)))


def _on_call(block: Any, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
    starting = [opened for opened in _state.captures if opened.model is block and opened.current is None]
    if import_mxnet().autograd.is_recording():
        for opened in _state.captures:
            if opened.model is not block:
                opened.report_outside(block)
    else:
        for opened in starting:
            opened.unrecorded += 1
        starting = []
    if not starting and not _state.active():
        return proceed(*args)
    try:
        for opened in starting:
            opened.begin(args)
        begun = [(opened, opened.current) for opened in starting if opened.current is not None]
        call = proceed
        for under_way in _state.active():
            call = functools.partial(_through, under_way.modules, block, call)
        returned = call(*args)
    finally:
        for opened in starting:
            opened.current = None
    for opened, ended in begun:
        opened.end(ended)
    return returned


def _through(modules: Modules, block: Any, proceed: Callable[..., Any], *args: Any) -> Any:
    return modules(block, args, proceed)


def _on_operator(name: str, operation: Operation, proceed: Callable[[], Any]) -> Any:
    if import_mxnet().autograd.is_recording():
        _state.guards.look_at(operation)
    for under_way in _state.active():
        if name in under_way.handlers:
            proceed = functools.partial(under_way.handlers[name], operation, proceed)
    if name == "Pooling" and _state.draws is not None:  # arrays are views where the graph's are not
        expect_no_view(operation)
    returned = proceed()
    if _state.draws is not None and name in DRAWING:
        _state.draws.record(operation, returned)
    return returned


def _on_cached_graph(original: Callable[..., Any], block: Any, *args: Any) -> Any:
    """Run a block that holds the model, is inside of it or comes after it operator by operator, so that all is seen."""
    if not import_mxnet().autograd.is_recording() or not _is_watched(block):
        return original(block, *args)
    if _state.draws is not None:
        return run_open(block, args, _within)
    _initialise(block, functools.partial(original, block), args)
    expect_agreement(block, args)
    draws = _state.draws = Draws()
    try:
        returned = run_open(block, args, _within)
    finally:
        _state.draws = None
    if not isinstance(block, import_mxnet().gluon.SymbolBlock):  # whose operators run in the order of its graph
        draws.expect_in_order(block, returned)
    return returned


@contextlib.contextmanager
def _within(block: Any, args: Sequence[Any]) -> Iterator[OnValue | None]:
    """Yield the function that passes a value of a SymbolBlock's graph through all passes that are under way, or None."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(under_way.graphs.within(block, args)) for under_way in _state.active()]
        asking = [on_value for on_value in opened if on_value is not None]

        def on_value(node: int, output: int, value: Any) -> Any:
            for replace in asking:
                value = replace(node, output, value)
            return value

        yield on_value if asking else None


def _is_watched(block: Any) -> bool:
    if _state.draws is not None or _state.active() or _marks():
        return True
    models = [capture.model for capture in _state.captures]
    return any(inner is model for inner in all_blocks([block]) for model in models)


def _expect_initialised(model: Any) -> None:
    """Refuse a model whose parameters wait for their shapes: a pass beside the user's own would draw them before their turn."""
    if _waits(model):
        raise UnsupportedError(
            "some parameters of the model wait for their shapes, and to find the point embgrad makes one forward pass beside "
            "your own, which would draw them before their turn: make one forward pass yourself before the capture"
        )


def _initialise(block: Any, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Call a block whose parameters wait for their shapes once, unrecorded, so that it draws them in its own order."""
    if _waits(block):
        with import_mxnet().autograd.pause(train_mode=False), unwatched(), unheard():
            call(*args)


def _waits(block: Any) -> bool:
    return any(contexts_of(p) and not arrays_of(p) for p in block.collect_params().values())


# Backward passes

_backward = Interception(lambda: import_mxnet().autograd, "backward")
_grad = Interception(lambda: import_mxnet().autograd, "grad")
_method = Interception(lambda: import_mxnet().nd.NDArray, "backward")


@dataclass(eq=False)
class _Marks:
    """The arrays that were marked in one forward pass.

    Attributes:
        listener: gets the gradients.
        passed: the listener's object for the pass.
        arrays: the marked arrays by the points' keys.
        among: the list that holds these marks as long as a backward pass may reach them.
    """

    listener: Listener
    passed: Any
    arrays: Mapping[str, Any]
    among: list[_Marks] = field(repr=False)


@dataclass(frozen=True)
class _Reached:
    marks: _Marks
    key: str
    array: Any


@contextlib.contextmanager
def _hearing() -> Iterator[None]:
    """Intercept this thread's backward passes while it is open."""

    def pull(original: Any, *args: Any, **kwargs: Any) -> Any:
        bound = _bound(original, args, kwargs)
        reached = _reached(bound.get("heads", bound.get("self")), training=bool(bound["train_mode"]))
        returned = original(*args, **kwargs)
        _report(reached, [entry.array.grad for entry in reached], keep=bool(bound["retain_graph"]))
        return returned

    def compute(original: Any, *args: Any, **kwargs: Any) -> Any:
        bound = _bound(original, args, kwargs)
        reached = _reached(bound["heads"], training=bool(bound["train_mode"]))
        if not reached:
            return original(*args, **kwargs)
        given = bound["variables"]
        variables = [given] if isinstance(given, import_mxnet().nd.NDArray) else list(given)
        found = original(**{**bound, "variables": [*variables, *(entry.array for entry in reached)]})
        keep = bound["create_graph"] if bound["retain_graph"] is None else bound["retain_graph"]
        _report(reached, found[len(variables) :], keep=bool(keep))
        return found[: len(variables)]

    with _backward.by(pull), _method.by(pull), _grad.by(compute):
        yield


def _bound(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _reached(heads: Any, *, training: bool) -> list[_Reached]:
    """Return the marks that a backward pass from the heads in this mode reaches.

    Raises:
        UnsupportedError: a mark changes the order in which MXNet adds up, or an operator on the way has a wrong gradient.
    """
    known = [_Reached(marks, key, array) for marks in _marks() for key, array in marks.arrays.items()]
    if not known:
        return []
    outputs = [heads] if isinstance(heads, import_mxnet().nd.NDArray) else list(heads)
    ways = [way_to(output, [entry.array for entry in known]) for output in outputs]
    reached = [entry for place, entry in enumerate(known) if any(way.reached[place] for way in ways)]
    for entry in reached:
        if split_name(entry.key).side is not None and any(is_regrouped(way, entry.array) for way in ways):
            raise UnsupportedError(
                f"what is at the point {entry.key!r} is used past it, too, and MXNet would add up its gradient in another order "
                "than without the capture: name the output of the module that made it, or capture at='word'"
            )
    for way in ways if reached else ():
        _state.guards.expect_right(way.operators, training=training)
    return reached


def _report(reached: Sequence[_Reached], gradients: Sequence[Any], *, keep: bool) -> None:
    """Pass the gradients of one backward pass to the listeners, each once."""
    steps: dict[int, tuple[Listener, list[tuple[Any, str, np.ndarray]]]] = {}
    for entry, gradient in zip(reached, gradients, strict=True):
        _, entries = steps.setdefault(id(entry.marks.listener), (entry.marks.listener, []))
        entries.append((entry.marks.passed, entry.key, owned(gradient.asnumpy())))
        if not keep and entry.marks in entry.marks.among:  # its graph is gone
            entry.marks.among.remove(entry.marks)
    _begin_anew()
    for listener, entries in steps.values():
        listener.step(entries)
