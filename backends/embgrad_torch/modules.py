"""Watches the calls of modules, by hooks that are on them for one pass, and lets a point's tensor be replaced there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from embgrad.common.pytree import every, first, with_first
from embgrad.forward.points import INPUT, OUTPUT
from embgrad.forward.recorder import PassRecorder
from embgrad_torch.checkpoints import Made, made_again
from embgrad_torch.tap import At, is_floating
from embgrad_torch.walk import is_compiled_wrapper, spelled

__all__ = ["ModuleWatch", "hooked", "hooked_all"]


@dataclass
class _Called:
    """A call of a module in the forward pass.

    Attributes:
        path: the module's.
        given: the first floating tensor that it was given, off the graph.
        version: of that tensor's memory, when it was given.
        traced: see `Made`.
        keys: by side the keys of the points, where they are asked for.
    """

    path: str
    given: Any
    version: int
    traced: bool
    keys: dict[str, str | None]


class ModuleWatch:
    """The hooks that record calls of modules, and replace tensors at the points of a request.

    Args:
        watch: what takes the calls down.
        at: what happens at the points.
        active: whether a call, in this thread, is one of the pass's.
        pulling: whether it is made in the backward pass, by a checkpointed segment that runs again.
    """

    def __init__(
        self, watch: PassRecorder, at: At, active: Callable[[], bool], pulling: Callable[[], bool] = lambda: False
    ) -> None:
        self._watch = watch
        self._at = at
        self._active = active
        self._pulling = pulling
        self._names: dict[int, tuple[str, str, tuple[str, ...]]] = {}
        self._open: list[tuple[Any, _Called | None]] = []
        self._called: list[_Called] = []
        self._busy = False

    def on(self, walked: Sequence[tuple[str, Any]], also: Mapping[int, tuple[str, ...]]) -> AbstractContextManager[Any]:
        """Watches meanwhile those of the modules that the watch is to be told of."""
        told = self.of(walked, also) if self._watch.needs_modules else []
        return hooked_all(told, self.before, self.after) if told else contextlib.nullcontext()

    def of(self, walked: Sequence[tuple[str, Any]], also: Mapping[int, tuple[str, ...]]) -> list[Any]:
        """Return the modules whose calls are recorded, and remember them."""
        named = self._watch.modules | self._watch.counted
        wanted = [
            (spelled(path), module)
            for path, module in (walked if self._watch.everything or named else ())
            if (self._watch.everything or spelled(path) in named)
            and not is_compiled_wrapper(module)
            and not isinstance(module, torch.jit.ScriptModule)  # they take no hooks
        ]
        self._names = {id(one): (path, type(one).__name__, also.get(id(one), ())) for path, one in wanted}
        return [module for _, module in wanted]

    def made(self, module: Any, args: Any, kwargs: Any) -> bool:
        """Return whether a call may repeat a call of the pass."""
        path, *_ = self._names.get(id(module), ("",))
        given = first((args, kwargs), is_floating)
        return any(call.path == path and _may_be(call, given) for call in self._called)

    def before(self, module: Any, args: Any, kwargs: Any) -> Any:
        """A call begins: the arguments with which it goes on, or None for the same."""
        if self._busy or id(module) not in self._names or not self._active():  # a copy of a module has its hooks, too
            return None
        given = first((args, kwargs), is_floating)
        again = self._pulling()
        if not self._is_told(module):
            if not again:
                self._watch.count(self._names[id(module)][0])
            return None
        called = self._made_before(module, given) if again else self._enter(module, given)
        self._open.append((module, called))
        key = None if called is None else called.keys.get(INPUT)
        return None if key is None else self._put(key, (args, kwargs), given, again, aliased=True)

    def after(self, module: Any, returned: Any) -> Any:
        """A call ends: what goes on in place of what it returned, or None for the same."""
        if self._busy or id(module) not in self._names or not self._active() or not self._is_told(module):
            return None
        while self._open and self._open[-1][0] is not module:  # ended by an exception that the hooks do not hear of
            self._break()
        if not self._open:
            return None
        _, called = self._open.pop()
        gave, again = first(returned, is_floating), self._pulling()
        if again:
            key = None if called is None or gave is None else called.keys.get(OUTPUT)
        else:
            key = self._watch.leave(gave, () if gave is None else gave.shape)
            if called is not None:
                called.keys[OUTPUT] = key
        aliased = key is not None and _is_aliased(module, returned, gave, called)
        return None if key is None else self._put(key, returned, gave, again, aliased=aliased)

    def _is_told(self, module: Any) -> bool:
        """Return whether the module's calls are recorded, and not only counted."""
        return self._watch.everything or self._names[id(module)][0] in self._watch.modules

    def _enter(self, module: Any, given: Any) -> _Called | None:
        path, kind, also = self._names[id(module)]
        key = self._watch.enter(path, kind, given, () if given is None else given.shape, also)
        if self._watch.everything:  # nothing is pulled back, so that nothing runs again
            return None
        with torch.inference_mode(False), torch._C.DisableTorchFunction():
            kept = None if given is None else given.detach()
        version = -1 if kept is None or kept.is_inference() else kept._version
        called = _Called(path, kept, version, torch.is_grad_enabled(), {INPUT: key})
        self._called.append(called)
        return called

    def _break(self) -> None:
        self._open.pop()
        if not self._pulling():
            self._watch.exit_on_error()

    def _made_before(self, module: Any, given: Any) -> _Called | None:
        """The call of the forward pass that is made again."""
        path = self._names[id(module)][0]
        every = [call for call in self._called if call.path == path]
        calls = every if len(every) < 2 else [call for call in every if _may_be(call, given)]
        keys = {}
        for side in (INPUT, OUTPUT):
            made = [Made(call.keys.get(side), call.traced) for call in calls]
            keys[side] = made_again(f"call of the module {path!r}", made, self._at.changed, seen=len(every))
        return _Called(path, None, -1, traced=True, keys=keys)

    def _put(self, key: str, nest: Any, tensor: Any, again: bool, *, aliased: bool) -> Any:
        self._busy = True
        try:
            new = self._at.tensor(key, tensor, again=again, aliased=aliased)
        finally:
            self._busy = False
        return None if new is tensor else with_first(nest, is_floating, new)


def _may_be(call: _Called, given: Any) -> bool:
    """Return whether a call has the same arguments, as far as they still exist."""
    if given is None or call.given is None:
        return (given is None) is (call.given is None)
    if call.given.shape != given.shape:
        return False
    overwritten = call.given.is_inference() or call.given._version != call.version
    return bool(overwritten or torch.equal(call.given, given.detach()))


def _is_aliased(module: Any, returned: Any, gave: Any, called: _Called | None) -> bool:
    """Return whether a tensor that a module returned lies in the memory of what it was given, keeps, or returned beside."""
    kept = (*vars(module).values(), *module._buffers.values(), *module._parameters.values())
    if gave.is_inference() or any(one is gave for one in kept):
        return True
    others = [one for one in every(returned, is_floating) if one is not gave]
    given = None if called is None else called.given
    return any(_start(one) == _start(gave) for one in (*others, given) if one is not None)


def _start(tensor: Any) -> int:
    """Return where the memory begins that a tensor lies in."""
    return int(tensor.untyped_storage().data_ptr())


class _Hook:
    """A hook of ours. A copy of it, in a copy of the model or in a file, does nothing.

    In another thread, one that took the hooks up while they were being removed may call it without the keywords.
    """

    def __init__(self, ask: Callable[..., Any] | None) -> None:
        self._ask = ask

    def __reduce__(self) -> Any:
        return type(self), (None,)


class _Before(_Hook):
    def __call__(self, module: Any, *given: Any) -> Any:
        """The arguments with which a call goes on, or None for the same."""
        return None if self._ask is None or len(given) != 2 else self._ask(module, *given)


class _After(_Hook):
    def __call__(self, module: Any, *given: Any) -> Any:
        """Return the value that replaces a call's result; None to keep it."""
        return None if self._ask is None else self._ask(module, given[-1])


@contextlib.contextmanager
def hooked(module: Any, before: Callable[..., Any], after: Callable[..., Any]) -> Iterator[None]:
    """Meanwhile `before(module, args, kwargs)` and `after(module, returned)` are asked at each call, behind the user's hooks.

    They hear of calls in every thread, and `after` also of those that an exception ends.
    """
    handles = (
        module.register_forward_pre_hook(_Before(before), with_kwargs=True),
        module.register_forward_hook(_After(after), always_call=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def hooked_all(modules: Iterable[Any], before: Callable[..., Any], after: Callable[..., Any]) -> Iterator[None]:
    """As `hooked`, of several modules."""
    with contextlib.ExitStack() as stack:
        for module in modules:
            stack.enter_context(hooked(module, before, after))
        yield
