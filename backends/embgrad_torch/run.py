"""One forward pass and its pullbacks: values and gradients at lookups, as NumPy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from embgrad.answering import Answer, answer, native_answer, values_at
from embgrad.backend import Call, NativeObjective, Point, Request, Run
from embgrad.batch import TokenBatch
from embgrad.calling import as_parts
from embgrad_torch import inputs
from embgrad_torch.lookup import LookupMode, table_paths
from embgrad_torch.pullback import pull_back
from embgrad_torch.state import as_found, random_as_found
from embgrad_torch.walk import walk

__all__ = ["points", "run"]


@dataclass(frozen=True)
class _Pass:
    """What a forward pass needs to know, with the model in the state for it."""

    mode: LookupMode
    modules: Sequence[tuple[str, Any]]
    device: Any
    training: bool


def points(model: Any, batch: TokenBatch, call: Call | None) -> list[Point]:
    """The lookups that a forward pass makes, in order."""
    with _prepared(model, batch, (), training=False) as one, torch.no_grad():
        _forward(model, batch, call, one)
    return one.mode.watch.points()


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """One forward pass, and a pullback for each set of cotangents."""
    parts = as_parts(model)
    with _prepared(model, batch, request.points, training=request.training) as one:
        returned, unused = _forward(model, batch, request.call, one)
        lookups = one.mode.watch.lookups
        chosen = one.mode.watch.resolve(_unseen(one.modules))
        marks = [one.mode.kept[number].mark for number in chosen.values()]
        activations = [inputs.to_numpy(mark) for mark in marks]
        answered = _answer(returned, batch, request)
        pulled = pull_back(answered.sets, marks, one.mode, parts)
    found = values_at(chosen, lookups, activations, pulled)
    return Run(found, str(marks[0].dtype).removeprefix("torch."), unused, answered.objective)


@contextlib.contextmanager
def _prepared(model: Any, batch: TokenBatch, names: Sequence[str], *, training: bool) -> Iterator[_Pass]:
    parts = as_parts(model)
    device, walked = inputs.device_of(parts), walk(parts)
    with as_found(parts, [module for _, module in walked], device, training=training):
        mode = LookupMode(batch, names, table_paths(walked))
        with mode.tables_as_found():
            yield _Pass(mode, walked, device, training)


def _forward(model: Any, batch: TokenBatch, call: Call | None, one: _Pass) -> tuple[Any, tuple[str, ...]]:
    """What the model returns, and what of the batch it was not given."""
    make, unused = inputs.plan(model, batch, call, one.device)
    with random_as_found(one.device, training=one.training), one.mode:
        return make(), unused


def _answer(returned: Any, batch: TokenBatch, request: Request) -> Answer:
    if isinstance(request.respond, NativeObjective):
        return native_answer(request.respond.function(returned), request.respond, batch, inputs.TorchTensors())
    return answer(returned, request, inputs.TorchTensors())


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
