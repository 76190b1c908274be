"""Capture or perturb the user's passes: forward passes by hooks on modules, backward passes by hooks on tensors."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from embgrad.backend import (
    Call,
    Listener,
    PassListener,
    PassRecorder,
    Perturber,
    Reached,
    Request,
    Run,
    TokenBatch,
    additions,
)
from embgrad.errors import UnsupportedError
from embgrad.keras import evaluating, is_keras
from embgrad.toolkit import NAMES, Interception, coarsest, integer_arguments, named_arguments
from embgrad_torch.checkpoints import segments_recorded, without_reentrance
from embgrad_torch.inputs import has_values, is_transformed, parameters, to_numpy
from embgrad_torch.lookup import LookupMode
from embgrad_torch.modules import ModuleWatch, hook
from embgrad_torch.run import points, run
from embgrad_torch.state import is_running
from embgrad_torch.tap import CapturedPoints, PerturbedPoints, expect_uncompiled
from embgrad_torch.walk import TablePaths, is_compiled_wrapper, spell, walk

__all__ = ["capture", "perturb"]

#: The function that every call of a compiled function runs first.
_compiled = Interception(lambda: sys.modules["torch._dynamo.eval_frame"], "_callback_from_stance")


def capture(model: Any, listener: Listener) -> AbstractContextManager[None]:
    """Report the user's own passes through the model in this thread to the listener while the context is open.

    Raises:
        UnsupportedError: the model's calls cannot be captured.
    """
    return _listening(model, lambda stack: _Capture(model, listener, stack, listener.step))


def perturb(model: Any, perturber: Perturber) -> AbstractContextManager[None]:
    """Add what the perturber returns to values in the user's own passes in this thread while the context is open.

    Raises:
        UnsupportedError: the model's calls cannot be perturbed.
    """
    return _listening(model, lambda stack: _Perturbation(model, perturber, stack))


@contextlib.contextmanager
def _listening(model: Any, make: Callable[[contextlib.ExitStack], _Capture]) -> Iterator[None]:
    _expect_hookable(model)
    with contextlib.ExitStack() as stack:
        current = make(stack)
        stack.callback(current.close)
        stack.enter_context(hook(model, current.begin, current.end))
        stack.enter_context(current.child_hooks)
        stack.enter_context(segments_recorded())
        compiled = stack.enter_context(compiled_calls())
        yield
        if compiled.ran and not current.calls and not current.child_called:
            raise UnsupportedError(
                f"{type(model).__name__} was not called inside the `with` block, but code that torch.compile compiled before "
                "was, which runs no hooks. Call the uncompiled function there, or use embgrad.gradients, which takes compiled "
                "models"
            )


class _Open(NamedTuple):
    """The forward pass that runs now.

    Attributes:
        handled: the exception that was being handled when it began.
        segments: makes reentrant segments non-reentrant where points may lie inside them.
    """

    points: CapturedPoints
    watch: PassRecorder
    modules: ModuleWatch
    mode: TorchFunctionMode
    handled: BaseException | None
    segments: contextlib.ExitStack


#: Takes the gradients of a backward pass, see `Listener.step`.
Step = Callable[[Sequence[tuple[Any, str, np.ndarray]]], None]


class _Capture:
    """One open capture.

    Attributes:
        child_hooks: holds hooks on the model's children until the model itself is called.
        child_called: whether a child was called, with gradients.
        first: whether values are replaced before others see them.
        segments: returns a context for the segments of a pass with points at modules.
    """

    first = False
    segments = staticmethod(without_reentrance)

    def __init__(
        self, model: Any, listener: PassListener, stack: contextlib.ExitStack, step: Step = lambda gradients: None
    ) -> None:
        self.calls = 0
        self.child_hooks = contextlib.ExitStack()
        self.child_called = False
        self._model = model
        self._listener = listener
        self._report_step = step
        self._stack = stack
        self._thread = threading.get_ident()
        self._closed = False
        self._open: _Open | None = None
        self._hooked: set[int] = set()
        self._task: int | None = None
        self._gradients: list[tuple[Any, str, np.ndarray]] = []
        for path, module in walk([model]):
            if module is not model:
                report = functools.partial(self._report_child, spell(path))
                self.child_hooks.enter_context(hook(module, report, lambda module, returned: None))

    def _report_child(self, path: str, module: Any, args: Any, kwargs: Any) -> None:
        """Report a child that is called with gradients before the model itself is called."""
        if not torch.compiler.is_compiling() and torch.is_grad_enabled() and self._is_captured():
            self.child_called = True
            self._listener.outside(path)

    # The model's own calls

    def begin(self, model: Any, args: Any, kwargs: Any) -> None:
        """Begin a pass, at a call of the model."""
        if model is not self._model or not self._is_captured():
            return
        self.calls += 1
        self.child_hooks.close()
        expect_uncompiled()
        expect_untransformed()
        self._close_open()
        bound = named_arguments(parameters(model), args, kwargs)
        names = [spec.name for spec in getattr(model, "inputs", None) or ()] if is_keras(model) else []
        self._unbound = bound is None
        if bound is None:  # the call itself will raise
            return
        if torch._C._current_graph_task_id() == -1:
            self._task = None  # a backward pass that was being recorded raised
            self._gradients.clear()
        watch = self._listener.begin(
            integer_arguments(bound, _whole_numbers, names), lambda batch: _discover(model, args, kwargs, batch)
        )
        points, walked = self._points_of(watch), walk([model])
        modules = ModuleWatch(watch, points, lambda: True)
        self._hook(modules.select(walked, {}))
        mode = LookupMode(watch, points, TablePaths(walked))
        self._open = _Open(points, watch, modules, mode, sys.exc_info()[1], contextlib.ExitStack())
        if watch.needs_modules:
            self._open.segments.enter_context(self.segments())
        if watch.needs_lookups:
            self._enter(self._open.mode)

    def end(self, model: Any, returned: Any) -> None:
        """End the pass, at the end of a call of the model."""
        if model is not self._model or not self._is_captured():
            return
        current = self._open
        if current is None:
            self._expect_failed(model)
            return
        points = current.points
        raised = sys.exc_info()[1] is not current.handled
        try:
            if not raised:
                points.expect_unwritten()
        finally:
            self._close_open()
        if raised:
            return
        dtype = coarsest([points.dtype, *current.mode.halves])
        points.token = self._listener.end(current.watch, points.values, dtype)
        points.values = {}

    def _expect_failed(self, model: Any) -> None:
        """Refuse a call that ends after another one has begun and ended inside it, unless it raised."""
        if sys.exc_info()[1] is None and not self._unbound:
            raise UnsupportedError(
                f"{type(model).__name__} calls itself while you capture or perturb it, so that a pass cannot be told from a part "
                "of one. Move what it calls into another module, and name that module instead"
            )

    def _points_of(self, watch: PassRecorder) -> CapturedPoints:
        return CapturedPoints(self.receive)

    def _enter(self, mode: TorchFunctionMode) -> None:
        mode.__enter__()

    def _is_captured(self) -> bool:
        return threading.get_ident() == self._thread and not is_running()

    def _close_open(self) -> None:
        """Close the open pass: it ended, or an exception ended it without calling hooks, such as KeyboardInterrupt."""
        if self._open is not None:
            _exit_mode(self._open.mode)
            self._open.segments.close()
            self._open.points.forget()
            self._open = None

    # The calls of its modules

    def _hook(self, modules: Sequence[Any]) -> None:
        """Hook modules until the capture ends."""
        for module in modules:
            if id(module) not in self._hooked:
                self._hooked.add(id(module))
                self._stack.enter_context(hook(module, self._before, self._after, first=self.first))

    def _before(self, module: Any, args: Any, kwargs: Any) -> Any:
        if self._open is None or not self._is_captured():  # also where a checkpointed segment runs again
            return None
        expect_uncompiled()
        return self._open.modules.before(module, args, kwargs)

    def _after(self, module: Any, returned: Any) -> Any:
        if self._open is None or not self._is_captured():
            return None
        return self._open.modules.after(module, returned)

    # The backward passes

    def receive(self, points: CapturedPoints, key: str, grad: Any) -> None:
        """Record the gradient that arrived at a point."""
        if self._closed or points.token is None or grad is None:
            return
        self._queue()
        self._gradients.append((points.token, key, to_numpy(grad)))

    def _queue(self) -> None:
        """Report the gradients to the listener at the end of this backward pass."""
        task = torch._C._current_graph_task_id()
        if self._closed or self._task == task:
            return
        self._task = task
        self._gradients = []  # discards those of a backward pass that raised
        torch.autograd.Variable._execution_engine.queue_callback(self._step)

    def _step(self) -> None:
        gradients, self._gradients, self._task = self._gradients, [], None
        if gradients and not self._closed:
            self._report_step(gradients)

    def close(self) -> None:
        """End the capture; hooks that remain on graphs do nothing from now on."""
        self._closed = True
        self._close_open()


class _Perturbation(_Capture):
    """One open perturbation: what captures see at a point is what goes on, so that its modes and hooks come before theirs."""

    first = True
    segments = staticmethod(contextlib.nullcontext)

    def __init__(self, model: Any, perturber: Perturber, stack: contextlib.ExitStack) -> None:
        super().__init__(model, perturber, stack)
        self._perturber = perturber

    def _points_of(self, watch: PassRecorder) -> CapturedPoints:
        return PerturbedPoints(additions(self._perturber, watch))

    def _enter(self, mode: TorchFunctionMode) -> None:
        above = []
        while any(isinstance(active, LookupMode) for active in _get_current_function_mode_stack()):
            above.append(_pop_mode())
        _push_mode(mode)
        for other in reversed(above):
            _push_mode(other)


def expect_untransformed() -> None:
    """Refuse to capture inside a transform of torch.func, whose tensors have no values."""
    if is_transformed():
        raise UnsupportedError(
            "the model is called inside torch.func.grad, torch.vmap or another transform of torch.func, where the values of "
            "tensors cannot be read. Use loss.backward() or torch.autograd.grad in the loop that you capture or perturb, or the "
            "transform outside of it"
        )


@dataclass
class Calls:
    """The record of whether compiled code was called."""

    ran: bool = False


@contextlib.contextmanager
def compiled_calls() -> Iterator[Calls]:
    """Record whether this thread calls code that `torch.compile` has compiled, in which no hook of embgrad runs."""
    calls = Calls()

    def record(original: Callable[..., Any], *args: Any) -> Any:
        calls.ran = True
        return original(*args)

    loaded = hasattr(sys.modules.get("torch._dynamo.eval_frame"), "_callback_from_stance")
    with _compiled.by(record) if loaded else contextlib.nullcontext():
        yield calls


def _exit_mode(mode: TorchFunctionMode) -> None:
    """Remove the mode from the stack, also from under another capture's mode."""
    above = []
    if any(active is mode for active in _get_current_function_mode_stack()):
        while (top := _pop_mode()) is not mode:
            above.append(top)
        for other in reversed(above):
            _push_mode(other)


def _whole_numbers(name: str, value: Any) -> np.ndarray | None:
    """Return the values of an argument of whole numbers, or None; masks may be booleans."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or not has_values(value):
        return None
    if value.is_floating_point() or value.is_complex() or value.is_quantized:
        return None
    return to_numpy(value) if value.dtype is not torch.bool or name in NAMES["mask"] else None


def _discover(model: Any, args: Any, kwargs: Any, batch: TokenBatch) -> Reached:
    """Return the points that the same call reaches, in a pass of embgrad's; hooks of the user on saved tensors are not called."""

    @contextlib.contextmanager
    def prepare() -> Iterator[Call]:
        mode = evaluating(model, kwargs) if is_keras(model) else contextlib.nullcontext(kwargs)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor), mode as by_name:
            yield lambda *_: model.forward(*args, **by_name)

    def again(request: Request) -> Run:
        with prepare() as call:
            return run(model, batch, replace(request, call=call))

    with prepare() as call:
        return points(model, batch, call).repeat_by(again, (args, kwargs))


def _expect_hookable(model: Any) -> None:
    """Refuse a model whose calls run no hooks, or run in other threads."""
    for path, module in walk([model]):
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedError(
                f"{spell(path) or type(module).__name__!r} is a TorchScript module, whose calls cannot be captured or "
                "perturbed. Use the torch.nn.Module that it was made from"
            )
        if is_compiled_wrapper(module) or getattr(module, "_compiled_call_impl", None) or _is_compiled(module):
            raise UnsupportedError(
                f"{spell(path) or type(module).__name__!r} is compiled by torch.compile, and compiled code cannot be captured "
                "or perturbed. Train the model that you gave to torch.compile (model._orig_mod) meanwhile, or use "
                "embgrad.gradients, which takes compiled models"
            )
        if isinstance(module, torch.nn.DataParallel) and len(module.device_ids) > 1:
            raise UnsupportedError(
                f"the model is replicated on {len(module.device_ids)} devices by DataParallel, and its replicas run in other "
                "threads. Use one device, or name model.module instead"
            )


def _is_compiled(module: Any) -> bool:
    """Return whether the `forward` of the module's class, or a function among its attributes, is compiled."""
    functions = [type(module).forward, *(value for value in vars(module).values() if callable(value))]
    return any(
        hasattr(function, "_torchdynamo_orig_callable")
        for function in functions
        if not isinstance(function, torch.nn.Module)
    )
