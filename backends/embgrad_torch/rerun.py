"""Runs a kept trace once: compiled code, and what happens at lookups and points with this call's values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from embgrad.answering import answered, values_at
from embgrad.backend import Change, NativeObjective, Request, Run
from embgrad.batch import TokenBatch
from embgrad.locks import held
from embgrad.points import UNNAMED_TABLE
from embgrad.replaying import wrapped
from embgrad.watching import PointWatch
from embgrad_torch.inputs import Plan, TorchTensors, device_of
from embgrad_torch.lookup import DIFFERENTIATING, LookupMode, Read
from embgrad_torch.program import FailedError, Program, Stage, why_failed
from embgrad_torch.pullback import pull_back
from embgrad_torch.settings import operands_kept
from embgrad_torch.standins import Happening
from embgrad_torch.state import as_found, running, with_gradients_apart
from embgrad_torch.structure import Structure
from embgrad_torch.tap import Differentiable, Taps, dtype_of
from embgrad_torch.tracing import is_tensor
from embgrad_torch.walk import TablePaths

__all__ = [
    *("Differentiating", "DifferentiatingError", "OtherUseError", "StaleError", "Trace", "run_trace", "used_by"),
]


class OtherUseError(Exception):
    """A native objective depends on other tensors than the trace pulls back from.

    Attributes:
        used: on which.
    """

    def __init__(self, used: tuple[int, ...]) -> None:
        super().__init__(f"the objective depends on other outputs, {used}, than in the run before")
        self.used = used


class DifferentiatingError(Exception):
    """A native objective takes gradients by itself; says so as "compile=True: ..." goes on."""


class Differentiating(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """While a native objective runs: tells whether it takes gradients, or hooks those of an output.

    In a trace no output lies on the way to another, so that these would be others, or none.

    Args:
        outputs: the tensors that the model returned.

    Attributes:
        why: says so; None where it does nothing of the kind.
    """

    def __init__(self, outputs: Sequence[Any]) -> None:
        super().__init__()
        self.why: str | None = None
        self._outputs = outputs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by PyTorch in place of each of its functions, with this mode off meanwhile."""
        if func in DIFFERENTIATING:
            self.why = "the objective takes gradients by itself, and a trace has no way from one output to another"
        elif func in HOOKING and any(args[0] is one for one in self._outputs):
            self.why = "the objective hooks the gradient of an output, which a trace need not come by"
        return func(*args, **(kwargs or {}))


#: The functions by which others are told of a tensor's gradient.
HOOKING: Final = frozenset({torch.Tensor.register_hook, torch.Tensor.retain_grad})


class StaleError(Exception):
    """The weights have other shapes or dtypes than those that the trace was made with."""


class Trace:
    """A program and the weights' values that it was run on last.

    Args:
        program: what is run.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._values: list[Any] = [None] * len(program.weights)
        self._memory: list[int] = [0] * len(program.weights)

    def weights(self, modules: Sequence[Any]) -> list[Any]:
        """The weights' values, off every graph, in the weights' own memory.

        Raises:
            StaleError: see there.
        """
        for number, place in enumerate(self.program.places):
            own = place.find(modules)
            if not is_tensor(own):
                raise StaleError
            memory = own.data_ptr()
            if memory != self._memory[number] or not memory or not _lie_alike(own, self._values[number]):
                if (tuple(own.shape), own.dtype) != self.program.shapes[number] or own.is_inference():
                    raise StaleError
                self._values[number], self._memory[number] = own.detach(), memory
        return self._values


def _lie_alike(one: Any, other: Any) -> bool:
    """Whether two tensors in the same memory are the same numbers."""
    alike: bool = one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype
    return alike


class _Taps(Taps):
    """As in any pass, but rows that nobody asks for are values alone: the graph knows already which way the model takes."""

    def lookup(
        self, key: str | None, table: Any, compute: Callable[[], Any], *, word: bool, again: bool = False
    ) -> Any:
        """See `Taps.lookup`."""
        return compute() if key is None else super().lookup(key, table, compute, word=word, again=again)


class _Lookups(LookupMode):
    """Makes the lookups of a trace as those of any pass. It is never entered: no function of the model's runs."""

    #: The path of the table that is looked up in.
    path = UNNAMED_TABLE

    def make(self, happening: Happening, table: Any, indices: Any) -> Any:
        """The rows that go on."""
        read = Read(table, indices, happening.read["padding"], happening.read["indexing"])
        self.path = happening.path

        def compute() -> Any:
            return table[indices] if read.indexing else torch.nn.functional.embedding(indices, table)

        rows = self._rows(read, compute)
        return compute() if rows is None else rows

    def _path(self, table: Any) -> str:
        return super()._path(table) if self.path == UNNAMED_TABLE else self.path


class _Unwatched(contextlib.nullcontext[None]):
    """Stands for the watching of a backward pass in which nothing of the model's runs again."""

    pulling = False
    suspended_grad = False


def run_trace(trace: Trace, known: Structure, planned: Plan, batch: TokenBatch, request: Request) -> Run:
    """What the trace gives.

    Raises:
        DifferentiatingError: the objective asks for what no trace has.
        FailedError: compiled code failed.
        OtherUseError: the trace does not serve for this objective, another may.
        StaleError: nor for these weights.
        EmbgradError: as without a trace.
    """
    keeping = operands_kept if request.several else contextlib.nullcontext()
    with held(known.locks), running(), Differentiable(), keeping:
        return _Running(trace, known, planned, batch, _with_the_model_as_asked(request, known)).run()


def _with_the_model_as_asked(request: Request, known: Structure) -> Request:
    """The request with functions of the user's that find the model as in a pass of its own, and leave it so.

    They may call parts of it, such as a head: in the mode that is asked for, without a trace in their buffers.
    """
    device = device_of(known.modules)

    def inside(function: Callable[..., Any]) -> Callable[..., Any]:
        apart = with_gradients_apart(known, function)

        def called(given: Any) -> Any:
            with as_found(known, device, training=request.training):
                return apart(given)

        return called

    return wrapped(request, inside)


class _Running:
    """One run."""

    def __init__(self, trace: Trace, known: Structure, planned: Plan, batch: TokenBatch, request: Request) -> None:
        self._edits = _Heard(request.edit)
        self._request = replace(request, edit=self._edits.changes)
        self._program = trace.program
        self._planned = planned
        self._batch = batch
        self._watch = PointWatch(batch, request.reached)
        self._taps = _Taps(self._request)
        self._lookups = _Lookups(self._watch, self._taps, TablePaths(known.walked, known.tables))
        program = self._program
        self._values: dict[str, Any] = {**program.constants}
        self._values.update(zip(program.weights, trace.weights(known.modules), strict=True))
        self._values.update(zip(program.inputs, planned.leaves, strict=True))

    def run(self) -> Run:
        """What it gives."""
        program, request = self._program, self._request
        for step in program.steps:
            if isinstance(step, Stage):
                step.run(self._values)
            else:
                self._happen(program.script[step])
        chosen = self._watch.resolve()
        returned, request = self._returned(request)
        answer = answered(returned, self._batch, request, TorchTensors())
        try:
            pulled = pull_back(answer.sets, self._taps, (), _Unwatched(), lambda: ())  # type: ignore[arg-type]
        except Exception as error:
            if self._edits.raised is not None or not isinstance(error, (RuntimeError, TypeError, ValueError)):
                raise
            raise FailedError(why_failed(error)) from error
        keys = {name: chosen[name] for name in request.points}
        points = values_at(
            keys, self._watch, self._taps.values, [one.points for one in pulled], [one.before for one in pulled]
        )
        dtype = dtype_of(request, self._taps, chosen, answer, returned, ())
        return Run(points, dtype, self._planned.unused, answer.objective)

    def _happen(self, happening: Happening) -> None:
        """What happens at a lookup or at a side of a module's call."""
        number = happening.number
        given = [] if number is None else [self._values[name] for name in self._program.operands[number]]
        if happening.kind == "lookup":
            new = self._lookups.make(happening, *given)
        else:
            tensor = given[0] if given else None
            shape = () if tensor is None else tensor.shape
            if happening.kind == "enter":
                key = self._watch.enter(happening.path, happening.sort, tensor, shape, happening.also)
            else:
                key = self._watch.leave(tensor, shape)
            if tensor is None:
                return
            new = tensor if key is None else self._taps.tensor(key, tensor)
        assert number is not None
        self._values[self._program.results[number]] = new

    def _returned(self, request: Request) -> tuple[Any, Request]:
        """What the model returns, and the request with an objective that tells what it depends on."""
        program = self._program
        outputs = [self._values[name] for name in self._program.outputs]
        if not isinstance(request.respond, NativeObjective):
            return program.rebuild(outputs), request
        used = program.used
        outputs = [
            one if number in used or not one.is_floating_point() else one.detach().requires_grad_()
            for number, one in enumerate(outputs)
        ]
        function = request.respond.function

        def watched(returned: Any) -> Any:
            mode = Differentiating(outputs)
            try:
                with mode:
                    value = function(returned)
            except Exception as error:
                if mode.why is None:
                    raise
                raise DifferentiatingError(mode.why) from error  # it may have failed by that
            if mode.why is not None:
                raise DifferentiatingError(mode.why)
            depends = used_by(value, outputs)
            if not set(depends) <= set(used):
                raise OtherUseError(depends)
            return value

        return program.rebuild(outputs), replace(request, respond=replace(request.respond, function=watched))


class _Heard:
    """The functions of an option, and whether one of them raised.

    Attributes:
        changes: the functions.
        raised: what one raised.
    """

    def __init__(self, changes: Mapping[str, Change]) -> None:
        self.raised: BaseException | None = None
        self.changes = {key: self._heard(change) for key, change in changes.items()}

    def _heard(self, change: Change) -> Change:
        def heard(value: np.ndarray) -> np.ndarray:
            try:
                return change(value)
            except BaseException as error:
                self.raised = error
                raise

        return heard


def used_by(value: Any, tensors: Sequence[Any]) -> tuple[int, ...]:
    """The places of those of the tensors that a value was computed of."""
    if not is_tensor(value):
        return ()
    places: dict[Any, list[int]] = {}
    found = {number for number, one in enumerate(tensors) if one is value}
    for number, one in enumerate(tensors):
        if one.requires_grad:
            at = (one.grad_fn, one.output_nr) if one.grad_fn is not None else id(one)
            places.setdefault(at, []).append(number)
    waiting = [] if value.grad_fn is None else [(value.grad_fn, value.output_nr)]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        leaf = getattr(node[0], "variable", None)
        known = places.get(id(leaf) if leaf is not None else node)
        found.update(known or ())
        if known is None:
            below = [one for one in node[0].next_functions if one[0] is not None and one not in seen]
            seen.update(below)
            waiting += below
    return tuple(sorted(found))
