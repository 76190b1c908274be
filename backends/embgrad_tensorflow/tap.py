"""The points of one pass: values are kept and changed there, and gradients are edited on their way back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import record
from tensorflow.python.framework import op_callbacks

from embgrad.backend import PointChanges, Request, wrap_functions
from embgrad.errors import UnsupportedError
from embgrad.toolkit import as_parts, copy_owned
from embgrad_tensorflow.operations import writes_of
from embgrad_tensorflow.state import Snapshot, as_user_code, in_mode, mark_nested

__all__ = ["Additions", "PointWork", "Taps", "dense", "for_user_code", "snapshot_of", "tapes_are_stopped", "with_mask"]


class PointWork:
    """The state of a handler of points while it computes what goes on at one.

    Attributes:
        working: whether values are being replaced just now, so that the computation is not the model's.
        failure: the exception that was raised meanwhile.
    """

    def __init__(self) -> None:
        self.working = False
        self.failure: BaseException | None = None

    @contextlib.contextmanager
    def at_work(self, key: str) -> Iterator[None]:
        """Compute what goes on at a point while the context is open."""
        if tapes_are_stopped():
            raise UnsupportedError(
                f"the point {key!r} lies in a part of the model that is recomputed in the pullback (tf.recompute_grad), where "
                "values read or changed would be lost. Remove the recomputation, or choose a point outside of it"
            )
        self.working = True
        try:
            yield
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.working = False


class Taps(PointWork):
    """The points of one forward pass that is recorded on a tape.

    At a lookup of which only the gradient is asked for, the tensor itself is watched and nothing is replaced. At a module, an
    identity stands in for its tensor: what it passes on unchanged, such as dropout in evaluation mode, is used by others too.

    Args:
        tape: records the forward pass.
        request: the requested changes at the points.

    Attributes:
        tape: records the forward pass.
        kept: by the point's key the tensor at which its gradient is taken.
        before: for each pullback, by key the gradients that were edited, as they came.
        replaces: whether any lookup's rows may be replaced.
    """

    def __init__(self, tape: Any, request: Request) -> None:
        super().__init__()
        self.tape = tape
        self.kept: dict[str, Any] = {}
        self.before: list[dict[str, np.ndarray]] = []
        self._request = request
        self._changed = {*request.override, *request.add, *request.edit}
        self.replaces = request.tables or any(":" not in key for key in self._changed)
        self._changes = PointChanges[Any](request, lambda tensor: copy_owned(tensor.numpy()), _like)

    def record_rows(self, key: str, rows: Any) -> bool:
        """Take the rows of a lookup, and return whether others are to go on in their place, see `replace_rows`."""
        if self._request.tables or key in self._changed:
            return True
        # a recomputed part is differentiated down to its inputs, the ids, and not to the rows
        pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
        self.tape.watch(rows)
        self.kept[key] = rows
        return False

    def replace_rows(self, key: str, rows: Any) -> Any:
        """Return what goes on in place of a lookup's rows: off the table, so that nothing below is differentiated."""
        with self.at_work(key):
            return self._put(key, tf.stop_gradient(rows))

    def replace(self, key: str, tensor: Any) -> Any:
        """Return what goes on in place of a module's tensor, with the Keras mask that hangs on it."""
        with self.at_work(key):
            return with_mask(self._put(key, tf.identity(tensor)), tensor)

    def pulling(self) -> None:
        """Begin another pullback."""
        self._changes.before = {}
        self.before.append(self._changes.before)

    @contextlib.contextmanager
    def run_unwatched(self) -> Iterator[None]:
        """Run code whose operations are not watched one by one."""
        previous, self.working = self.working, True
        try:
            yield
        finally:
            self.working = previous

    def _put(self, key: str, tensor: Any) -> Any:
        tensor = self._changes.value(key, tensor)
        self.tape.watch(tensor)
        self.kept[key] = tensor
        return self._editing(key, tensor) if self._changes.edits(key) else tensor

    def _editing(self, key: str, mark: Any) -> Any:
        def backward(gradient: Any) -> list[Any]:
            return [self._changes.gradient(key, dense(gradient), mark)]

        with record.stop_recording():
            out = tf.identity(mark)
        record.record_operation("EditedGradient", [out], [mark], backward)
        return out


class Additions(PointWork):
    """The points of a pass of the user's at which arrays are added.

    Args:
        announce: called with the rows of a lookup and what goes on in their place.
    """

    replaces = True

    def __init__(self, request: Request, announce: Callable[[Any, Any], None]) -> None:
        super().__init__()
        self.tensors: dict[str, Any] = {}
        self._announce = announce
        self._changes = PointChanges[Any](request, lambda tensor: copy_owned(tensor.numpy()), _like, mark_nested)

    def record_rows(self, key: str, rows: Any) -> bool:
        """Return that others go on in place of the rows of a lookup."""
        return True

    def replace_rows(self, key: str, rows: Any) -> Any:
        """Return the rows with the addition."""
        with self.at_work(key):
            changed = self._changes.value(key, rows)
        self._announce(rows, changed)
        return changed

    def replace(self, key: str, tensor: Any) -> Any:
        """Return a module's tensor with the addition, and with the Keras mask that hangs on it."""
        with self.at_work(key):
            return with_mask(self._changes.value(key, tensor), tensor)


def tapes_are_stopped() -> bool:
    """Return whether this thread's tapes record nothing just now."""
    return bool(pywrap_tfe.TFE_Py_TapeSetIsStopped())


def with_mask(new: Any, tensor: Any) -> Any:
    """Return the new tensor with the mask that Keras has hung on the tensor whose place it takes."""
    mask = getattr(tensor, "_keras_mask", None)
    if mask is not None:
        new._keras_mask = mask
    return new


def dense(gradient: Any) -> Any:
    """Return a gradient as a tensor; TensorFlow has sparse ones as IndexedSlices."""
    return tf.convert_to_tensor(gradient)


def _like(array: np.ndarray, tensor: Any) -> Any:
    with tf.device(tensor.device):
        return tf.cast(tf.constant(np.asarray(array)), tensor.dtype)


# Callbacks


def snapshot_of(model: Any, request: Request) -> Snapshot:
    """Return the model as it is, and what `call` holds."""
    call = request.call
    return Snapshot([*as_parts(model), *([] if call is None else [call])], request.training)


@contextlib.contextmanager
def for_user_code(request: Request, taken: Callable[[], Snapshot]) -> Iterator[Request]:
    """Wrap the request's callbacks so that they find the model in the requested mode; restore their writes at the end.

    Args:
        taken: gives the model as it is, where there are such functions: it takes a while.
    """
    if not (request.has_native or request.has_changes):
        yield request
        return
    snapshot = taken()
    written: list[Any] = []

    def record_writes(
        op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is None:
            written.extend(writes_of(op_type, inputs))

    def inside(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def called(value: Any) -> Any:
            op_callbacks.add_op_callback(record_writes)
            try:
                with in_mode(request.training), as_user_code():
                    return function(value)
            finally:
                op_callbacks.remove_op_callback(record_writes)

        return called

    try:
        yield wrap_functions(request, inside)
    finally:
        snapshot.restore(written)
