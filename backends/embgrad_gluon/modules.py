"""Sees the calls of a model's blocks in this thread, at the one method through which all of them go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from embgrad.backend.module_calls import ModuleCalls
from embgrad.interception import Interception
from embgrad.structures import first
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import is_floating
from embgrad_gluon.tap import Taps
from embgrad_gluon.walk import block_names

__all__ = ["CallHandler", "Modules", "at_calls", "calling", "unheard"]

# MXNet takes no notice of what a forward hook returns, so values are replaced where the hooks are called.
_calls = Interception(lambda: import_mxnet().gluon.Block, "__call__")

#: Takes a block, its arguments, and what calls it; gives what it returns.
CallHandler = Callable[[Any, tuple[Any, ...], Callable[..., Any]], Any]


def at_calls(handler: Callable[..., Any]) -> AbstractContextManager[None]:
    """While it is open, what this thread's calls of blocks give is up to `handler(original, block, *args)`."""
    return _calls.by(handler)


def unheard() -> AbstractContextManager[None]:
    """While it is open, what this thread's calls of blocks give is up to nobody: whoever captures them does not see it."""
    # To stand in for a class's `__call__` takes a look at all of its subclasses.
    return _calls.by(_call) if _calls.heard else contextlib.nullcontext()


def _call(original: Callable[..., Any], block: Any, *args: Any) -> Any:
    return original(block, *args)


@contextlib.contextmanager
def calling(handler: CallHandler) -> Iterator[None]:
    """This thread's calls of blocks go to the handler. Those that trace a block's graph do not."""

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
        taps: where they are taken down, and what goes on in place of what they take and give.
    """

    def __init__(self, parts: Sequence[Any], taps: Taps) -> None:
        self._names = block_names(parts)
        self._calls = ModuleCalls(taps.watch, is_floating, taps.at)

    def __call__(self, block: Any, args: tuple[Any, ...], proceed: Callable[..., Any]) -> Any:
        """What the block gives."""
        path, also = self._names.get(id(block), (block.name, ()))  # one that is no child, as in a list
        return self._calls.around(proceed, path, type(block).__name__, args, {}, also)


def _is_symbol(value: object) -> bool:
    return isinstance(value, import_mxnet().sym.Symbol)
