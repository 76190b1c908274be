"""What happens at the points asked for: values are kept hold of and replaced, and gradients on their way up are edited."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import record

from embgrad.arrays import owned
from embgrad.backend import Change, Request
from embgrad.errors import UnsupportedError

__all__ = ["Taps", "dense", "with_mask"]


class Taps:
    """The points of one forward pass that is recorded on a tape.

    At a lookup of which only the gradient is asked for, the very tensor is watched and nothing is replaced. At a module, an
    identity stands in for its tensor: what it passes on unchanged, such as dropout in evaluation mode, is used by others too.

    Attributes:
        tape: what records the forward pass.
        kept: by the point's key the tensor at which its gradient is taken.
        before: for each pullback, by key the gradients that were edited, as they came.
        working: whether values are being replaced just now, so that what is computed is not the model's.
        failure: what was raised meanwhile.
    """

    def __init__(self, tape: Any, request: Request) -> None:
        self.tape = tape
        self.kept: dict[str, Any] = {}
        self.before: list[dict[str, np.ndarray]] = []
        self.working = False
        self.failure: BaseException | None = None
        self._request = request
        self._changed = {*request.override, *request.add, *request.edit}

    @property
    def replaces(self) -> bool:
        """Whether any lookup's rows may be replaced."""
        return self._request.tables or any(":" not in key for key in self._changed)

    def found(self, key: str, rows: Any) -> bool:
        """Take the rows of a lookup; whether others are to go on in their place, see `cut`."""
        if self._request.tables or key in self._changed:
            return True
        # where the model wants to be recomputed from what it was given, which is ids, there is no way to the rows
        pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
        self.tape.watch(rows)
        self.kept[key] = rows
        return False

    def cut(self, key: str, rows: Any) -> Any:
        """What goes on in place of a lookup's rows: off the table, so that nothing below is differentiated."""
        with self._at_work(key):
            with record.stop_recording():
                rows = tf.identity(rows)
            return self._put(key, rows)

    def passed(self, key: str, tensor: Any) -> Any:
        """What goes on in place of a tensor that a module was given or gave, with the Keras mask that hangs on it."""
        with self._at_work(key):
            return with_mask(self._put(key, tf.identity(tensor)), tensor)

    def pulling(self) -> None:
        """Another pullback begins."""
        self.before.append({})

    @contextlib.contextmanager
    def _at_work(self, key: str) -> Iterator[None]:
        if pywrap_tfe.TFE_Py_TapeSetIsStopped():
            raise UnsupportedError(
                f"the point {key!r} lies in a part of the model that runs unrecorded and is run again in the pullback "
                "(tf.recompute_grad): values read or changed there would be lost on the second run; expected the part without "
                "recomputation, or a point outside of it"
            )
        self.working = True
        try:
            yield
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.working = False

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Run meanwhile what is not watched operation by operation."""
        before, self.working = self.working, True
        try:
            yield
        finally:
            self.working = before

    def changed(self, option: str, key: str, tensor: Any) -> Any:
        """What "override" or "add" gives for a value."""
        change: Change = getattr(self._request, option)[key]
        return _like(change(owned(tensor.numpy())), tensor)

    def edited(self, key: str, gradient: Any, mark: Any) -> Any:
        """What "edit" gives for a gradient of the tensor `mark`."""
        came = owned(gradient.numpy())
        self.before[-1][key] = came.copy()
        return _like(self._request.edit[key](came), mark)

    def _put(self, key: str, tensor: Any) -> Any:
        if key in self._request.override:
            tensor = self.changed("override", key, tensor)
        if key in self._request.add:
            tensor = tensor + self.changed("add", key, tensor)
        self.tape.watch(tensor)
        self.kept[key] = tensor
        return self._editing(key, tensor) if key in self._request.edit else tensor

    def _editing(self, key: str, mark: Any) -> Any:
        def backward(gradient: Any) -> list[Any]:
            return [self.edited(key, dense(gradient), mark)]

        with record.stop_recording():
            out = tf.identity(mark)
        record.record_operation("EditedGradient", [out], [mark], backward)
        return out


def with_mask(new: Any, tensor: Any) -> Any:
    """The new tensor with the mask that Keras has hung on the one whose place it takes."""
    mask = getattr(tensor, "_keras_mask", None)
    if mask is not None:
        new._keras_mask = mask
    return new


def dense(gradient: Any) -> Any:
    """A gradient as a tensor; TensorFlow has sparse ones as IndexedSlices."""
    return tf.convert_to_tensor(gradient)


def _like(array: np.ndarray, tensor: Any) -> Any:
    with tf.device(tensor.device):
        return tf.cast(tf.constant(np.asarray(array)), tensor.dtype)
