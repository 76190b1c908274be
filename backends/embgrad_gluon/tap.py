"""Changes the values at the points of a forward pass, and marks them so that their gradients can be taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.backend import Request
from embgrad.backend.point_changes import PointChanges
from embgrad.errors import UnsupportedError
from embgrad.forward.recorder import PassRecorder
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.inputs import native_like, widened
from embgrad_gluon.walk import same_bits

__all__ = ["Kept", "Taps"]


@dataclass(frozen=True)
class Kept:
    """A point whose array is kept.

    Attributes:
        mark: the array at which the gradient is taken, marked by `attach_grad`.
        gone_on: the array with which the model goes on.
        copy: its values at that time, as MXNet's or NumPy's array.
        below: where the graph is cut so that the gradient can be edited, the array below the cut; else None.
    """

    mark: Any
    gone_on: Any
    copy: Any
    below: Any = None

    def values(self) -> np.ndarray:
        """Return the values that went on, in memory of their own."""
        return widened(self.copy if isinstance(self.copy, np.ndarray) else self.gone_on.asnumpy())


class Taps:
    """The points of one forward pass whose arrays are kept.

    Args:
        watch: records the pass.
        request: says what is changed at the points.

    Attributes:
        watch: as given.
        kept: the points by key, in the order in which they were reached.
        changes: the changes at the points.
    """

    def __init__(self, watch: PassRecorder, request: Request) -> None:
        self.watch = watch
        self.kept: dict[str, Kept] = {}
        self.changes = PointChanges[Any](request, lambda array: widened(array.asnumpy()), native_like)

    def at(self, key: str, array: Any, *, cut: bool = False) -> Any:
        """Return the array that goes on in place of the one that was computed.

        Args:
            key: the point's key.
            array: the computed array.
            cut: cut the graph there, so that nothing below is differentiated.
        """
        value = self.changes.value(key, array)
        if cut or self.changes.overrides(key):
            return self._keep_leaf(key, value, None, value.asnumpy())
        if self.changes.edits(key):
            with import_mxnet().autograd.pause():
                leaf, copy = value.copy(), value.copy()
            return self._keep_leaf(key, leaf, value, copy)
        return self._keep_connected(key, value)

    def expect_unwritten(self, key: str) -> None:
        """Refuse a point into whose value the model wrote outside of the graph, where MXNet's gradient takes no notice.

        Raises:
            UnsupportedError: its values are no longer what they were.
        """
        kept = self.kept[key]
        if not same_bits(kept.copy, kept.gone_on):
            found = next((lookup for lookup in self.watch.lookups if lookup.key == key), None)
            where = f"the output of the lookup {found}" if found is not None else f"what was at the point {key!r}"
            raise UnsupportedError(
                f"the model writes into {where} while it is not recorded, so that MXNet's gradient takes no notice of it: "
                "expected a new array, such as rows * mask or where(...)"
            )

    def _keep_leaf(self, key: str, leaf: Any, below: Any, copy: Any) -> Any:
        mx = import_mxnet()
        # As `attach_grad` does, which cuts it off what it was computed from; no memory is taken until a gradient is written.
        mx.autograd.mark_variables([leaf], [mx.nd.empty(leaf.shape, leaf.ctx, leaf.dtype)])
        self.kept[key] = Kept(leaf, leaf, copy, below)
        return leaf

    def _keep_connected(self, key: str, array: Any) -> Any:
        """Mark a zero that is added to the array: marking the array itself would cut the graph below it."""
        mx = import_mxnet()
        with mx.autograd.pause():
            zeros = -mx.nd.zeros(array.shape, ctx=array.ctx, dtype=array.dtype)  # -0.0, which changes no bit, +0.0 does
            zeros = zeros.as_np_ndarray() if isinstance(array, mx.np.ndarray) else zeros
            zeros.attach_grad()
        gone_on = array + zeros
        with mx.autograd.pause():
            self.kept[key] = Kept(zeros, gone_on, gone_on.copy())
        return gone_on
