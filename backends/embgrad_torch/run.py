"""One forward pass and its pullbacks: values and gradients at points and parameters, as NumPy."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import torch

from embgrad.answering import values_at
from embgrad.backend import Call, NativeObjective, Point, Request, Run
from embgrad.batch import TokenBatch
from embgrad.calling import as_parts
from embgrad.errors import PointError
from embgrad.points import Lookup
from embgrad.replaying import Tries, wrapped
from embgrad.responding import Respond
from embgrad.watching import PointWatch
from embgrad_torch import inputs
from embgrad_torch.answered import answered_by, dtype_of, leaves
from embgrad_torch.attributes import Attributes
from embgrad_torch.drawing import of_the_user, random_as_found
from embgrad_torch.lookup import LookupMode
from embgrad_torch.modules import ModuleWatch
from embgrad_torch.operands import ByWeights, Differentiated
from embgrad_torch.ours import running
from embgrad_torch.parameters import Tables, parameter_values, trainable
from embgrad_torch.pullback import Pulled, counted, pull_back
from embgrad_torch.segments import segments_ended
from embgrad_torch.state import as_found, gradients_apart, with_gradients_apart
from embgrad_torch.structure import Changed, Structure, recalled, structure
from embgrad_torch.tap import Taps, expect_unwritten
from embgrad_torch.walk import TablePaths, further_paths
from embgrad_torch.ways import Elsewhere, Watched, Ways

__all__ = ["points", "run"]

Made = TypeVar("Made")

#: A request that changes nothing and reads no point.
_NOTHING: Final = Request((), lambda outputs: [])


@dataclass(frozen=True)
class _Pass:
    """What a forward pass needs to know, with the model in the state for it.

    Attributes:
        wanted: the identities of the weights whose gradients are asked for, where functions get the others' values alone.
        watched: makes the pass be watched.
    """

    mode: LookupMode
    taps: Taps
    modules: Sequence[tuple[str, Any]]
    device: Any
    training: bool
    wanted: set[int]
    watched: AbstractContextManager[Any]


def points(model: Any, batch: TokenBatch, call: Call | None) -> list[Point]:
    """What a forward pass reaches."""

    def seen(weights: bool) -> list[Point]:
        watch = PointWatch(batch, None)
        with _prepared(structure(as_parts(model)), watch, _NOTHING, weights=weights) as one:
            _forward(model, batch, call, one)
        return watch.points()

    return _with_weights_if_need_be(seen)


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """One forward pass, and a pullback for each set of cotangents."""
    if request.compiled:
        from embgrad_torch.kept import run_kept

        return run_kept(model, batch, request, lambda other: run(model, batch, replace(other, compiled=False)))
    if request.parameters or request.training:  # a second forward pass would draw other random numbers
        return _run(model, batch, request, weights=True)
    parts = as_parts(model)
    known = recalled(parts)
    if known is not None:
        with contextlib.suppress(Changed):
            return _run_known(model, batch, request, known)
    return _run_known(model, batch, request, structure(parts))


def _run_known(model: Any, batch: TokenBatch, request: Request, known: Structure) -> Run:
    """The same, where a pass may be watched in part."""
    ways = _ways(known, batch, request)
    if ways is None:
        tries = Tries(request)
        return _with_weights_if_need_be(lambda weights: _run(model, batch, tries.next(), weights=weights))
    if ways.seen:
        with contextlib.suppress(Elsewhere, PointError):  # it may be there, and not where it was
            return _run(model, batch, request, known, weights=True, ways=ways, whole=False)
    return _run(model, batch, request, known, weights=True, ways=ways)


def _ways(known: Structure, batch: TokenBatch, request: Request) -> Ways | None:
    """The ways known of a model through which a pass is made that need not be watched as a whole; None where it must be."""
    if request.call is not None or request.override or request.add or request.times:
        return None
    if known.ways is None or not known.ways.serve(batch.ids.size) or any(":" in name for name in request.reached):
        return None
    return known.ways


def _with_weights_if_need_be(make: Callable[[bool], Made]) -> Made:
    """What a pass gives that has the values of weights alone, or the weights where anything differentiates by them."""
    try:
        return make(False)
    except Differentiated:
        return make(True)


def _run(
    model: Any,
    batch: TokenBatch,
    request: Request,
    known: Structure | None = None,
    *,
    weights: bool,
    ways: Ways | None = None,
    whole: bool = True,
) -> Run:
    parts = as_parts(model)
    known = known or structure(parts)
    request = wrapped(request, functools.partial(with_gradients_apart, known))
    watch = PointWatch(batch, request.reached, request.times)
    with _prepared(known, watch, request, weights=weights, ways=ways, whole=whole) as one:
        parameters = trainable(known.walked) if request.parameters else {}
        tables = Tables(parts, known.walked if request.tables else (), request)
        one.wanted.update(map(id, tables.parameters))
        with tables.differentiable() if tables.parameters else contextlib.nullcontext():
            since = counted() if parameters or tables.parameters else 0
            returned, unused = _forward(model, batch, request.call, one)
            expect_unwritten(one.taps.aliased)
            chosen = watch.resolve(_unseen(known))
            with _of_objective(request), _without_weights(request, weights):
                answered = answered_by(returned, batch, request)
            wanted = [*parameters.values(), *tables.parameters]
            pulled = pull_back(answered.sets, one.taps, wanted, one.mode, lambda: leaves(parts), since)
            if one.mode.differentiated:  # and the model has caught what told of it
                raise Differentiated
        dtype = dtype_of(request, one.taps, chosen, answered, returned, parts)
    keys = {name: chosen[name] for name in request.points}
    below = pulled[0].parameters if pulled else [None] * len(wanted)
    found = {key: watch.found(key) for key in keys.values()}
    paths = {key: lookup.path for key, lookup in found.items() if isinstance(lookup, Lookup)}
    rests = tables.rests(paths, below[len(parameters) :])
    return Run(
        values_at(keys, watch, one.taps.values, [one.points for one in pulled], _befores(pulled), rests),
        dtype,
        unused,
        answered.objective,
        parameter_values(parameters, below[: len(parameters)]) if request.parameters else None,
    )


@contextlib.contextmanager
def _prepared(
    known: Structure,
    watch: PointWatch,
    request: Request,
    *,
    weights: bool,
    ways: Ways | None = None,
    whole: bool = True,
) -> Iterator[_Pass]:
    device = inputs.device_of(known.modules)
    attributes: Attributes | None = None
    try:
        with (
            running(),
            as_found(known, device, training=request.training) as attributes,
            random_as_found(device, training=request.training),
        ):
            if ways is not None and not whole:
                ways.expect_settled(attributes)
            learning = ways is not None and (not whole or ways.learn(attributes))
            walked = known.walked
            taps = Taps(request, attached=weights)
            wanted: set[int] = set()
            mode = LookupMode(watch, taps, TablePaths(walked, known.tables), None if weights else wanted)
            mode.on_accumulating = functools.partial(gradients_apart, known)
            modules = ModuleWatch(
                watch, taps, lambda: not taps.away and mode.is_active(), lambda: mode.pulling and not taps.away
            )
            also = further_paths(known.parts, walked) if watch.everything else {}
            watched: AbstractContextManager[Any] = mode
            if ways is not None and learning:
                watched = Watched(mode, known.modules, ways, whole=whole, cut=not taps.attached)
            try:
                with modules.on(walked, also):
                    yield _Pass(mode, taps, walked, device, request.training, wanted, watched)
            finally:
                mode.put_back()
                taps.marks.clear()  # whose hooks know the taps: nothing is to wait for the garbage collector
    finally:
        if ways is not None and attributes is not None:
            ways.settings = attributes.settings


def _forward(model: Any, batch: TokenBatch, call: Call | None, one: _Pass) -> tuple[Any, tuple[str, ...]]:
    """What the model returns, and what of the batch it was not given."""
    make, unused = inputs.plan(model, batch, call, one.device)
    with one.watched:
        try:
            with segments_ended():
                returned = make()
        except Exception as failure:
            if one.mode.differentiated:  # and the model has caught what told of it
                raise Differentiated from None
            one.mode.watch.expect_some((type(module).__name__ for _, module in one.modules), failure)
            raise
    if one.mode.differentiated:
        raise Differentiated
    return returned, unused


def _of_objective(request: Request) -> AbstractContextManager[None]:
    """What an objective of the user's own draws is drawn; those of embgrad draw nothing."""
    ours = isinstance(request.respond, Respond) and request.respond.is_ours
    return contextlib.nullcontext() if ours else of_the_user()


def _without_weights(request: Request, weights: bool) -> AbstractContextManager[Any]:
    """A function of the user's may differentiate what a pass returned by weights, and is stopped if these are not there."""
    return contextlib.nullcontext() if weights or not isinstance(request.respond, NativeObjective) else ByWeights()


def _befores(pulled: Sequence[Pulled]) -> list[Any]:
    return [one.before for one in pulled]


def _unseen(known: Structure) -> str:
    """What cannot be watched in this model, for the message where a lookup was not found."""
    if known.ways is not None:  # what is remembered of a model has no such modules
        return ""
    found = [path or type(one).__name__ for path, one in known.walked if isinstance(one, torch.jit.ScriptModule)]
    if not found:
        return ""
    return (
        f"{found[0]!r} is a TorchScript module (torch.jit.trace or torch.jit.script), whose lookups cannot be seen: "
        "give the torch.nn.Module that it was made from"
    )
