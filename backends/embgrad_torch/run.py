"""One forward pass and its pullbacks: values and gradients at points and parameters, as NumPy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from embgrad.backend import Call, NativeObjective, Point, Request, Run
from embgrad.backend.cotangents import Answer, answered, values_at
from embgrad.backend.objective_callback import Respond
from embgrad.backend.replay import Retries, wrapped
from embgrad.backend.signature import as_parts
from embgrad.forward.points import Lookup
from embgrad.forward.recorder import PassRecorder
from embgrad.inputs.batch import TokenBatch
from embgrad_torch import inputs
from embgrad_torch.checkpoints import segments_ended
from embgrad_torch.inputs import TorchTensors
from embgrad_torch.lookup import DIFFERENTIATING, Differentiated, LookupMode
from embgrad_torch.modules import ModuleWatch
from embgrad_torch.parameters import Tables, parameter_values, trainable
from embgrad_torch.pullback import counted, pull_back
from embgrad_torch.state import (
    ACCUMULATING,
    Before,
    Weights,
    drawn_by_the_user,
    preserve_random_state,
    preserved,
    running,
)
from embgrad_torch.tap import Taps, dtype_of, expect_unwritten
from embgrad_torch.walk import Structure, TablePaths, further_paths

__all__ = ["points", "run"]

Made = TypeVar("Made")

#: A request that changes nothing and reads no point.
_NOTHING: Final = Request((), lambda outputs: [])


@dataclass(frozen=True)
class _Pass:
    """A forward pass, with the model in the state for it.

    Attributes:
        request: what is asked, whose functions find the weights as the user has them.
        parameters: the parameters that are asked for.
        tables: the tables that are.
    """

    request: Request
    mode: LookupMode
    taps: Taps
    known: Structure
    weights: Weights
    device: Any
    parameters: Mapping[str, Any]
    tables: Tables


def points(model: Any, batch: TokenBatch, call: Call | None) -> list[Point]:
    """Return the points that a forward pass reaches."""

    def reached(frozen: bool) -> list[Point]:
        watch = PassRecorder(batch, None)
        with _prepared(Structure(as_parts(model)), watch, _NOTHING, frozen=frozen) as this:
            _forward(model, batch, call, this)
        return watch.points()

    return _frozen_if_can_be(reached)


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """One forward pass, and a pullback for each set of cotangents."""
    # A function of the user's may use the weights; and in training mode a second pass would draw other random numbers.
    native = isinstance(request.respond, NativeObjective) and not request.compiled
    if request.parameters or request.training or native:
        return _run(model, batch, request, frozen=False)
    tries = Retries(request)
    return _frozen_if_can_be(lambda frozen: _run(model, batch, tries.next(), frozen=frozen))


def _frozen_if_can_be(make: Callable[[bool], Made]) -> Made:
    """Return the result of a pass with frozen weights, or trainable ones where the model differentiates by them itself."""
    try:
        return make(True)
    except Differentiated:
        return make(False)


def _run(model: Any, batch: TokenBatch, request: Request, *, frozen: bool) -> Run:
    known = Structure(as_parts(model))
    watch = PassRecorder(batch, request.reached, request.times)
    with _prepared(known, watch, request, frozen=frozen) as this, contextlib.ExitStack() as stack:
        request, taps, tables = this.request, this.taps, this.tables
        compiled = stack.enter_context(_compiled(this, frozen=frozen)) if request.compiled else None
        wanted = [*this.parameters.values(), *tables.parameters]
        with tables.differentiable():
            since = counted() if wanted else 0
            returned, unused = _forward(model, batch, request.call, this)
            expect_unwritten(taps.aliased)
            chosen = watch.resolve(_unseen(known))
            answer = _answered_by(returned, batch, this)
            pulled = pull_back(answer.sets, taps, wanted, this.mode, known.parameters, since)
            if this.mode.differentiated:  # and the model has caught what told of it
                raise Differentiated
        dtype = dtype_of(request, taps, chosen, answer, returned, known.parts)
    keys = {name: chosen[name] for name in request.points}
    below = pulled[0].parameters if pulled else [None] * len(wanted)
    found = {key: watch.recorded(key) for key in keys.values()}
    paths = {key: lookup.path for key, lookup in found.items() if isinstance(lookup, Lookup)}
    count = len(this.parameters)
    return Run(
        values_at(
            keys,
            watch,
            taps.values,
            [one.points for one in pulled],
            [one.before for one in pulled],
            tables.rests(paths, below[count:]),
        ),
        dtype,
        unused,
        answer.objective,
        parameter_values(this.parameters, below[:count]) if request.parameters else None,
        None if compiled is None else compiled.uncompiled,
    )


@contextlib.contextmanager
def _prepared(known: Structure, watch: PassRecorder, request: Request, *, frozen: bool) -> Iterator[_Pass]:
    device = inputs.device_of(known.modules)
    with (
        running(),
        preserved(known, device, training=request.training) as weights,
        preserve_random_state(device, training=request.training),
    ):
        walked = known.walked
        parameters = trainable(walked) if request.parameters else {}
        tables = Tables(known.parts, walked if request.tables else (), request)
        request = wrapped(request, lambda function: _as_the_users(function, weights))
        taps = Taps(request, attached=not frozen)
        mode = LookupMode(watch, taps, TablePaths(walked))
        mode.frozen = frozen and weights.freeze(tables.parameters)
        mode.on_accumulating = weights.gradients_apart
        modules = ModuleWatch(watch, taps, mode.is_active, lambda: mode.pulling)
        try:
            with modules.on(walked, further_paths(known.parts, walked) if watch.everything else {}):
                yield _Pass(request, mode, taps, known, weights, device, parameters, tables)
        finally:
            mode.put_back()
            taps.marks.clear()  # whose hooks know the taps: nothing is to wait for the garbage collector


def _as_the_users(function: Callable[[Any], Any], weights: Weights) -> Callable[[Any], Any]:
    """Return a function of the user's that finds the weights trainable, and accumulates gradients apart from those there are."""

    def called(given: Any) -> Any:
        with weights.as_the_user_has_them(), Before(ACCUMULATING, weights.gradients_apart):
            return function(given)

    return called


@contextlib.contextmanager
def _compiled(this: _Pass, *, frozen: bool) -> Iterator[Any]:
    """Meanwhile modules run compiled; gives what tells why none did."""
    from embgrad_torch.compile import CompiledModules, reason_against

    reason = reason_against(this.request, this.known, frozen=frozen)
    compiled = CompiledModules(this.mode, reason)
    this.mode.frozen = this.mode.frozen or reason is None  # compiled code cannot be differentiated twice either
    with compiled.on(this.known):
        yield compiled


def _forward(model: Any, batch: TokenBatch, call: Call | None, this: _Pass) -> tuple[Any, tuple[str, ...]]:
    """Return the model's return value, and the inputs of the batch that it does not take."""
    make, unused = inputs.plan(model, batch, call, this.device)
    with this.mode:
        try:
            with segments_ended():
                returned = make()
        except Exception as failure:
            # The model may have caught what told of it, or asked for the gradient of what has none.
            if this.mode.differentiated or (this.mode.frozen and "grad" in str(failure)):
                raise Differentiated from None
            this.mode.watch.expect_some((type(module).__name__ for module in this.known.modules), failure)
            raise
    if this.mode.differentiated:
        raise Differentiated
    return returned, unused


def _answered_by(returned: Any, batch: TokenBatch, this: _Pass) -> Answer:
    """The objective's answer; one of the user's own draws, and finds the weights trainable."""
    if isinstance(this.request.respond, Respond) and this.request.respond.is_ours:
        return answered(returned, batch, this.request, TorchTensors())
    frozen = this.mode.frozen and isinstance(this.request.respond, NativeObjective)
    alone = Before(DIFFERENTIATING, this.mode.stop_differentiating) if frozen else contextlib.nullcontext()
    with drawn_by_the_user(), this.weights.as_the_user_has_them(), alone:
        return answered(returned, batch, this.request, TorchTensors())


def _unseen(known: Structure) -> str:
    """Return the reason why lookups of this model may not be seen, for the message; empty where there is none."""
    found = [path or type(one).__name__ for path, one in known.walked if isinstance(one, torch.jit.ScriptModule)]
    if not found:
        return ""
    return (
        f"{found[0]!r} is a TorchScript module (torch.jit.trace or torch.jit.script), whose lookups cannot be seen: "
        "give the torch.nn.Module that it was made from"
    )
