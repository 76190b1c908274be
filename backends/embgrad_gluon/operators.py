"""Sees every operator that MXNet runs imperatively in this thread, at the one function through which all of them go."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from embgrad.interception import Interception
from embgrad_gluon import symbolic
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.symbolic import OnValue

__all__ = [
    "Handler",
    "OnSymbolBlock",
    "Operation",
    "address",
    "at_cached_graphs",
    "at_scopes",
    "invoke",
    "run_open",
    "unwatched",
    "watching",
]

# Every generated function of mx.nd, mx.sym's imperative twin F, mx.np and mx.npx, and every method of an array, ends in
# this global of `mxnet.ndarray.register`: nn.Embedding, F.Embedding, take, x.take and W[ids] alike.
_invoke = Interception(lambda: import_mxnet().ndarray.register, "_imperative_invoke")
_cached = Interception(lambda: import_mxnet().gluon.HybridBlock, "_call_cached_op")
_scope = Interception(lambda: import_mxnet().autograd._RecordingStateScope, "__enter__")


@dataclass
class Operation:
    """One operator that is about to run. A handler may change its inputs and attributes.

    Attributes:
        name: the operator's own name, whatever the alias under which it was called.
        inputs: the arrays.
        attributes: by name.
        out: the array that the caller wants the output in; None for a new one.
    """

    name: str
    inputs: list[Any]
    attributes: dict[str, Any]
    out: Any


#: Takes an operation and what runs it; gives the output.
Handler = Callable[[Operation, Callable[[], Any]], Any]

#: Takes a SymbolBlock that is about to run and its arguments; while it is open gives what sees the values of the graph, or None.
OnSymbolBlock = Callable[[Any, Sequence[Any]], AbstractContextManager[OnValue | None]]


@contextlib.contextmanager
def watching(handlers: Mapping[str, Handler], substitute: Callable[[Any], Any] | None = None) -> Iterator[None]:
    """This thread's operators of these names go to their handlers.

    Args:
        handlers: by the operators' names.
        substitute: gives what takes the place of an array that an operator of any name takes.
    """
    by_address = {address(name): (name, handler) for name, handler in handlers.items()}

    def handle(original: Any, operator: int, inputs: Any, keys: Any, values: Any, out: Any, *kind: Any) -> Any:
        watched = by_address.get(operator)
        if substitute is not None:
            inputs = [substitute(array) for array in inputs]
        if watched is None:
            return original(operator, inputs, keys, values, out, *kind)
        name, handler = watched
        operation = Operation(name, list(inputs), dict(zip(keys, values, strict=True)), out)

        def proceed() -> Any:
            attributes = operation.attributes
            return original(operator, operation.inputs, list(attributes), list(attributes.values()), out, *kind)

        return handler(operation, proceed)

    with _invoke.by(handle):
        yield


def unwatched() -> AbstractContextManager[None]:
    """While it is open, nobody sees what operators this thread runs."""
    return _invoke.by(lambda original, *given: original(*given)) if _invoke.heard else contextlib.nullcontext()


def at_cached_graphs(handler: Callable[..., Any]) -> AbstractContextManager[None]:
    """While it is open, what this thread's hybridised blocks and SymbolBlocks give is up to `handler(original, block, *args)`."""
    return _cached.by(handler)


def at_scopes(handler: Callable[..., Any]) -> AbstractContextManager[None]:
    """Likewise how it enters `autograd.pause()` and the like, of which a graph knows nothing: `handler(original, scope)`."""
    return _scope.by(handler)


def run_open(
    block: Any, args: Sequence[Any], on_symbol_block: OnSymbolBlock = lambda _block, _args: contextlib.nullcontext()
) -> Any:
    """What a hybridised block or a SymbolBlock gives, run operator by operator."""
    if not isinstance(block, import_mxnet().gluon.SymbolBlock):
        return _run_open(block, *args)
    with on_symbol_block(block, args) as on_value:
        return symbolic.run_open(block, args, invoke, on_value)


def invoke(name: str, inputs: list[Any], attributes: dict[str, Any], as_numpy: bool) -> list[Any]:
    """Runs an operator as the generated function of its name does."""
    mx = import_mxnet()
    as_list, as_numpy = mx.base._output_is_list(name), as_numpy or mx.base._is_np_op(name)
    keys, values = list(attributes), list(attributes.values())
    outputs = mx.ndarray.register._imperative_invoke(address(name), inputs, keys, values, None, as_numpy, as_list)
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def _run_open(block: Any, *args: Any) -> Any:
    mx = import_mxnet()
    # As `HybridBlock.forward` goes on where it is not hybridised. The block's own flag stays, since other threads see it.
    context = mx.current_context()
    try:
        parameters = {name: parameter.data(context) for name, parameter in block._reg_params.items()}
    except mx.gluon.parameter.DeferredInitializationError:
        block._deferred_infer_shape(*args)
        for parameter in block.params.values():
            parameter._finish_deferred_init()
        parameters = {name: parameter.data(context) for name, parameter in block._reg_params.items()}
    return block.hybrid_forward(mx.ndarray, *args, **parameters)


@functools.cache
def address(name: str) -> int:
    """The operator's handle, by which the generated functions call it; aliases share it."""
    base = import_mxnet().base
    handle = ctypes.c_void_p()
    base.check_call(base._LIB.NNGetOpHandle(base.c_str(name), ctypes.byref(handle)))
    return int(handle.value or 0)
