"""Reports the user's own passes through a model to a listener: those under `autograd.record`, and the gradients at its points."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from embgrad.arrays import owned
from embgrad.backend import Listener, Point
from embgrad.batch import TokenBatch
from embgrad.errors import NoGradientError, UnsupportedError
from embgrad.generators import generators_kept
from embgrad.interception import Interception
from embgrad.points import split_name
from embgrad_gluon import run
from embgrad_gluon.cures import GUARDED, Guards, expect_no_view
from embgrad_gluon.graphs import GraphPoints, OnValue, at_cached_graphs, expect_agreement, run_open
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import GluonArrays, arguments_of
from embgrad_gluon.lookup import LOOKUPS, Handler, Lookups, Operation, Tables, watching
from embgrad_gluon.modules import Modules, calling
from embgrad_gluon.pullback import Way, is_regrouped, way_to
from embgrad_gluon.state import DRAWING, Draws, drawing_nothing
from embgrad_gluon.tap import Taps
from embgrad_gluon.walk import all_blocks, named_blocks

__all__ = ["capture"]


@contextlib.contextmanager
def capture(model: Any, listener: Listener) -> Iterator[None]:
    """While it is open, the user's own recorded passes through the model in this thread are told to the listener.

    Raises:
        NoGradientError: on leaving, where the model was called, but never under `autograd.record`.
    """
    one = _Capture(model, listener)
    captures = _state.captures
    with (
        calling(_on_call),
        watching({name: functools.partial(_on_operator, name) for name in _WATCHED}),
        at_cached_graphs(_on_cached_graph),
        hearing(_marks, _expect_right, _begin_anew),
    ):
        captures.append(one)
        try:
            yield
        finally:
            captures.remove(one)
            _begin_anew()
    if any(marks.is_unheard() for marks in one.marks):
        raise UnsupportedError(
            "a backward pass came to the point by a function of autograd's that was imported by its name before the capture, "
            "which embgrad does not hear of: expected loss.backward(), mxnet.autograd.backward(...) or mxnet.autograd.grad(...)"
        )
    if one.unrecorded and not one.recorded:
        raise NoGradientError(
            f"the model was called {one.unrecorded} time(s) while the capture was open, and never under autograd.record(), "
            "without which MXNet has no gradient: expected the training loop inside of the capture"
        )


@dataclass(frozen=True)
class _Pass:
    """One forward pass through a model that is captured.

    Attributes:
        taps: where it is taken down.
        modules: its blocks.
        graphs: what were blocks in its SymbolBlocks.
        handlers: by the operators' names, of its lookups.
    """

    taps: Taps
    modules: Modules
    graphs: GraphPoints
    handlers: dict[str, Handler]


class _Capture:
    """One capture that is open.

    Attributes:
        model: the model.
        current: the pass that is under way.
        recorded: the number of passes that were recorded.
        unrecorded: the number of those that were not.
        marks: those of the passes that may still be pulled back.
    """

    def __init__(self, model: Any, listener: Listener) -> None:
        self.model = model
        self.current: _Pass | None = None
        self.recorded = 0
        self.unrecorded = 0
        self.marks: list[Marks] = []
        self._listener = listener
        self._tables = Tables([model])
        self._children = {id(block): path for path, block in reversed([*named_blocks([model])]) if block is not model}

    def beside(self, block: Any) -> None:
        """Tell the listener of a block of the model that is called under `autograd.record`, outside of any call of the model."""
        if self.current is None and id(block) in self._children:
            self._listener.outside(self._children[id(block)])

    def begin(self, args: tuple[Any, ...], proceed: Callable[..., Any]) -> None:
        """A pass begins."""
        self.recorded += 1

        def discover(batch: TokenBatch) -> Sequence[Point]:
            _expect_initialised(self.model, proceed, args)

            def call(*_: Any) -> Any:
                return import_mxnet().gluon.Block.__call__(self.model, *args)

            with generators_kept():
                return run.points(self.model, batch, call, drawing_nothing())

        taps = Taps(self._listener.begin(arguments_of(self.model, args), discover), run.NOTHING)
        handlers = Lookups(self._tables, taps, cut=False).handlers()
        self.current = _Pass(taps, Modules([self.model], taps), GraphPoints(taps), handlers)

    def end(self, one: _Pass) -> None:
        """It ended. What went on is not held: it would keep the graph."""
        kept = one.taps.kept
        for key in kept:
            one.taps.expect_unwritten(key)
        values = {key: owned(entry.gone_on.asnumpy()) for key, entry in kept.items()}
        dtype = next((GluonArrays().dtype(entry.gone_on) for entry in kept.values()), "float32")
        told = self._listener.end(one.taps.watch, values, dtype)
        marks = {key: entry.mark for key, entry in kept.items()}
        self.marks.append(Marks(self._listener, told, marks, self.marks))


@dataclass
class _State(threading.local):
    """A thread's captures.

    Attributes:
        captures: those that are open.
        guards: what is wrong in what was recorded while they are.
        draws: while a hybridised block runs operator by operator, what it draws.
        resting: nothing is looked at.
    """

    captures: list[_Capture] = field(default_factory=list)
    guards: Guards = field(default_factory=Guards)
    draws: Draws | None = None
    resting: bool = False

    def active(self) -> list[_Pass]:
        """The passes that are under way."""
        return [] if self.resting else [one.current for one in self.captures if one.current is not None]


_state = _State()


def _marks() -> list[Marks]:
    """The marks that a backward pass may reach."""
    return [marks for one in _state.captures for marks in one.marks]


def _expect_right(way: Way, training: bool) -> None:
    _state.guards.expect_right(way.operators, training=training)


def _begin_anew() -> None:
    """What was recorded is gone where nothing is left to be reached."""
    if not _marks() and not _state.active():
        _state.guards = Guards()


# What is watched


_WATCHED: Final = tuple(dict.fromkeys((*LOOKUPS, *GUARDED, *DRAWING)))


def _on_call(block: Any, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
    starting = [one for one in _state.captures if one.model is block and one.current is None and not _state.resting]
    if starting and not import_mxnet().autograd.is_recording():
        for one in starting:
            one.unrecorded += 1
        starting = []
    elif not _state.resting and import_mxnet().autograd.is_recording():
        for one in _state.captures:
            if one.model is not block:
                one.beside(block)
    if not starting and not _state.active():
        return proceed(*args)
    try:
        for one in starting:
            one.begin(args, proceed)
        begun = [(one, one.current) for one in starting if one.current is not None]
        call = proceed
        for under_way in _state.active():
            call = functools.partial(_through, under_way.modules, block, call)
        returned = call(*args)
    finally:
        for one in starting:
            one.current = None
    for one, ended in begun:
        one.end(ended)
    return returned


def _through(modules: Modules, block: Any, proceed: Callable[..., Any], *args: Any) -> Any:
    return modules(block, args, proceed)


def _on_operator(name: str, operation: Operation, proceed: Callable[[], Any]) -> Any:
    if not _state.resting and import_mxnet().autograd.is_recording():
        _state.guards.look_at(operation)
    for under_way in _state.active():
        if name in under_way.handlers:
            proceed = functools.partial(under_way.handlers[name], operation, proceed)
    if name == "Pooling" and _state.draws is not None:  # arrays are views where the graph's are not
        expect_no_view(operation)
    gave = proceed()
    if _state.draws is not None and name in DRAWING:
        _state.draws.record(operation, gave)
    return gave


def _on_cached_graph(original: Callable[..., Any], block: Any, *args: Any) -> Any:
    """A block that holds the model, is inside of it or comes after it runs operator by operator, so that all is seen."""
    if _state.resting or not import_mxnet().autograd.is_recording() or not _is_watched(block):
        return original(block, *args)
    if block._backend:
        raise UnsupportedError(
            f"{type(block).__name__} {block.name!r} was optimised for the backend {block._backend!r}, into which embgrad cannot "
            "see: call hybridize() without a backend before the capture"
        )
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
    """What is called for the values of a SymbolBlock's graph by all passes that are under way, one after the other."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(one.graphs.within(block, args)) for one in _state.active()]
        asking = [on_value for on_value in opened if on_value is not None]

        def on_value(node: int, output: int, value: Any) -> Any:
            for one in asking:
                value = one(node, output, value)
            return value

        yield on_value if asking else None


def _is_watched(block: Any) -> bool:
    if _state.draws is not None or _state.active() or _marks():
        return True
    models = [capture.model for capture in _state.captures]
    return any(inner is model for inner in all_blocks([block]) for model in models)


def _expect_initialised(model: Any, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """A pass beside the user's own may not draw parameters before other numbers that the user's would have drawn first.

    Raises:
        UnsupportedError: it would.
    """
    if getattr(model, "_active", False):
        _initialise(model, call, args)
    if _waits(model):
        raise UnsupportedError(
            "some parameters of the model wait for their shapes, and to find the point embgrad makes one forward pass beside "
            "your own, which would draw them before their turn: make one forward pass yourself before the capture"
        )


def _initialise(block: Any, call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """A hybridised block draws all parameters that wait for their shapes before anything else: in its own order."""
    if _waits(block):
        before, _state.resting = _state.resting, True
        try:
            with import_mxnet().autograd.pause(train_mode=False):
                call(*args)
        finally:
            _state.resting = before


def _waits(block: Any) -> bool:
    return any(parameter._deferred_init for parameter in block.collect_params().values())


# Backward passes

_backward = Interception(lambda: import_mxnet().autograd, "backward")
_grad = Interception(lambda: import_mxnet().autograd, "grad")
_method = Interception(lambda: import_mxnet().nd.NDArray, "backward")


@dataclass(eq=False)
class Marks:
    """The arrays that were marked in one forward pass.

    Attributes:
        listener: is told of the gradients.
        told: what it gave for the pass.
        arrays: by the points' keys, marked.
        among: where these are held as long as a backward pass may come to them.
    """

    listener: Listener
    told: Any
    arrays: Mapping[str, Any]
    among: list[Marks] = field(repr=False)

    def heard(self) -> None:
        """Note that the gradients written so far were handed over, zeros where a gradient is stopped among them."""
        for array in self.arrays.values():
            array._fresh_grad = False

    def is_unheard(self) -> bool:
        """Return whether a backward pass has written since `heard`."""
        return any(array._fresh_grad for array in self.arrays.values())


@dataclass(frozen=True)
class _Reached:
    marks: Marks
    key: str
    array: Any


@contextlib.contextmanager
def hearing(
    marks: Callable[[], Sequence[Marks]], expect_right: Callable[[Way, bool], None], heard: Callable[[], None]
) -> Iterator[None]:
    """This thread's backward passes are heard of.

    Args:
        marks: gives those that may be reached.
        expect_right: refuses a way to some of them, by the mode of the backward pass.
        heard: is called after a backward pass that reached some.
    """

    def reached_by(heads: Any, training: bool) -> list[_Reached]:
        return _reached(marks(), heads, lambda way: expect_right(way, training))

    def pull(original: Any, *args: Any, **kwargs: Any) -> Any:
        bound = _bound(original, args, kwargs)
        reached = reached_by(bound.get("heads", bound.get("self")), bool(bound["train_mode"]))
        returned = original(*args, **kwargs)
        for one in marks():
            one.heard()
        if reached:
            _tell(reached, [one.array.grad for one in reached], heard, keep=bool(bound["retain_graph"]))
        return returned

    def compute(original: Any, *args: Any, **kwargs: Any) -> Any:
        bound = _bound(original, args, kwargs)
        reached = reached_by(bound["heads"], bool(bound["train_mode"]))
        if not reached:
            return original(*args, **kwargs)
        given = bound["variables"]
        variables = [given] if isinstance(given, import_mxnet().nd.NDArray) else list(given)
        found = original(**{**bound, "variables": [*variables, *(one.array for one in reached)]})
        keep = bound["create_graph"] if bound["retain_graph"] is None else bound["retain_graph"]
        _tell(reached, found[len(variables) :], heard, keep=bool(keep))
        return found[: len(variables)]

    with _backward.by(pull), _method.by(pull), _grad.by(compute):
        yield


def _bound(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _reached(marks: Sequence[Marks], heads: Any, expect_right: Callable[[Way], None]) -> list[_Reached]:
    """Return the marks that a backward pass from the heads reaches.

    Raises:
        UnsupportedError: a mark changes the order in which MXNet adds up.
    """
    known = [_Reached(one, key, array) for one in marks for key, array in one.arrays.items()]
    if not known:
        return []
    outputs = [heads] if isinstance(heads, import_mxnet().nd.NDArray) else list(heads)
    ways = [way_to(output, [one.array for one in known]) for output in outputs]
    reached = [one for place, one in enumerate(known) if any(way.reached[place] for way in ways)]
    for one in reached:
        if split_name(one.key).side is not None and any(is_regrouped(way, one.array) for way in ways):
            raise UnsupportedError(
                f"what is at the point {one.key!r} is used past it, too, and MXNet would add up its gradient in another order "
                "than without the capture: name the output of the module that made it, or capture at='word'"
            )
    for way in ways if reached else ():
        expect_right(way)
    return reached


def _tell(reached: Sequence[_Reached], gradients: Sequence[Any], heard: Callable[[], None], *, keep: bool) -> None:
    """Each listener is told once of all that it is to hear."""
    told: dict[int, tuple[Listener, list[tuple[Any, str, np.ndarray]]]] = {}
    for one, gradient in zip(reached, gradients, strict=True):
        _, entries = told.setdefault(id(one.marks.listener), (one.marks.listener, []))
        entries.append((one.marks.told, one.key, owned(gradient.asnumpy())))
        if not keep and one.marks in one.marks.among:  # its graph is gone
            one.marks.among.remove(one.marks)
    heard()
    for listener, entries in told.values():
        listener.step(entries)
