"""One forward pass and its pullbacks: values and gradients at points and parameters, as NumPy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from embgrad.backend import Call, NativeObjective, Request, Run
from embgrad.backend.cotangents import Answer, answered, answered_in_turn, values_at
from embgrad.backend.objective_callback import Respond
from embgrad.backend.own_mask import GradientSizes, unused_inputs
from embgrad.backend.replay import Retries, wrapped
from embgrad.backend.signature import as_parts
from embgrad.forward.descent import Reached
from embgrad.forward.points import Lookup
from embgrad.forward.recorder import PassRecorder
from embgrad.inputs.batch import TokenBatch
from embgrad_torch import inputs
from embgrad_torch.checkpoints import segments_closed
from embgrad_torch.inputs import TorchTensors
from embgrad_torch.lookup import DIFFERENTIATING, LookupMode, WeightsDifferentiated
from embgrad_torch.modules import ModuleWatch
from embgrad_torch.parameters import Tables, parameter_values, trainable
from embgrad_torch.pullback import next_sequence_number, pull_back
from embgrad_torch.state import (
    ACCUMULATING,
    Before,
    Weights,
    drawn_by_the_user,
    preserve_random_state,
    preserved,
    running,
)
from embgrad_torch.tap import Taps, compute_dtype, expect_unwritten
from embgrad_torch.walk import Structure, TablePaths, Walked, further_paths, scripted_name

__all__ = ["points", "run"]

Result = TypeVar("Result")

#: A request that changes nothing and reads no point.
_NOTHING: Final = Request((), lambda outputs: [])


@dataclass(frozen=True)
class _Pass:
    """A forward pass, with the model in the state for it.

    Attributes:
        request: the request, whose functions run with the user's trainable weights.
        parameters: the requested parameters.
        tables: the requested tables.
    """

    request: Request
    mode: LookupMode
    taps: Taps
    structure: Structure
    weights: Weights
    device: Any
    parameters: Mapping[str, Any]
    tables: Tables


def points(model: Any, batch: TokenBatch, call: Call | None) -> Reached:
    """Return the points that a forward pass reaches."""

    def reached(frozen: bool) -> Reached:
        watch = PassRecorder(batch, None)
        with _prepared(Structure(as_parts(model)), watch, _NOTHING, frozen=frozen) as this:
            _forward(model, batch, call, this)
        return watch.points()

    return _frozen_if_possible(reached)


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """Run one forward pass, and a pullback for each set of cotangents."""
    # A native objective may use the weights; and in training mode a second pass would draw other random numbers.
    native = request.has_native and not request.compiled and request.pullback
    if request.parameters or request.training or native:
        return _run(model, batch, request, frozen=False)
    tries = Retries(request)
    return _frozen_if_possible(lambda frozen: _run(model, batch, tries.next(), frozen=frozen))


def _frozen_if_possible(make: Callable[[bool], Result]) -> Result:
    """Return the result of a pass with frozen weights; with trainable ones where the model itself takes their gradients."""
    with contextlib.suppress(WeightsDifferentiated):
        return make(True)
    return make(False)


def _run(model: Any, batch: TokenBatch, request: Request, *, frozen: bool) -> Run:
    structure = Structure(as_parts(model))
    watch = request.recorder(batch)
    with _prepared(structure, watch, request, frozen=frozen) as this, contextlib.ExitStack() as stack:
        request, taps, tables = this.request, this.taps, this.tables
        compiled = stack.enter_context(_compiled(this, frozen=frozen)) if request.compiled else None
        requested = [*this.parameters.values(), *tables.parameters]
        is_recorded = request.pullback or not frozen
        with tables.differentiable(), contextlib.nullcontext() if is_recorded else torch.no_grad():
            since = next_sequence_number() if requested else 0
            returned, unused = _forward(model, batch, request.call, this)
            expect_unwritten(taps.aliased)
            chosen = watch.resolve(_unseen(structure))
            answer = answered_in_turn(request, lambda part: _answered_by(returned, batch, part, this))
            sets, sizes = answer.sets if request.pullback else (), GradientSizes(request, unused)
            pulled = pull_back(sets, taps, requested, this.mode, structure.parameters, sizes.request, since)
            if this.mode.differentiated:  # and the model has caught the exception
                raise WeightsDifferentiated
        dtype = compute_dtype(request, taps, chosen, answer, returned, structure.parameters(), this.mode.halves)
    keys = request.keys_to_read(chosen)
    gradients = pulled[0].parameters if pulled else [None] * len(requested)
    reached = {key: watch.recorded(key) for key in keys.values()}
    paths = {key: lookup.path for key, lookup in reached.items() if isinstance(lookup, Lookup)}
    count = len(this.parameters)
    found = values_at(
        keys,
        watch,
        taps.values,
        [pullback.points for pullback in pulled],
        [pullback.before for pullback in pulled],
        tables.rests(paths, gradients[count:]),
    )
    rows = structure.masked_rows(lookup.path for lookup in watch.lookups if lookup.layout is not None)
    unused, masked_id = unused_inputs(unused, batch, rows, sizes.of(found, chosen))
    return Run(
        found,
        dtype,
        unused,
        answer.objective,
        parameter_values(this.parameters, gradients[:count]) if request.parameters else None,
        None if compiled is None else compiled.uncompiled,
        masked_id=masked_id,
        further=answer.further,
        lookups=watch.looked_up(),
        reached=watch.points() if request.record else None,
    )


@contextlib.contextmanager
def _prepared(structure: Structure, watch: PassRecorder, request: Request, *, frozen: bool) -> Iterator[_Pass]:
    device = structure.device
    with (
        running(),
        preserved(structure, device, training=request.training) as weights,
        preserve_random_state(device, training=request.training),
    ):
        walked = structure.walked
        parameters = trainable(walked) if request.parameters else {}
        tables = Tables(structure.parts, walked if request.tables else Walked(()), request)
        request = wrapped(request, lambda function: _with_trainable_weights(function, weights))
        taps = Taps(request, attached=not frozen)
        mode = LookupMode(watch, taps, TablePaths(walked))
        mode.frozen = frozen and weights.freeze(tables.parameters)
        mode.on_accumulating = weights.copy_gradients
        modules = ModuleWatch(watch, taps, mode.is_active, lambda: mode.pulling)
        try:
            with modules.on(walked, further_paths(structure.parts, walked) if watch.everything else {}):
                yield _Pass(request, mode, taps, structure, weights, device, parameters, tables)
        finally:
            mode.restore()
            mode.head = None
            taps.marks.clear()  # their hooks refer to the taps: a cycle would wait for the garbage collector


def _with_trainable_weights(function: Callable[[Any], Any], weights: Weights) -> Callable[[Any], Any]:
    """Return the user's function with the weights trainable, and with gradients accumulated in copies of their `grad`."""

    def called(value: Any) -> Any:
        with weights.trainable(), Before(ACCUMULATING, weights.copy_gradients):
            return function(value)

    return called


@contextlib.contextmanager
def _compiled(this: _Pass, *, frozen: bool) -> Iterator[Any]:
    """Run modules compiled while the context is open; yield the object that knows why none did."""
    from embgrad_torch.compile import CompiledModules, reason_against

    reason = reason_against(this.request, this.structure, frozen=frozen)
    compiled = CompiledModules(this.mode, reason)
    this.mode.frozen = this.mode.frozen or reason is None  # compiled code cannot be differentiated twice either
    with compiled.on(this.structure):
        yield compiled


def _forward(model: Any, batch: TokenBatch, call: Call | None, this: _Pass) -> tuple[Any, tuple[str, ...]]:
    """Return the model's return value, and the inputs of the batch that it does not take."""
    make, unused = inputs.plan(model, batch, call, this.device)
    with this.mode:
        try:
            with segments_closed():
                returned = make()
        except Exception as failure:
            # The model may have caught WeightsDifferentiated, or failed because a weight has no gradient.
            if this.mode.differentiated or (this.mode.frozen and "grad" in str(failure)):
                raise WeightsDifferentiated from None
            this.mode.watch.expect_some((type(module).__name__ for module in this.structure.modules), failure)
            raise
    if this.mode.differentiated:
        raise WeightsDifferentiated
    return returned, unused


def _answered_by(returned: Any, batch: TokenBatch, request: Request, this: _Pass) -> Answer:
    """Return the answer of one objective; a native objective may draw random numbers, and finds the weights trainable."""
    tensors = TorchTensors(None if this.parameters or this.tables.parameters else this.mode.head)
    if isinstance(request.respond, Respond) and request.respond.is_ours:
        return answered(returned, batch, request, tensors)
    frozen = this.mode.frozen and isinstance(request.respond, NativeObjective)
    stop = Before(DIFFERENTIATING, this.mode.stop_differentiating) if frozen else contextlib.nullcontext()
    with drawn_by_the_user(), this.weights.trainable(), stop:
        try:
            return answered(returned, batch, request, tensors)
        except RuntimeError as failure:
            if request.pullback or torch.is_grad_enabled() or "grad" not in str(failure):
                raise
            raise WeightsDifferentiated from None  # the function differentiates what was not recorded


def _unseen(structure: Structure) -> str:
    """Return why lookups of this model may be invisible, for the message; an empty string for no reason."""
    scripted = scripted_name(structure)
    if scripted is None:
        return ""
    return (
        f"{scripted!r} is a TorchScript module (torch.jit.trace or torch.jit.script), whose lookups cannot be recorded: "
        "pass the torch.nn.Module that it was made from"
    )
