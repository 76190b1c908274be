"""Values and pullbacks of one forward pass."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.answering import Answer, Cotangents, answer, native_answer, values_at
from embgrad.arrays import owned
from embgrad.backend import Call, NativeObjective, Point, Request, Run
from embgrad.batch import TokenBatch
from embgrad.calling import as_parts
from embgrad.errors import UnsupportedError
from embgrad_gluon.bert import output_names
from embgrad_gluon.cures import Cures
from embgrad_gluon.graph import reached
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import GluonArrays, call_model, to_native
from embgrad_gluon.lookup import HINT, Lookups
from embgrad_gluon.operators import imperatively, watching
from embgrad_gluon.state import as_found

__all__ = ["points", "run"]


def points(model: Any, batch: TokenBatch, call: Call | None) -> list[Point]:
    """The lookups of a forward pass, in order."""
    parts = as_parts(model)
    lookups = Lookups(parts, batch, ())
    with as_found(parts, training=False), imperatively(), watching(lookups.handlers()):
        _wait_for(call_model(model, parts, batch, call)[0])
    return lookups.watch.points()


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """One forward pass, and a pullback for each set of cotangents."""
    parts = as_parts(model)
    with as_found(parts, training=request.training):
        trace = _forward(model, parts, batch, request)
        chosen = trace.lookups.watch.resolve(HINT)
        for number in chosen.values():
            trace.lookups.expect_unwritten(number)
        answered = _answer(trace, batch, request, positional=output_names(model))
        kept = [trace.lookups.kept[number] for number in chosen.values()]
        pulled = _pull_back(answered.sets, [leaf for leaf, _ in kept], trace.also, request.training)
        activations = [owned(gone_on.asnumpy()) for _, gone_on in kept]
        found = values_at(chosen, trace.lookups.watch.lookups, activations, pulled)
        return Run(found, GluonArrays().dtype(kept[0][1]), trace.unused, answered.objective)


@dataclass(frozen=True)
class _Trace:
    """One recorded forward pass.

    Attributes:
        returned: what the model returned.
        value: of the user's own objective, computed in the same graph; else None.
        lookups: seen and kept.
        also: see `Cures`.
        unused: what of the batch the model could not take.
    """

    returned: Any
    value: Any
    lookups: Lookups
    also: list[Any]
    unused: tuple[str, ...]


def _forward(model: Any, parts: Sequence[Any], batch: TokenBatch, request: Request) -> _Trace:
    autograd = import_mxnet().autograd
    lookups, cures = Lookups(parts, batch, request.points), Cures(request.training)
    value = None
    with (
        autograd.record(train_mode=request.training),
        imperatively(),
        watching({**lookups.handlers(), **cures.handlers()}),
    ):
        try:
            returned, unused = call_model(model, parts, batch, request.call)
        except import_mxnet().MXNetError as error:
            if "already in a computational graph" not in str(error):
                raise
            raise UnsupportedError(
                "the model writes into an array that it has computed from the lookup or from parameters (x += ..., x[i] = ...), "
                "which MXNet cannot do while it records: expected a new array, such as x + ..., concat or where(...)"
            ) from error
        lookups.stop()
        if isinstance(request.respond, NativeObjective):
            value = request.respond.function(returned)
    _wait_for(returned)
    return _Trace(returned, value, lookups, cures.also, unused)


def _answer(trace: _Trace, batch: TokenBatch, request: Request, positional: Sequence[str]) -> Answer:
    if isinstance(request.respond, NativeObjective):
        return native_answer(trace.value, request.respond, batch, GluonArrays())
    alone = positional and GluonArrays().is_tensor(trace.returned)
    returned = {positional[0]: trace.returned} if alone else trace.returned
    return answer(returned, request, GluonArrays(), positional)


def _pull_back(
    sets: Sequence[Cotangents], leaves: Sequence[Any], also: Sequence[Any], training: bool
) -> list[list[np.ndarray | None]]:
    """For each set of cotangents the gradients at the leaves, None where no way leads there."""
    variables = [*leaves, *also]
    outputs = {id(output): output for cotangents in sets for output, _ in cotangents}
    ways = {key: reached(output, variables) for key, output in outputs.items()}
    pulled: list[list[np.ndarray | None]] = []
    for cotangents in sets:
        heads = [(output, cotangent) for output, cotangent in cotangents if any(ways[id(output)][: len(leaves)])]
        way = [any(there) for there in zip(*(ways[id(output)] for output, _ in heads), strict=True)]
        if not heads:
            pulled.append([None] * len(leaves))
            continue
        wanted = [variable for variable, there in zip(variables, way, strict=True) if there]
        numbers = iter(_gradients(heads, wanted, training))
        pulled.append([owned(next(numbers).asnumpy()) if there else None for there in way[: len(leaves)]])
    return pulled


def _gradients(heads: Cotangents, variables: Sequence[Any], training: bool) -> list[Any]:
    mx = import_mxnet()
    cotangents = [
        to_native(cotangent, output.ctx, output.dtype, isinstance(output, mx.np.ndarray)) for output, cotangent in heads
    ]
    try:
        # The graph is kept, or the user's own graphs lose the parameters that they share with this one.
        found = mx.autograd.grad(
            [output for output, _ in heads], variables, head_grads=cotangents, retain_graph=True, train_mode=training
        )
    except mx.MXNetError as error:
        operator = re.search(r"Operator (\S+) is non-differentiable", str(error))
        if operator is None:
            raise
        raise UnsupportedError(
            f"between the lookup and the objective is the operator {operator[1]!r}, for which MXNet has no gradient: expected "
            "operators that have one; write it in terms of others"
        ) from error
    return list(found)


def _wait_for(returned: Any) -> None:
    """MXNet fails when a result is read: read before anything goes on with it."""
    if GluonArrays().is_tensor(returned):
        returned.wait_to_read()
    elif isinstance(returned, Mapping) or hasattr(returned, "__dataclass_fields__"):
        _wait_for(list((returned if isinstance(returned, Mapping) else vars(returned)).values()))
    elif isinstance(returned, (list, tuple)):
        for entry in returned:
            _wait_for(entry)
