"""Runs functions of the user's inside a pass: they may call parts of the model, in its mode, and leave no trace in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow.python.framework import op_callbacks

from embgrad.backend import NativeObjective, Request
from embgrad.calling import as_parts
from embgrad.replaying import wrapped
from embgrad_tensorflow import drawing
from embgrad_tensorflow.lookup import writes_of
from embgrad_tensorflow.state import Snapshot, in_mode

__all__ = ["of_the_user", "snapshot_of"]


def snapshot_of(model: Any, request: Request) -> Snapshot:
    """The model as it is, and what `call` holds."""
    call = request.call
    return Snapshot([*as_parts(model), *([] if call is None else [call])], request.training)


@contextlib.contextmanager
def of_the_user(request: Request, taken: Callable[[], Snapshot]) -> Iterator[Request]:
    """The request with functions that find the model in the mode that is asked for; what they wrote is put back at the end.

    Args:
        request: what is asked.
        taken: gives the model as it is, where there are such functions: it takes a while.
    """
    if not (isinstance(request.respond, NativeObjective) or request.override or request.add or request.edit):
        yield request
        return
    snapshot = taken()
    written: list[Any] = []

    def seen(op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> None:
        if graph is None:
            written.extend(writes_of(op_type, inputs))

    def inside(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def called(given: Any) -> Any:
            op_callbacks.add_op_callback(seen)
            try:
                with in_mode(request.training), drawing.of_the_user():
                    return function(given)
            finally:
                op_callbacks.remove_op_callback(seen)

        return called

    try:
        yield wrapped(request, inside)
    finally:
        snapshot.restore(written)
