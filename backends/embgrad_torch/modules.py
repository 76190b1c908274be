"""Record the calls of modules by hooks that are registered for one pass, and replace tensors at the points."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from embgrad.backend.keras_layers import declared_order, with_mask
from embgrad.common.pytree import every, first, with_first
from embgrad.forward.points import INPUT, OUTPUT
from embgrad.forward.recorder import PassRecorder
from embgrad_torch.checkpoints import Recorded, repeated_key
from embgrad_torch.inputs import is_floating
from embgrad_torch.tap import PointHandler
from embgrad_torch.walk import held_parameters, is_compiled_wrapper, spelled

__all__ = ["ModuleWatch", "hooked"]


@dataclass
class _ModuleCall:
    """A call of a module in the forward pass.

    Attributes:
        path: the module's path.
        argument: the first floating tensor among its arguments, off the graph.
        version: the version of that tensor's memory at the call.
        traced: see `Recorded`.
        keys: by side, the keys of the points; None where a point is not requested.
    """

    path: str
    argument: Any
    version: int
    traced: bool
    keys: dict[str, str | None]


class ModuleWatch:
    """The hooks that record calls of modules, and replace tensors at the points of a request.

    Args:
        watch: records the calls.
        at: handles the points.
        active: returns whether a call in this thread belongs to the pass.
        pulling: returns whether a call is made in the backward pass, by a checkpointed segment that runs again.
    """

    def __init__(
        self,
        watch: PassRecorder,
        at: PointHandler,
        active: Callable[[], bool],
        pulling: Callable[[], bool] = lambda: False,
    ) -> None:
        self._watch = watch
        self._at = at
        self._active = active
        self._pulling = pulling
        self._names: dict[int, tuple[str, str, tuple[str, ...]]] = {}
        self._open: list[tuple[Any, _ModuleCall | None]] = []
        self._calls: list[_ModuleCall] = []
        self._busy = False

    @contextlib.contextmanager
    def on(self, walked: Sequence[tuple[str, Any]], aliases: Mapping[int, tuple[str, ...]]) -> Iterator[None]:
        """Record the calls of the modules that the pass needs while the context is open."""
        with contextlib.ExitStack() as stack:
            for module in self.select(walked, aliases) if self._watch.needs_modules else ():
                if self._is_recorded(module, again=False):
                    stack.enter_context(hooked(module, self.before, self.after))
                else:
                    stack.callback(module.register_forward_pre_hook(_Counting(self._counted)).remove)
            yield

    def select(self, walked: Sequence[tuple[str, Any]], aliases: Mapping[int, tuple[str, ...]]) -> list[Any]:
        """Return the modules whose calls are recorded, and remember their names."""
        named = self._watch.modules | self._watch.counted
        wanted = [
            (spelled(path), module)
            for path, module in (walked if self._watch.everything or named else ())
            if (self._watch.everything or spelled(path) in named)
            and not is_compiled_wrapper(module)
            and not isinstance(module, torch.jit.ScriptModule)  # they take no hooks
        ]
        self._names = {
            id(module): (path, type(module).__name__, aliases.get(id(module), ())) for path, module in wanted
        }
        return [module for _, module in wanted]

    def may_have_made(self, module: Any, args: Any, kwargs: Any) -> bool:
        """Return whether a call may repeat a call of the pass."""
        path, *_ = self._names.get(id(module), ("",))
        argument = first((args, kwargs), is_floating)
        return any(call.path == path and _may_be(call, argument) for call in self._calls)

    def before(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Record that a call begins; return the arguments that replace its own, or None to keep them."""
        if self._busy or id(module) not in self._names or not self._active():  # a copy of a module has the hooks, too
            return None
        with torch._C.DisableTorchFunction():  # the mode need not see which properties of tensors are read here
            return self._before(module, args, kwargs)

    def _before(self, module: Any, args: Any, kwargs: Any) -> Any:
        argument = first((args, kwargs), is_floating)
        again = self._pulling()
        if not self._is_recorded(module, again):
            return None
        call = self._repeated(module, argument) if again else self._enter(module, argument)
        self._open.append((module, call))
        key = None if call is None else call.keys.get(INPUT)
        return None if key is None else self._replaced(key, (args, kwargs), argument, again, aliased=True)

    def _counted(self, module: Any) -> None:
        """Count a call of a module that is not recorded."""
        if not self._busy and id(module) in self._names and self._active() and not self._pulling():
            self._watch.count(self._names[id(module)][0])

    def after(self, module: Any, returned: Any) -> Any:
        """Record that a call ends; return the value that replaces its result, or None to keep it."""
        again = self._pulling()
        if self._busy or id(module) not in self._names or not self._active() or not self._is_recorded(module, again):
            return None
        with torch._C.DisableTorchFunction():
            return self._after(module, returned, again)

    def _after(self, module: Any, returned: Any, again: bool) -> Any:
        while self._open and self._open[-1][0] is not module:  # its hook was skipped, as by KeyboardInterrupt
            self._abort()
        if not self._open:
            return None
        _, call = self._open.pop()
        returned = declared_order(module, returned)
        output = first(returned, is_floating)
        if again:
            key = None if call is None or output is None else call.keys.get(OUTPUT)
        else:
            key = self._watch.leave(output, () if output is None else output.shape)
            if call is not None:
                call.keys[OUTPUT] = key
        aliased = key is not None and _is_aliased(module, returned, output, call)
        return None if key is None else self._replaced(key, returned, output, again, aliased=aliased)

    def _is_recorded(self, module: Any, again: bool) -> bool:
        """Return whether the module's calls are recorded, and not only counted; of those that run again, calls at points."""
        return (self._watch.everything and not again) or self._names[id(module)][0] in self._watch.modules

    def _enter(self, module: Any, argument: Any) -> _ModuleCall | None:
        path, kind, aliases = self._names[id(module)]
        key = self._watch.enter(path, kind, argument, () if argument is None else argument.shape, aliases)
        if path not in self._watch.modules:  # no point, so that it is not looked for when a segment runs again
            return None
        with torch.inference_mode(False), torch._C.DisableTorchFunction():
            detached = None if argument is None else argument.detach()
        version = -1 if detached is None or detached.is_inference() else detached._version
        call = _ModuleCall(path, detached, version, torch.is_grad_enabled(), {INPUT: key})
        self._calls.append(call)
        return call

    def _abort(self) -> None:
        self._open.pop()
        if not self._pulling():
            self._watch.exit_on_error()

    def _repeated(self, module: Any, argument: Any) -> _ModuleCall:
        """Return the call of the forward pass that a checkpointed segment repeats."""
        path = self._names[id(module)][0]
        before = [call for call in self._calls if call.path == path]
        calls = before if len(before) < 2 else [call for call in before if _may_be(call, argument)]
        keys = {}
        for side in (INPUT, OUTPUT):
            same = [Recorded(call.keys.get(side), call.traced) for call in calls]
            keys[side] = repeated_key(f"call of the module {path!r}", same, self._at.changed, total=len(before))
        return _ModuleCall(path, None, -1, traced=True, keys=keys)

    def _replaced(self, key: str, nest: Any, tensor: Any, again: bool, *, aliased: bool) -> Any:
        self._busy = True
        try:
            new = self._at.tensor(key, tensor, again=again, aliased=aliased)
        finally:
            self._busy = False
        if not again:
            self._watch.replaced(tensor, new)
        return None if new is tensor else with_first(nest, is_floating, with_mask(new, tensor))


def _may_be(call: _ModuleCall, argument: Any) -> bool:
    """Return whether a call had an equal argument, or one that has been overwritten since."""
    if argument is None or call.argument is None:
        return (argument is None) is (call.argument is None)
    if call.argument.shape != argument.shape:
        return False
    overwritten = call.argument.is_inference() or call.argument._version != call.version
    return bool(overwritten or torch.equal(call.argument, argument.detach()))


def _is_aliased(module: Any, returned: Any, output: Any, call: _ModuleCall | None) -> bool:
    """Return whether an output shares its memory with the module's argument, attributes or other outputs."""
    attributes = (*vars(module).values(), *module._buffers.values(), *held_parameters(module))
    if output.is_inference() or any(value is output for value in attributes):
        return True
    others = [tensor for tensor in every(returned, is_floating) if tensor is not output]
    argument = None if call is None else call.argument
    return any(_start(tensor) == _start(output) for tensor in (*others, argument) if tensor is not None)


def _start(tensor: Any) -> int:
    """Return the address of a tensor's storage."""
    return int(tensor.untyped_storage().data_ptr())


class _Hook:
    """A hook of embgrad's. A copy of it, in a copy of the model or in a file, does nothing.

    Another thread that read the hooks while they were being removed may call it without the keyword arguments.
    """

    def __init__(self, call: Callable[..., Any] | None) -> None:
        self._call = call

    def __reduce__(self) -> Any:
        return type(self), (None,)


class _Before(_Hook):
    def __call__(self, module: Any, *arguments: Any) -> Any:
        """Return the arguments that replace a call's own; None to keep them."""
        return None if self._call is None or len(arguments) != 2 else self._call(module, *arguments)


class _Counting(_Hook):
    def __call__(self, module: Any, *arguments: Any) -> None:
        """Report a call."""
        if self._call is not None:
            self._call(module)


class _After(_Hook):
    def __call__(self, module: Any, *arguments: Any) -> Any:
        """Return the value that replaces a call's result; None to keep it."""
        return None if self._call is None else self._call(module, arguments[-1])


@contextlib.contextmanager
def hooked(
    module: Any, before: Callable[..., Any], after: Callable[..., Any], *, first: bool = False
) -> Iterator[None]:
    """Call `before(module, args, kwargs)` and `after(module, returned)` at each call, behind the user's hooks.

    They are called in every thread, and `after` also for a call that raises.

    Args:
        module: the module.
        before: returns the arguments that replace a call's own; None to keep them.
        after: returns the value that replaces a call's result; None to keep it.
        first: call them before other hooks of embgrad's, which then see what these return.
    """
    handles = (
        module.register_forward_pre_hook(_Before(before), with_kwargs=True),
        module.register_forward_hook(_After(after), always_call=True),
    )
    if first:
        for hooks, handle in zip((module._forward_pre_hooks, module._forward_hooks), handles, strict=True):
            for key in [key for key, hook in hooks.items() if isinstance(hook, _Hook) and key != handle.id]:
                hooks.move_to_end(key)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
