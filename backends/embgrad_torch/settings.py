"""Settings of PyTorch's, of the process and of the thread, under which passes are made."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from embgrad.locks import process_lock

__all__ = ["cast_anew", "computed_anew", "is_computing_once", "operands_kept", "uncompiled", "without_cudnn"]


class _Shared:
    """A process-wide setting that is made while at least one thread needs it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._users = 0
        self._made: Any = None

    def __enter__(self) -> None:
        with process_lock:
            if self._users == 0:
                self._made = self._make()
                self._made.__enter__()
            self._users += 1

    def __exit__(self, *told: object) -> None:
        with process_lock:
            self._users -= 1
            if self._users == 0:
                self._made.__exit__(None, None, None)


class _Eager:
    """Makes compiled functions run as the Python that they were made from: a compiler would trace into the watching."""

    def __init__(self) -> None:
        self._made: Any = None

    def __call__(self) -> Any:
        """The stance to enter: the last one, which takes less time, where it comes back to that which there is now."""
        now = getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None)
        if now is None or getattr(self._made, "prev", None) is not now:
            self._made = torch.compiler.set_stance("force_eager")
        return self._made


uncompiled: Final = _Shared(_Eager())

#: cuDNN has no backward pass for recurrent layers in evaluation mode.
without_cudnn: Final = _Shared(lambda: torch.backends.cudnn.flags(enabled=False))


class _Uncached(TorchFunctionMode):  # type: ignore[misc]  # PyTorch need not be there where types are checked
    """While active no cast is taken or kept, also where a block of the model's own, made earlier, turns that on again."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called by PyTorch in place of each of its functions, with this mode off meanwhile."""
        if torch.is_autocast_cache_enabled():
            torch.set_autocast_cache_enabled(False)
        return func(*args, **kwargs) if kwargs else func(*args)


@contextlib.contextmanager
def cast_anew() -> Iterator[None]:
    """Under `torch.autocast` PyTorch keeps casts of weights as long as the user's block runs, whatever becomes of the weights."""
    torch.autocast_increment_nesting()
    if not (torch.autocast_decrement_nesting() or torch._C._is_any_autocast_enabled()):
        yield  # a block of the model's own drops them at its end
        return
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with _Uncached():
            yield
    finally:
        torch.set_autocast_cache_enabled(before)


def is_computing_once() -> bool:
    """Whether `torch.nn.utils.parametrize.cached` is in force."""
    return bool(parametrize._cache_enabled)


@contextlib.contextmanager
def _computing_anew() -> Iterator[None]:
    kept, parametrize._cache = parametrize._cache, {}
    try:
        yield
    finally:
        parametrize._cache = kept if parametrize._cache_enabled else {}


#: Weights that parametrizations compute, which PyTorch keeps with their graphs for as long as the user's block runs, are neither
#: taken nor left.
computed_anew: Final = _Shared(_computing_anew)


@contextlib.contextmanager
def _keeping() -> Iterator[None]:
    from torch._inductor import config  # which takes long to import

    functorch = torch._functorch.config
    donated = (
        functorch.patch(donated_buffer=False) if hasattr(functorch, "donated_buffer") else contextlib.nullcontext()
    )
    with donated, config.patch(inplace_buffers=False):
        yield


#: Compiled backward passes leave their operands to the next one. Those do that are compiled, with the forward pass, while this
#: is in force: at the backward pass alone it would but silence what tells that the operands are gone. The second setting is
#: part of what PyTorch keeps compiled code under, which the first is not.
operands_kept: Final = _Shared(_keeping)
