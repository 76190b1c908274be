"""Intercept the calls of a model's blocks in this thread, at the method through which all of them go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from embgrad.toolkit import Interception, ModuleCalls, RecordedCall, call_recorded, first
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import is_floating
from embgrad_gluon.tap import Taps
from embgrad_gluon.walk import block_names

__all__ = ["CallHandler", "Modules", "ignore_calls", "intercept_calls"]

# MXNet ignores what a forward hook returns, so values are replaced where the hooks are called.
_calls = Interception(lambda: import_mxnet().gluon.Block, "__call__")

#: Takes a block, its arguments and the function that calls it; returns the block's output.
CallHandler = Callable[[Any, tuple[Any, ...], Callable[..., Any]], Any]


def ignore_calls() -> AbstractContextManager[None]:
    """Keep the handlers from seeing this thread's calls of blocks while it is open."""
    # Without a handler nothing is replaced: setting a class's `__call__` visits all of its subclasses.
    return _calls.by(_call_original) if _calls.heard else contextlib.nullcontext()


def _call_original(original: Callable[..., Any], block: Any, *args: Any) -> Any:
    return original(block, *args)


@contextlib.contextmanager
def intercept_calls(handler: CallHandler) -> Iterator[None]:
    """Pass this thread's calls of blocks to the handler while it is open, except those that trace a block's graph."""
    array = import_mxnet().nd.NDArray

    def handle(original: Any, block: Any, *args: Any) -> Any:
        if not (args and isinstance(args[0], array)) and first(args, _is_symbol) is not None:
            return original(block, *args)
        return handler(block, args, lambda *arguments: original(block, *arguments))

    with _calls.by(handle):
        yield


class Modules:
    """The calls of a model's blocks in one forward pass.

    Args:
        parts: the model's parts.
        taps: records the calls, and returns the arrays that replace the blocks' inputs and outputs.
    """

    def __init__(self, parts: Sequence[Any], taps: Taps) -> None:
        self._names = block_names(parts)
        self._calls = ModuleCalls(taps.watch, is_floating, taps.at)

    def __call__(self, block: Any, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
        """Record the call of a block, and return what goes on in place of its output."""
        return call_recorded([self.record_of(block)], proceed, type(block).__name__, args, {})

    def record_of(self, block: Any) -> RecordedCall:
        """Return a call of a block for `call_recorded`."""
        return RecordedCall(self._calls, *self._names.get(id(block), (block.name, ())))  # a block in a list is no child


def _is_symbol(value: object) -> bool:
    return isinstance(value, import_mxnet().sym.Symbol)
