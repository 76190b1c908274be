"""Sees every operator that MXNet runs imperatively in this thread, at the one function through which all of them go."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from embgrad.errors import UnsupportedError
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.interception import Interception

__all__ = ["Operation", "imperatively", "watching"]

# Every generated function of mx.nd, mx.sym's imperative twin F, mx.np and mx.npx, and every method of an array, ends in
# this global of `mxnet.ndarray.register`: nn.Embedding, F.Embedding, take, x.take and W[ids] alike.
_invoke = Interception(lambda: import_mxnet().ndarray.register, "_imperative_invoke")
_cached = Interception(lambda: import_mxnet().gluon.HybridBlock, "_call_cached_op")


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


@contextlib.contextmanager
def watching(handlers: Mapping[str, Handler]) -> Iterator[None]:
    """This thread's operators of these names go to their handlers."""
    by_address = {_address(name): (name, handler) for name, handler in handlers.items()}

    def handle(original: Any, address: int, inputs: Any, keys: Any, values: Any, out: Any, *kind: Any) -> Any:
        watched = by_address.get(address)
        if watched is None:
            return original(address, inputs, keys, values, out, *kind)
        name, handler = watched
        operation = Operation(name, list(inputs), dict(zip(keys, values, strict=True)), out)

        def proceed() -> Any:
            attributes = operation.attributes
            return original(address, operation.inputs, list(attributes), list(attributes.values()), out, *kind)

        return handler(operation, proceed)

    with _invoke.by(handle):
        yield


@contextlib.contextmanager
def imperatively() -> Iterator[None]:
    """Hybridised blocks run operator by operator in this thread; their cached graphs stay as they are."""
    with _cached.by(_run_open):
        yield


def _run_open(_original: Any, block: Any, *args: Any) -> Any:
    mx = import_mxnet()
    if isinstance(block, mx.gluon.SymbolBlock):
        raise UnsupportedError(
            f"{type(block).__name__} {block.name!r} is a SymbolBlock: its graph runs as one operator, and embgrad cannot see "
            "the lookup in it; expected a Block whose layers are Python, build the net from its class and load the parameters "
            "with load_parameters"
        )
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
def _address(name: str) -> int:
    """The operator's handle, by which the generated functions call it; aliases share it."""
    base = import_mxnet().base
    handle = ctypes.c_void_p()
    base.check_call(base._LIB.NNGetOpHandle(base.c_str(name), ctypes.byref(handle)))
    return int(handle.value or 0)
