"""Keeps traces of models, and runs one in a model's place where it gives what the model gives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from typing import Any, Final

import torch
from torch.nn.modules import module as modules_of_torch
from torch.nn.utils import parametrize
from torch.overrides import BaseTorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from embgrad.backend import NativeObjective, Request, Run
from embgrad.batch import TokenBatch
from embgrad.bounded import Bounded
from embgrad.calling import as_parts
from embgrad.identity import CHANGING, UntoldError, asked_of, code_of
from embgrad.locks import held
from embgrad.refusals import OBJECTIVES, Refusals
from embgrad.replaying import Recorder, ReplayError, Tries, agreeing
from embgrad.structures import PLAIN
from embgrad.traces import Traces, UnsettledError
from embgrad_torch import inputs
from embgrad_torch.drawing import DrawnAgain
from embgrad_torch.inputs import Plan, dtype_name
from embgrad_torch.program import FailedError, programmed
from embgrad_torch.rerun import (
    Differentiating,
    DifferentiatingError,
    OtherUseError,
    StaleError,
    Trace,
    run_trace,
    used_by,
)
from embgrad_torch.returned import UnknownError, tensors_in
from embgrad_torch.standins import UntraceableError
from embgrad_torch.structure import Structure, structure
from embgrad_torch.tracing import PassingError, exported

__all__ = ["run_kept"]

#: How many traces are kept of one way of asking, where one does not serve for all lengths.
LENGTHS: Final = 8

#: How many shapes are remembered of one way of asking, each with the trace that serves.
SHAPES: Final = 256

#: How often a trace is tried where another thread may be the reason that there is none.
PASSING: Final = 4

#: After how many ways of asking in a row, each with a trace that no later call has used, none is made at once.
PATIENCE: Final = 16

_forms: Traces[_Form] = Traces(patience=PATIENCE)

#: Runs a request without a trace.
Plain = Callable[[Request], Run]


class _Form:
    """The traces of one way of asking.

    Attributes:
        refusals: why there can be none.
        passed: how often none was made for a reason that may have been another thread's.
        traces: by number.
        serving: by the shapes of the call's tensors and what a native objective uses, the number of the trace that serves.
        used: by the code of native objectives what they used last.
    """

    def __init__(self) -> None:
        self.refusals = Refusals()
        self.passed = 0
        self.traces: list[tuple[tuple[int, ...], Trace]] = []
        self.serving: Bounded[Trace] = Bounded(SHAPES)
        self.used: Bounded[tuple[int, ...]] = Bounded(OBJECTIVES)


def run_kept(model: Any, batch: TokenBatch, request: Request, plain: Plain) -> Run:
    """Run a trace of the model, if there is one or can be one; else the model.

    A trace is made at the first call, so that each call gives the same bits. Whenever one is new, the model is run too, and
    what they give is compared.

    Args:
        model: as in `run`; so are `batch` and `request`.
        plain: runs it without a trace.
    """
    parts = as_parts(model)
    known = structure(parts)
    try:
        with held(known.locks):  # another thread's pass may have hooks on it
            _expect_traceable(known, request)
        planned = inputs.planned(model, batch, request.call, inputs.device_of(known.modules))
        form = _forms.get(parts, _key(known, planned, request), _Form)
    except (UntraceableError, UntoldError, UnsettledError) as error:
        return replace(plain(request), uncompiled=str(error))
    except TypeError:
        return replace(plain(request), uncompiled="a part of the model cannot be referred to weakly")
    return _Keeper(form, known, batch, request, planned, plain).run()


def _expect_traceable(known: Structure, request: Request) -> None:
    """Refuse what a graph of forward passes does not hold.

    Raises:
        UntraceableError: it is there.
    """
    if request.parameters or request.tables:
        raise UntraceableError("a trace has no gradients of weights")
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        raise UntraceableError("torch.autocast is in force")
    if parametrize._cache_enabled:  # what it keeps would be a trace's own, whatever becomes of the weights
        raise UntraceableError("torch.nn.utils.parametrize.cached is in force, which keeps what was made of weights")
    if any(not _is_known(one) for one in (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack())):
        raise UntraceableError("a mode that watches PyTorch's functions is in force")
    if any(getattr(modules_of_torch, name) for name in _GLOBAL_HOOKS if hasattr(modules_of_torch, name)):
        raise UntraceableError("hooks are registered for all modules, which a trace does not run")
    for path, module in known.walked:
        if isinstance(module, torch.jit.ScriptModule):
            raise UntraceableError(f"{path or type(module).__name__} is a TorchScript module")
        backward = *module._backward_hooks, *module._backward_pre_hooks
        if not (module._forward_hooks or module._forward_pre_hooks or backward):
            continue
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values(), *backward):
            if not type(hook).__module__.startswith("torch.nn.utils."):
                raise UntraceableError(f"{path or type(module).__name__} has a hook, which a trace does not run")


def _is_known(mode: Any) -> bool:
    """Whether a mode is embgrad's own, or says no more than the device of new tensors, which is a setting."""
    kind = type(mode)
    return kind in (BaseTorchFunctionMode, DeviceContext) or kind.__module__.split(".")[0] == __package__


#: Where hooks for all modules are kept.
_GLOBAL_HOOKS: Final = (
    *("_global_forward_hooks", "_global_forward_pre_hooks"),
    *("_global_backward_hooks", "_global_backward_pre_hooks"),
)


class _Keeper:
    """One call, in one form."""

    def __init__(
        self, form: _Form, known: Structure, batch: TokenBatch, request: Request, planned: Plan, plain: Plain
    ) -> None:
        self._form = form
        self._known = known
        self._batch = batch
        self._request = request
        self._tries = Tries(request)
        self._planned = planned
        self._plain = plain
        self._shapes = tuple(tuple(one.shape) for one in planned.leaves)
        native = request.respond.function if isinstance(request.respond, NativeObjective) else None
        self._code = code_of(native)
        self._drawn = DrawnAgain()
        self._differentiates: str | None = None

    def run(self) -> Run:
        """What a trace gives, or the model."""
        why = self._form.refusals.why(self._request)
        if why is not None:
            return self._without(why)
        why = ""
        for _ in range(2):
            trace = self._serving(self._form.used.get(self._code, ()))
            if trace is None:
                return self._first()
            try:
                return self._run(trace, self._tries.next())
            except OtherUseError as error:
                self._form.used.put(self._code, error.used)
                why = str(error)
            except StaleError:
                self._form.traces.clear()
                self._form.serving.clear()
            except (FailedError, DifferentiatingError) as error:
                return self._without(str(error))
        return self._without(why)  # the objective depends on others each time

    def _run(self, trace: Trace, request: Request) -> Run:
        return run_trace(trace, self._known, self._planned, self._batch, request)

    def _serving(self, used: tuple[int, ...]) -> Trace | None:
        """The trace that serves for this call."""
        found = self._form.serving.get((self._shapes, used), None)
        if found is not None:
            return found
        found = next(
            (
                one
                for uses, one in reversed(self._form.traces)
                if uses == used and one.program.sizes.serve(self._shapes)
            ),
            None,
        )
        if found is not None:
            self._serve(used, found)
        return found

    def _serve(self, used: tuple[int, ...], trace: Trace) -> None:
        self._form.serving.put((self._shapes, used), trace)

    def _first(self) -> Run:
        """What a trace gives, checked by what the model gives; or that."""
        if len(self._form.traces) >= LENGTHS:
            return self._without(f"its lengths take a trace each, and {LENGTHS} are kept")
        recorder, asked = Recorder(self._tries.next(), self._watching), asked_of(self._request)
        found = self._plain(recorder.recording())
        if asked_of(self._request) != asked:
            return self._as_asked(found, CHANGING)
        if self._differentiates is not None:
            return self._as_asked(found, self._differentiates)
        try:
            trace = Trace(programmed(exported(self._known, self._batch, self._request, self._planned, recorder.used)))
            given = self._run(trace, self._drawing_again(recorder.replaying()))
            apart = recorder.apart(found, given, agreeing(_dtypes(trace, found)))
            if apart is not None:  # by itself, or the objective gave something else
                return self._never(found, apart, self._request)
        except (OtherUseError, DifferentiatingError) as error:  # another objective may have a trace
            return self._as_asked(found, str(error))
        except (UntraceableError, FailedError, ReplayError, StaleError) as error:
            self._form.passed += isinstance(error, PassingError)
            if isinstance(error, PassingError) and self._form.passed < PASSING:
                return self._as_asked(found, str(error))
            return self._never(found, str(error))
        self._form.traces.append((recorder.used, trace))
        self._form.used.put(self._code, recorder.used)
        self._serve(recorder.used, trace)
        return given

    def _drawing_again(self, request: Request) -> Request:
        """The request with a native objective that draws what it drew in the run before."""
        if not isinstance(request.respond, NativeObjective):
            return request
        return replace(request, respond=replace(request.respond, function=self._drawn.again(request.respond.function)))

    def _never(self, found: Run, why: str, request: Request | None = None) -> Run:
        """What the model gave, of which there can be no trace, or none for a function given as the request's objective."""
        self._form.refusals.add(why, request)
        if self._form.refusals.of_all is not None:
            self._form.traces.clear()
            self._form.serving.clear()
        return self._as_asked(found, why)

    def _watching(
        self, function: Callable[[Any], Any], tell: Callable[[tuple[int, ...]], None]
    ) -> Callable[[Any], Any]:
        """The function of a native objective, which tells what of what the model returned its value depends on."""

        def watched(returned: Any) -> Any:
            try:
                tensors = tensors_in(returned)  # which the function may take out of it
            except UnknownError:  # which following the model says again
                return function(returned)
            with Differentiating(tensors) as mode:
                value = self._drawn.first(function)(returned)
            self._differentiates = mode.why
            tell(used_by(value, tensors))
            return value

        return watched

    def _without(self, why: str) -> Run:
        return self._as_asked(self._plain(self._tries.next()), why)

    def _as_asked(self, found: Run, why: str) -> Run:
        return replace(found, uncompiled=why)


def _dtypes(trace: Trace, found: Run) -> Iterator[str]:
    """Those of the weights, of what the trace computes, and of what was computed."""
    yield from (dtype_name(dtype) for _, dtype in trace.program.shapes)
    yield from map(dtype_name, trace.program.dtypes)
    yield found.compute_dtype


def _key(known: Structure, planned: Plan, request: Request) -> Hashable:
    """All that a trace depends on, beside shapes and values."""
    leaves, form = pytree.tree_flatten(planned.arguments)
    return (
        tuple(known.paths),
        tuple(map(type, known.modules)),
        known.look().arrangement,  # a trace takes what two modules share once: they may come to hold one each
        tuple(one.training for one in known.modules) if request.training else None,
        tuple(map(_described, leaves)),
        repr(form),
        planned.unused,
        asked_of(request),
        *_settings(),
    )


def _settings() -> Iterator[Any]:
    """The settings of PyTorch's that a graph, or what is compiled of it, depends on."""
    yield torch.get_default_dtype()
    yield torch.get_default_device()
    yield torch.are_deterministic_algorithms_enabled()
    yield torch.get_float32_matmul_precision()
    backends = torch.backends.cuda
    yield (backends.flash_sdp_enabled(), backends.mem_efficient_sdp_enabled(), backends.math_sdp_enabled())


def _described(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.dim(), value.device)
    if isinstance(value, PLAIN):
        return (type(value), value)
    raise UntraceableError(f"the model is given a {type(value).__qualname__}, which is neither a tensor nor plain")
