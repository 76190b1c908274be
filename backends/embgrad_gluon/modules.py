"""Intercepts the calls of a model's blocks in this thread, at the method through which all of them go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from embgrad.backend.module_calls import ModuleCalls
from embgrad.backend.patching import Interception
from embgrad.common.pytree import first
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import is_floating
from embgrad_gluon.tap import Taps
from embgrad_gluon.walk import block_names

__all__ = ["CallHandler", "Modules", "calling", "unheard"]

# MXNet takes no notice of what a forward hook returns, so values are replaced where the hooks are called.
_calls = Interception(lambda: import_mxnet().gluon.Block, "__call__")

#: Takes a block, its arguments and the function that calls it; returns the block's output.
CallHandler = Callable[[Any, tuple[Any, ...], Callable[..., Any]], Any]


def unheard() -> AbstractContextManager[None]:
    """Keep the handlers from seeing this thread's calls of blocks while it is open."""
    # Standing in for a class's `__call__` means a look at all of its subclasses.
    return _calls.by(_call) if _calls.heard else contextlib.nullcontext()


def _call(original: Callable[..., Any], block: Any, *args: Any) -> Any:
    return original(block, *args)


@contextlib.contextmanager
def calling(handler: CallHandler) -> Iterator[None]:
    """Pass this thread's calls of blocks to the handler while it is open, except those that trace a block's graph."""
    array = import_mxnet().nd.NDArray

    def handle(original: Any, block: Any, *args: Any) -> Any:
        if not (args and isinstance(args[0], array)) and first(args, _is_symbol) is not None:
            return original(block, *args)
        return handler(block, args, lambda *given: original(block, *given))

    with _calls.by(handle):
        yield


class Modules:
    """The calls of a model's blocks in one forward pass.

    Args:
        parts: the model's parts.
        taps: records the calls, and gives the arrays that go on in place of the blocks' inputs and outputs.
    """

    def __init__(self, parts: Sequence[Any], taps: Taps) -> None:
        self._names = block_names(parts)
        self._calls = ModuleCalls(taps.watch, is_floating, taps.at)

    def __call__(self, block: Any, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
        """Record the call of a block, and return what goes on in place of its output."""
        path, also = self._names.get(id(block), (block.name, ()))  # one that is no child, as in a list
        return self._calls.around(proceed, path, type(block).__name__, args, {}, also)


def _is_symbol(value: object) -> bool:
    return isinstance(value, import_mxnet().sym.Symbol)
