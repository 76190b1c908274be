"""Listens to the user's own training loop: forward passes by hooks on modules, backward passes by hooks on tensors."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from embgrad.backend import Listener, Point
from embgrad.backend.arguments import integer_arguments, named_arguments
from embgrad.backend.patching import Interception
from embgrad.backend.signature import NAMES
from embgrad.common.pytree import every
from embgrad.errors import UnsupportedError
from embgrad.forward.recorder import PassRecorder
from embgrad.inputs.batch import TokenBatch
from embgrad_torch.checkpoints import segments_watched
from embgrad_torch.inputs import has_values, is_transformed, parameters, to_numpy
from embgrad_torch.lookup import LookupMode
from embgrad_torch.modules import ModuleWatch, hooked
from embgrad_torch.run import points
from embgrad_torch.state import is_running
from embgrad_torch.tap import Listening, expect_uncompiled, is_floating
from embgrad_torch.walk import TablePaths, is_compiled_wrapper, spelled, walk

__all__ = ["capture"]

#: What every call of a compiled function asks before it runs.
_compiled = Interception(lambda: sys.modules["torch._dynamo.eval_frame"], "_callback_from_stance")


@contextlib.contextmanager
def capture(model: Any, listener: Listener) -> Iterator[None]:
    """While it is open, the user's own passes through the model in this thread are told to the listener.

    Raises:
        UnsupportedError: the model's calls cannot be listened to.
    """
    _expect_audible(model)
    with contextlib.ExitStack() as stack:
        one = _Capture(model, listener, stack)
        stack.callback(one.close)
        stack.enter_context(hooked(model, one.begin, one.end))
        stack.enter_context(one.beside)
        stack.enter_context(segments_watched())
        compiled = stack.enter_context(compiled_calls())
        yield
        if compiled.ran and not one.heard and not one.called_beside:
            raise UnsupportedError(
                f"{type(model).__name__} was not called while the capture was open, but what torch.compile has made was: code "
                "that was compiled before runs nothing of a capture. Expected the model to be called by the plain function while "
                "you capture; embgrad.gradients takes compiled models as they are"
            )


class _Passing:
    """One forward pass of the user's. What its graph holds keeps it alive, and nothing else: it is part of no cycle.

    Attributes:
        watch: takes it down.
        at: its points.
        modules: the calls of its modules.
        token: what stands for it with the listener.
    """

    def __init__(self, watch: PassRecorder, at: Listening) -> None:
        self.watch = watch
        self.at = at
        self.at.passing = weakref.ref(self)
        self.modules = ModuleWatch(watch, at, lambda: True, lambda: at.over)
        self.token: Any = None


class _Open:
    """The forward pass that runs now.

    Attributes:
        passing: the pass.
        mode: sees its lookups.
        handled: the exception that was being handled when it began.
    """

    def __init__(self, passing: _Passing, mode: TorchFunctionMode) -> None:
        self.passing = passing
        self.mode = mode
        self.handled = sys.exc_info()[1]


class _Capture:
    """One open capture.

    Attributes:
        heard: how often the model has been called.
        beside: holds hooks on the model's modules until the model itself is called.
        called_beside: whether one of them was called, with gradients.
    """

    def __init__(self, model: Any, listener: Listener, stack: contextlib.ExitStack) -> None:
        self.heard = 0
        self.beside = contextlib.ExitStack()
        self.called_beside = False
        self._model = model
        self._listener = listener
        self._stack = stack
        self._thread = threading.get_ident()
        self._closed = False
        self._open: _Open | None = None
        self._unbound = False
        self._hooked: set[int] = set()
        self._again: list[tuple[Any, _Passing | None]] = []
        self._alive: weakref.WeakSet[_Passing] = weakref.WeakSet()
        self._task: int | None = None
        self._gradients: list[tuple[Any, str, np.ndarray]] = []
        for path, module in walk([model]):
            if module is not model:
                self.beside.enter_context(
                    hooked(module, functools.partial(self._called_beside, spelled(path)), _nothing)
                )

    def _called_beside(self, path: str, module: Any, args: Any, kwargs: Any) -> None:
        """Tell the listener of a module that is called with gradients, where the model itself was not called."""
        if not torch.compiler.is_compiling() and torch.is_grad_enabled() and self._is_heard():
            self.called_beside = True
            self._listener.outside(path)

    # The model's own calls

    def begin(self, model: Any, args: Any, kwargs: Any) -> None:
        """A call of the model begins."""
        if model is not self._model or not self._is_heard():
            return
        self.heard += 1
        self.beside.close()
        expect_uncompiled()
        expect_untransformed()
        self._abandon()
        bound = named_arguments(parameters(model), args, kwargs)
        self._unbound = bound is None
        if bound is None:  # the call itself will say what is wrong with it
            return
        if torch._C._current_graph_task_id() == -1:
            self._task = None  # a backward pass that began to be told broke off
            self._gradients.clear()
        watch = self._listener.begin(
            integer_arguments(bound, _whole), lambda batch: _discovered(model, args, kwargs, batch)
        )
        passing = _Passing(watch, Listening(self.came))
        walked = walk([model])
        self._listen_to(passing.modules.of(walked, {}))
        self._open = _Open(passing, LookupMode(watch, passing.at, TablePaths(walked)))
        if not watch.modules:  # else no lookup is asked for
            self._open.mode.__enter__()

    def end(self, model: Any, returned: Any) -> None:
        """A call of the model ends."""
        if model is not self._model or not self._is_heard():
            return
        one = self._open
        if one is None:
            self._expect_failed(model)
            return
        self._abandon()
        if sys.exc_info()[1] is not one.handled:  # it raised
            return
        passing = one.passing
        passing.at.over = True
        passing.at.expect_unwritten()
        passing.token = self._listener.end(passing.watch, passing.at.values, passing.at.dtype)
        passing.at.values = {}
        self._alive.add(passing)
        if passing.at.awaited:
            self._hold(passing, returned)

    def _expect_failed(self, model: Any) -> None:
        """Refuse a call that ends though another one has begun and ended inside of it."""
        if not self._unbound and sys.exc_info()[1] is None:
            raise UnsupportedError(
                f"{type(model).__name__} calls itself while you capture, so that a step cannot be told from a part of one: move "
                "what it calls into a module of its own, or capture that call by another module"
            )

    def _is_heard(self) -> bool:
        return threading.get_ident() == self._thread and not is_running()

    def _abandon(self) -> None:
        """Close what is open: it ended, or it broke off by an exception of which hooks do not hear, such as an interrupt."""
        if self._open is not None:
            _take_off(self._open.mode)
            self._open = None

    def _hold(self, passing: _Passing, returned: Any) -> None:
        """The graph behind what the model returned keeps the pass alive, and tells when a backward pass comes to it."""
        reached = [tensor for tensor in every(returned, is_floating) if tensor.requires_grad]
        if not reached:
            raise UnsupportedError(
                f"the points {sorted(passing.at.awaited)} lie in a gradient checkpoint with use_reentrant=True, and the model "
                "returned no tensor whose gradient would tell of the backward pass: expected use_reentrant=False"
            )
        for tensor in reached:
            tensor.register_hook(lambda grad, passing=passing: self._queue())

    # The calls of its modules

    def _listen_to(self, modules: Sequence[Any]) -> None:
        """The hooks stay while the capture is open: a checkpointed segment runs again in the backward pass."""
        for module in modules:
            if id(module) not in self._hooked:
                self._hooked.add(id(module))
                self._stack.enter_context(hooked(module, self._before, self._after))

    def _before(self, module: Any, args: Any, kwargs: Any) -> Any:
        if self._open is not None and self._is_heard():
            expect_uncompiled()
            return self._open.passing.modules.before(module, args, kwargs)
        if not self._is_again():
            return None
        fitting = [one for one in self._alive if one.modules.made(module, args, kwargs)]
        if len(fitting) > 1 and any(one.at.awaited for one in fitting):
            raise UnsupportedError(
                f"a gradient checkpoint with use_reentrant=True runs {type(module).__name__} again, and {len(fitting)} forward "
                "passes gave it the same values, so that its gradient cannot be told among them: expected use_reentrant=False"
            )
        passing = fitting[0] if fitting else None
        self._again.append((module, passing))
        return None if passing is None else passing.modules.before(module, args, kwargs)

    def _after(self, module: Any, returned: Any) -> Any:
        if self._open is not None and self._is_heard():
            return self._open.passing.modules.after(module, returned)
        if not self._is_again():
            return None
        while self._again and self._again[-1][0] is not module:
            self._again.pop()
        _, passing = self._again.pop() if self._again else (None, None)
        return None if passing is None else passing.modules.after(module, returned)

    def _is_again(self) -> bool:
        """Return whether a backward pass makes the call: a checkpointed segment that runs again, maybe in the engine's thread."""
        return not self._closed and torch._C._current_graph_task_id() != -1 and not is_running()

    # The backward passes

    def came(self, passing: _Passing, key: str, grad: Any, again: bool) -> None:
        """A gradient came to a point."""
        if self._closed or passing.token is None or grad is None:
            return
        if not again or self._task is None:  # a reentrant segment has a backward pass of its own, inside the user's
            self._queue()
        self._gradients.append((passing.token, key, to_numpy(grad)))

    def _queue(self) -> None:
        """At the end of this backward pass the listener hears of it."""
        task = torch._C._current_graph_task_id()
        if self._closed or self._task == task:
            return
        self._task = task
        self._gradients = []  # of a backward pass that broke off
        torch.autograd.Variable._execution_engine.queue_callback(self._step)

    def _step(self) -> None:
        gradients, self._gradients, self._task = self._gradients, [], None
        if gradients and not self._closed:
            self._listener.step(gradients)

    def close(self) -> None:
        """Nothing is heard any more; graphs that are left may have our hooks, which then do nothing."""
        self._closed = True
        self._abandon()


def expect_untransformed() -> None:
    """Refuse to listen inside a transform of torch.func, whose tensors have no values."""
    if is_transformed():
        raise UnsupportedError(
            "the model is called inside torch.func.grad, torch.vmap or another transform of torch.func, where tensors have no "
            "values that could be kept: expected loss.backward() or torch.autograd.grad in the loop that you capture, or the "
            "transform outside of the capture"
        )


@dataclass
class Calls:
    """The record of whether compiled code was called."""

    ran: bool = False


@contextlib.contextmanager
def compiled_calls() -> Iterator[Calls]:
    """Record whether this thread calls code that `torch.compile` has made, in which no hook of embgrad runs."""
    found = Calls()

    def tell(original: Callable[..., Any], *given: Any) -> Any:
        found.ran = True
        return original(*given)

    loaded = hasattr(sys.modules.get("torch._dynamo.eval_frame"), "_callback_from_stance")
    with _compiled.by(tell) if loaded else contextlib.nullcontext():
        yield found


def _nothing(module: Any, returned: Any) -> None:
    """Leave what a module returned as it is."""


def _take_off(mode: TorchFunctionMode) -> None:
    """The mode leaves the stack, wherever in it it is: another capture's may lie above."""
    above = []
    if any(one is mode for one in _get_current_function_mode_stack()):
        while (top := _pop_mode()) is not mode:
            above.append(top)
        for one in reversed(above):
            _push_mode(one)


def _whole(name: str, value: Any) -> np.ndarray | None:
    """Return an argument's numbers where they are whole; masks may be truth values."""
    return to_numpy(value) if isinstance(value, torch.Tensor) and _is_whole(name, value) else None


def _is_whole(name: str, tensor: Any) -> bool:
    if tensor.layout is not torch.strided or not has_values(tensor):
        return False
    whole = not tensor.is_floating_point() and not tensor.is_complex() and not tensor.is_quantized
    return whole and (tensor.dtype is not torch.bool or name in NAMES["mask"])


def _discovered(model: Any, args: Any, kwargs: Any, batch: TokenBatch) -> Sequence[Point]:
    """The points that the same call reaches, made once without a trace; what is saved for a graph is saved for none other."""
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        return points(model, batch, lambda *_: model.forward(*args, **kwargs))


def _expect_audible(model: Any) -> None:
    for path, module in walk([model]):
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedError(
                f"{spelled(path) or type(module).__name__!r} is a TorchScript module, whose calls cannot be listened to: give "
                "the torch.nn.Module that it was made from"
            )
        if is_compiled_wrapper(module) or getattr(module, "_compiled_call_impl", None) or _is_compiled(module):
            raise UnsupportedError(
                f"{spelled(path) or type(module).__name__!r} is compiled by torch.compile, and what runs inside compiled code "
                "cannot be listened to: train the plain model (the one you gave to torch.compile, model._orig_mod) while you "
                "capture; embgrad.gradients takes compiled models as they are"
            )
        if isinstance(module, torch.nn.DataParallel) and len(module.device_ids) > 1:
            raise UnsupportedError(
                f"the model is replicated on {len(module.device_ids)} devices by DataParallel, and its replicas run in other "
                "threads: expected one device; capture model.module"
            )


def _is_compiled(module: Any) -> bool:
    """Return whether the module's own `forward`, or a function that it holds, was given to `torch.compile`."""
    functions = [type(module).forward, *(value for value in vars(module).values() if callable(value))]
    return any(hasattr(one, "_torchdynamo_orig_callable") for one in functions if not isinstance(one, torch.nn.Module))
