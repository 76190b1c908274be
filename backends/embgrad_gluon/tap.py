"""Change the values at the points of a forward pass, and mark them so that their gradients can be taken."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.backend import PassRecorder, PointChanges, Request
from embgrad.errors import UnsupportedError
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import native_like, widen
from embgrad_gluon.walk import same_bits

__all__ = ["KeptPoint", "Taps"]


@dataclass(frozen=True)
class KeptPoint:
    """A point whose array is kept.

    Attributes:
        mark: the array at which the gradient is taken, marked by `attach_grad`.
        forwarded: the array that the model goes on with.
        copy: a copy of its values, as MXNet's or NumPy's array.
        below: where the graph is cut so that the gradient can be edited, the array below the cut; else None.
    """

    mark: Any
    forwarded: Any
    copy: Any
    below: Any = None

    def values(self) -> np.ndarray:
        """Return the values that the model went on with, in memory of their own."""
        return widen(self.copy if isinstance(self.copy, np.ndarray) else self.forwarded.asnumpy())


class Taps:
    """The points of one forward pass whose arrays are read or changed.

    Args:
        watch: records the pass.
        request: defines the changes at the points.
        keeps: whether gradients are taken at the points; otherwise they are only changed.
        cuts: cut the graph at the first point, below which nothing is then differentiated.
        aside: returns a context manager that is entered while a user's function runs.

    Attributes:
        watch: as given.
        kept: the points by key, in the order in which they were reached.
        changes: the changes at the points.
    """

    def __init__(
        self,
        watch: PassRecorder,
        request: Request,
        *,
        keeps: bool = True,
        cuts: bool = False,
        aside: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self.watch = watch
        self.kept: dict[str, KeptPoint] = {}
        self.changes = PointChanges[Any](request, lambda array: widen(array.asnumpy()), native_like, aside)
        self._keeps = keeps
        self._cuts = cuts

    def at(self, key: str, array: Any, *, cut: bool = False) -> Any:
        """Return the array that replaces the computed one.

        Args:
            key: the point's key.
            array: the computed array.
            cut: cut the graph there, so that nothing below is differentiated.
        """
        value = self.changes.value(key, array)
        if not self._keeps:
            return value
        if cut or self.changes.overrides(key):
            return self._keep_leaf(key, value, None, value.asnumpy())
        if self.changes.edits(key):
            with import_mxnet().autograd.pause():
                leaf, copy = value.copy(), value.copy()
            return self._keep_leaf(key, leaf, value, copy)
        return self._keep_connected(key, value.detach() if self._cuts and not self.kept else value)

    def expect_unwritten(self, key: str) -> None:
        """Refuse a point whose value the model changed in place while it was not recorded, which MXNet's gradient ignores.

        Raises:
            UnsupportedError: its values have changed.
        """
        kept = self.kept[key]
        if not same_bits(kept.copy, kept.forwarded):
            lookup = next((lookup for lookup in self.watch.lookups if lookup.key == key), None)
            value = f"the output of the lookup {lookup}" if lookup is not None else f"the value at the point {key!r}"
            raise UnsupportedError(
                f"the model writes into {value} while it is not recorded, which MXNet's gradient ignores. Compute a new array, "
                "such as rows * mask or where(...)"
            )

    def _keep_leaf(self, key: str, leaf: Any, below: Any, copy: Any) -> Any:
        mx = import_mxnet()
        # As `attach_grad` does, which cuts it off its history; no memory is used until a gradient is written.
        mx.autograd.mark_variables([leaf], [mx.nd.empty(leaf.shape, leaf.ctx, leaf.dtype)])
        self.kept[key] = KeptPoint(leaf, leaf, copy, below)
        return leaf

    def _keep_connected(self, key: str, array: Any) -> Any:
        """Mark a zero that is added to the array: marking the array itself would cut the graph below it."""
        mx = import_mxnet()
        with mx.autograd.pause():
            zeros = -mx.nd.zeros(array.shape, ctx=array.ctx, dtype=array.dtype)  # -0.0, which changes no bit, +0.0 does
            zeros = zeros.as_np_ndarray() if isinstance(array, mx.np.ndarray) else zeros
            zeros.attach_grad()
        forwarded = array + zeros
        with mx.autograd.pause():
            self.kept[key] = KeptPoint(zeros, forwarded, forwarded.copy())
        return forwarded
