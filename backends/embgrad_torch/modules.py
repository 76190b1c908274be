"""Record the calls of modules by hooks that are registered for one pass, and replace tensors at the points."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from embgrad.backend import PassRecorder
from embgrad.errors import UnsupportedError
from embgrad.keras import restore_declared_order, with_mask
from embgrad.toolkit import every, first, with_first
from embgrad_torch.inputs import is_floating
from embgrad_torch.tap import PointHandler, run_again
from embgrad_torch.walk import held_parameters, is_compiled_wrapper, spell

__all__ = ["ModuleWatch", "hook"]


class ModuleWatch:
    """The hooks that record calls of modules, and replace tensors at the points of a request.

    Args:
        watch: records the calls.
        at: handles the points.
        active: returns whether a call in this thread belongs to the pass.
        pulling: returns whether a call is made in the backward pass.
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
        self._open: list[tuple[Any, Any]] = []  # the modules whose calls run, each with the first floating argument
        self._busy = False

    @contextlib.contextmanager
    def on(self, walked: Sequence[tuple[str, Any]], aliases: Mapping[int, tuple[str, ...]]) -> Iterator[None]:
        """Record the calls of the modules that the pass needs while the context is open."""
        with contextlib.ExitStack() as stack:
            for module in self.select(walked, aliases):
                if self._watch.everything or self._names[id(module)][0] in self._watch.modules:
                    stack.enter_context(hook(module, self.before, self.after))
                else:
                    stack.callback(module.register_forward_pre_hook(_Counting(self._count)).remove)
            yield

    def select(self, walked: Sequence[tuple[str, Any]], aliases: Mapping[int, tuple[str, ...]]) -> list[Any]:
        """Return the modules whose calls are recorded, and remember their names."""
        named = self._watch.modules | self._watch.counted
        wanted = [
            (spell(path), module)
            for path, module in (walked if self._watch.everything or named else ())
            if (self._watch.everything or spell(path) in named)
            and not is_compiled_wrapper(module)
            and not isinstance(module, torch.jit.ScriptModule)  # they take no hooks
        ]
        self._names = {
            id(module): (path, type(module).__name__, aliases.get(id(module), ())) for path, module in wanted
        }
        return [module for _, module in wanted]

    def before(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Record that a call begins; return the arguments that replace its own, or None to keep them.

        Raises:
            UnsupportedError: a function of the model calls a module with a point again in the backward pass.
        """
        if not self._is_watched(module):
            return None
        path, kind, aliases = self._names[id(module)]
        if self._pulling():
            if path in self._watch.modules:
                raise UnsupportedError(run_again(f"the call of the module {path!r}"))
            return None
        with torch._C.DisableTorchFunction():  # the mode need not see which properties of tensors are read here
            argument = first((args, kwargs), is_floating)
            key = self._watch.enter(path, kind, argument, () if argument is None else argument.shape, aliases)
            self._open.append((module, argument))
            return None if key is None else self._replace(key, (args, kwargs), argument, aliased=True)

    def _count(self, module: Any) -> None:
        """Count a call of a module that is not recorded."""
        if self._is_watched(module) and not self._pulling():
            self._watch.count(self._names[id(module)][0])

    def after(self, module: Any, returned: Any) -> Any:
        """Record that a call ends; return the value that replaces its result, or None to keep it."""
        if not self._is_watched(module) or self._pulling():
            return None
        with torch._C.DisableTorchFunction():
            while self._open and self._open[-1][0] is not module:  # its hook was skipped, as by KeyboardInterrupt
                self._open.pop()
                self._watch.exit_on_error()
            if not self._open:
                return None
            _, argument = self._open.pop()
            returned = restore_declared_order(module, returned)
            output = first(returned, is_floating)
            key = self._watch.leave(output, () if output is None else output.shape)
            if key is None:
                return None
            return self._replace(key, returned, output, aliased=_is_aliased(module, returned, output, argument))

    def _is_watched(self, module: Any) -> bool:
        """Return whether a call is one of the pass; a copy of a module has the hooks, too."""
        return not self._busy and id(module) in self._names and self._active()

    def _replace(self, key: str, nest: Any, tensor: Any, *, aliased: bool) -> Any:
        self._busy = True
        try:
            new = self._at.tensor(key, tensor, aliased=aliased)
        finally:
            self._busy = False
        self._watch.replace_tensor(tensor, new)
        return None if new is tensor else with_first(nest, is_floating, with_mask(new, tensor))


def _is_aliased(module: Any, returned: Any, output: Any, argument: Any) -> bool:
    """Return whether an output shares its memory with the module's argument, attributes or other outputs."""
    attributes = (*vars(module).values(), *module._buffers.values(), *held_parameters(module))
    if output.is_inference() or any(value is output for value in attributes):
        return True
    others = [tensor for tensor in every(returned, is_floating) if tensor is not output]
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
def hook(module: Any, before: Callable[..., Any], after: Callable[..., Any], *, first: bool = False) -> Iterator[None]:
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
