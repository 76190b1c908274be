"""One forward pass and its pullbacks: values and gradients at points and parameters, as NumPy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from embgrad.answering import Answer, answer, native_answer, values_at
from embgrad.backend import Call, NativeObjective, Point, Request, Run
from embgrad.batch import TokenBatch
from embgrad.calling import as_parts
from embgrad.points import Lookup
from embgrad.structures import first
from embgrad.watching import PointWatch
from embgrad_torch import inputs
from embgrad_torch.lookup import LookupMode
from embgrad_torch.modules import ModuleWatch
from embgrad_torch.ours import running
from embgrad_torch.parameters import Tables, parameter_values, trainable
from embgrad_torch.pullback import Pulled, pull_back
from embgrad_torch.state import as_found, random_as_found
from embgrad_torch.tap import Taps, expect_unwritten, is_floating
from embgrad_torch.walk import further_paths, table_paths, walk

__all__ = ["points", "run"]

#: A request that changes nothing and reads no point.
_NOTHING: Final = Request((), lambda outputs: [])


@dataclass(frozen=True)
class _Pass:
    """What a forward pass needs to know, with the model in the state for it."""

    mode: LookupMode
    taps: Taps
    modules: Sequence[tuple[str, Any]]
    device: Any
    training: bool


def points(model: Any, batch: TokenBatch, call: Call | None) -> list[Point]:
    """What a forward pass reaches."""
    watch = PointWatch(batch, None)
    with _prepared(model, watch, _NOTHING) as one:
        _forward(model, batch, call, one)
    return watch.points()


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """One forward pass, and a pullback for each set of cotangents."""
    parts = as_parts(model)
    watch = PointWatch(batch, request.reached)
    with _prepared(model, watch, request) as one:
        parameters = trainable(one.modules) if request.parameters else {}
        tables = Tables(parts, one.modules, request)
        with tables.differentiable():
            returned, unused = _forward(model, batch, request.call, one)
            expect_unwritten(one.taps.aliased)
            chosen = watch.resolve(_unseen(one.modules))
            answered = _answer(returned, batch, request)
            wanted = [*parameters.values(), *tables.parameters]
            leaves = [leaf for part in parts for leaf in part.parameters()]
            pulled = pull_back(answered.sets, one.taps, wanted, one.mode, leaves)
        dtype = _dtype(request, one.taps, chosen, answered, returned, leaves)
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
def _prepared(model: Any, watch: PointWatch, request: Request) -> Iterator[_Pass]:
    parts = as_parts(model)
    device, walked = inputs.device_of(parts), walk(parts)
    with running(), as_found(parts, [module for _, module in walked], device, training=request.training):
        taps = Taps(request)
        mode = LookupMode(watch, taps, table_paths(walked))
        modules = ModuleWatch(watch, taps, mode.is_active, lambda: mode.pulling)
        also = further_paths(parts, walked) if watch.everything else {}
        with mode.tables_as_found(), modules.on(walked, also):
            yield _Pass(mode, taps, walked, device, request.training)


def _forward(model: Any, batch: TokenBatch, call: Call | None, one: _Pass) -> tuple[Any, tuple[str, ...]]:
    """What the model returns, and what of the batch it was not given."""
    make, unused = inputs.plan(model, batch, call, one.device)
    with random_as_found(one.device, training=one.training), one.mode:
        return make(), unused


def _answer(returned: Any, batch: TokenBatch, request: Request) -> Answer:
    if isinstance(request.respond, NativeObjective):
        value = request.respond.function(returned)
        return native_answer(value, request.respond, batch, inputs.TorchTensors(), several=request.several)
    return answer(returned, request, inputs.TorchTensors())


def _befores(pulled: Sequence[Pulled]) -> list[Any]:
    return [one.before for one in pulled]


def _dtype(
    request: Request, taps: Taps, chosen: Any, answered: Answer, returned: Any, parameters: Sequence[Any]
) -> str:
    """The dtype of the first point, or else of the first output that was read, or else of the first parameter."""
    at_points = [taps.marks[chosen[name]] for name in request.points]
    read = [output for one in answered.sets for output, _ in one] or [first(returned, is_floating)]
    tensors = [one for one in (*at_points, *read, *parameters) if one is not None]
    return str(tensors[0].dtype).removeprefix("torch.")


def _unseen(modules: Sequence[tuple[str, Any]]) -> str:
    """What cannot be watched in this model, for the message where a lookup was not found."""
    script = (torch.jit.ScriptModule, torch.jit.ScriptFunction)
    found = [path or type(module).__name__ for path, module in modules if isinstance(module, script)]
    if not found:
        return ""
    return (
        f"{found[0]!r} is a TorchScript module (torch.jit.trace or torch.jit.script), whose lookups cannot be seen: "
        "give the torch.nn.Module that it was made from"
    )
