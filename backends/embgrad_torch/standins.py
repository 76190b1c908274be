"""Puts operators in the place of lookups, points and ends of gradients, while a model's Python is followed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch

from embgrad.backend import Request
from embgrad.batch import TokenBatch
from embgrad.structures import first, with_first
from embgrad.watching import PointWatch
from embgrad_torch.aliases import Shared, WrittenError, shares_memory, tensors_among, versions, writes_by_name
from embgrad_torch.escaped import Escaped
from embgrad_torch.lookup import DIFFERENTIATING, LookupMode, Read
from embgrad_torch.modules import hooked
from embgrad_torch.operators import ended
from embgrad_torch.replaced import Replaced
from embgrad_torch.structure import Structure
from embgrad_torch.tap import Taps, is_floating
from embgrad_torch.walk import TablePaths, is_compiled_wrapper, spelled

__all__ = ["Following", "Happening", "Lookups", "Modules", "UntraceableError"]


class UntraceableError(Exception):
    """No trace of a model can be kept; says why, as "compile=True: ..." goes on."""


@dataclass(frozen=True)
class Happening:
    """What the watch of a pass is told of, in order.

    Attributes:
        kind: "lookup", "enter" or "leave".
        path: the table's or the module's.
        number: of the operator in the graph; None for a side of a call that is not asked for.
        sort: the module's class.
        also: its further paths.
        read: how the lookup is made, without tensors.
    """

    kind: str
    path: str
    number: int | None = None
    sort: str = ""
    also: tuple[str, ...] = ()
    read: Mapping[str, Any] = field(default_factory=dict)


class Following(Protocol):
    """Who follows a model.

    Attributes:
        batch: what the call is made with.
        request: what is asked.
        script: what has happened, in order.
        escaping: is told of the tensors that are made.
    """

    escaping: Escaped
    batch: TokenBatch
    request: Request
    script: list[Happening]

    def happen(self, happening: Happening) -> None:
        """Take down what happens."""
        ...

    def look_up(self, path: str, read: Read) -> Any:
        """The rows of a lookup."""
        ...

    def looked_up_last(self, value: Any) -> bool:
        """Whether it is the rows of the last lookup."""
        ...

    def pass_by(self, value: Any, number: int) -> Any:
        """What goes on at a point of a module."""
        ...


class Lookups(LookupMode):
    """Puts an operator in the place of each lookup, and at each end of gradients."""

    def __init__(self, following: Following, paths: TablePaths, replaced: Replaced) -> None:
        super().__init__(PointWatch(following.batch, ()), Taps(following.request), paths)
        self._following = following
        self._shared = Shared()
        self._replaced = replaced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by PyTorch in place of each of its functions, with this mode off meanwhile."""
        args, kwargs = self._replaced.given(func, args, kwargs or {})
        if func in _REFUSED:
            raise UntraceableError(f"the model {_REFUSED[func]} in its own forward pass")
        given = list(tensors_among((args, kwargs)))
        self.expect_alike(given)
        carrying = any(one.requires_grad for one in given)
        if carrying and func in _ENDING:
            if func is torch.Tensor.detach_:
                raise UntraceableError("the model detaches a tensor in place")
            return self._shared.ended(args[0] if args else kwargs["input"])
        handler = self._handlers.get(func)
        before = versions(given)
        result = func(*args, **kwargs) if handler is None else handler(self, func, args, kwargs)
        if all(result is not one for one in given):
            self._following.escaping.made(result)
        if torch.is_grad_enabled() or not carrying or self._following.looked_up_last(result):
            return result
        if versions(given) != before or (torch.is_inference_mode_enabled() and writes_by_name(func, kwargs)):
            raise UntraceableError("the model writes into a tensor in place where gradients are switched off")
        return self._all_ended(result, given)

    def expect_alike(self, tensors: list[Any]) -> None:
        """See `Shared`.

        Raises:
            UntraceableError: they are not.
        """
        try:
            self._shared.expect_alike(tensors)
        except WrittenError as error:
            raise UntraceableError(str(error)) from error

    def _all_ended(self, result: Any, given: Sequence[Any]) -> Any:
        """What a function gives where gradients are switched off."""
        if isinstance(result, (list, tuple)):
            entries = [self._all_ended(one, given) for one in result]
            return type(result)(*entries) if hasattr(result, "_fields") else type(result)(entries)
        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            return result
        if any(result is one for one in given):
            return result
        return self._shared.ended(result) if shares_memory(result, given) else ended(result)

    def _rows(self, read: Read, compute: Callable[[], Any]) -> Any:
        if torch._C._functorch.maybe_current_level() is not None:
            if read.indexing:
                return None
            raise UntraceableError("the model looks up rows inside a transform of torch.func")
        if read.max_norm is not None:
            raise UntraceableError("a lookup with max_norm writes into its table")
        return self._following.look_up(self._path(read.table), read)


class Modules:
    """Puts an operator at each side of a module's call that is asked for."""

    def __init__(self, following: Following, mode: LookupMode) -> None:
        self._following = following
        self._mode = mode
        self._watch = PointWatch(following.batch, following.request.reached)
        self._names: dict[int, str] = {}

    def on(self, known: Structure, stack: contextlib.ExitStack) -> None:
        """Watches the modules that are asked for."""
        for path, module in known.walked:
            if spelled(path) in self._watch.modules and not is_compiled_wrapper(module):
                if isinstance(module, torch.jit.ScriptModule):
                    raise UntraceableError(f"{spelled(path)} is a TorchScript module")
                self._names[id(module)] = spelled(path)
                stack.enter_context(hooked(module, self.before, self.after))

    def before(self, module: Any, args: Any, kwargs: Any) -> Any:
        """A call begins."""
        if id(module) not in self._names or not self._mode.is_active():
            return None
        path, sort = self._names[id(module)], type(module).__name__
        given = first((args, kwargs), is_floating)
        wanted = self._watch.enter(path, sort, given, ()) is not None
        number = len(self._following.script) if wanted else None
        self._following.happen(Happening("enter", path, number, sort))
        return None if number is None else with_first((args, kwargs), is_floating, self._put(given, number))

    def after(self, module: Any, returned: Any) -> Any:
        """A call ends."""
        if id(module) not in self._names or not self._mode.is_active():
            return None
        gave = first(returned, is_floating)
        wanted = self._watch.leave(gave, ()) is not None
        number = len(self._following.script) if wanted else None
        self._following.happen(Happening("leave", self._names[id(module)], number))
        return None if number is None else with_first(returned, is_floating, self._put(gave, number))

    def _put(self, value: Any, number: int) -> Any:
        with torch._C.DisableTorchFunction():
            return self._following.pass_by(value, number)


#: The functions that give a tensor's values off the graph.
_ENDING: Final = frozenset(
    {torch.Tensor.detach, torch.Tensor.detach_, torch.detach, torch.Tensor.data.__get__}
    | {torch.ops.aten.detach, torch.ops.aten.detach.default}
)

#: The functions that a graph of forward passes says nothing of.
_REFUSED: Final[Mapping[Any, str]] = {
    **dict.fromkeys(DIFFERENTIATING, "takes gradients"),
    torch.Tensor.register_hook: "registers a hook on a gradient",
    torch.Tensor.register_post_accumulate_grad_hook: "registers a hook on a gradient",
    torch.Tensor.grad_fn.__get__: "looks at the graph of its gradients, where hooks may be put,",
    torch.Tensor.data.__set__: "gives a tensor other memory",
}
