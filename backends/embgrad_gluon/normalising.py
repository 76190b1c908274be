"""Layer norm's gradient in a few passes over memory: MXNet's own takes ten times its forward pass on a CPU."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from embgrad.interception import Interception
from embgrad_gluon.graph import tape_name
from embgrad_gluon.importing import import_mxnet
from embgrad_gluon.operators import Operation

__all__ = ["Needed", "layer_norm"]

# What every backward pass ends in, of `autograd.grad`, `autograd.backward` and an array's own `backward`.
_passes = Interception(lambda: import_mxnet().base._LIB, "MXAutogradBackwardEx")

#: Of fewer numbers MXNet's own gradient takes no longer than a call of Python's out of MXNet does.
FEWEST: Final = 1 << 14

#: MXNet computes the mean and the deviation of other dtypes in that dtype, and its gradient in another.
DTYPES: Final = (np.float32, np.float64)


class Needed:
    """Tells the norms of one forward pass until when a pullback needs what they keep.

    Attributes:
        given_up: whether the pullback that runs is the last. A model or an objective that has made a backward pass of its own
            may have others that still wait, of which nothing tells which is which: then nothing is given up.
    """

    def __init__(self) -> None:
        self.given_up = False
        self._passed = False

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Backward passes that this thread makes meanwhile are the user's."""

        def passing(original: Callable[..., Any], *args: Any) -> Any:
            self._passed = True
            return original(*args)

        with _passes.by(passing):
            yield

    def give_up(self) -> None:
        """What is recorded is forgotten in the pullback that comes now."""
        self.given_up = not self._passed


def layer_norm(
    operation: Operation, proceed: Callable[[], Any], *, is_wanted: Callable[[Any], bool], needed: Needed
) -> Any:
    """What the operator gives, bit for bit, with a gradient of ours where that of its input alone is asked for.

    Args:
        operation: LayerNorm.
        proceed: runs it.
        is_wanted: whether the gradient with respect to an array is asked for.
        needed: tells in a pullback whether there may be another.
    """
    if not _serves(operation, is_wanted):
        return proceed()
    mx, attributes = import_mxnet(), operation.attributes
    attributes["output_mean_var"] = True
    with mx.autograd.pause():
        rows, mean, deviation = proceed()
    array, scale = operation.inputs[:2]
    return _function()(rows, (array, mean, deviation, scale), needed)(array)


def _serves(operation: Operation, is_wanted: Callable[[Any], bool]) -> bool:
    array, *others = operation.inputs
    axis = int(operation.attributes.get("axis", -1))
    return (
        import_mxnet().autograd.is_recording()
        and array.size >= FEWEST
        and array.dtype in DTYPES
        and array.ctx.device_type == "cpu"
        and axis in (-1, array.ndim - 1)
        and operation.out is None
        and str(operation.attributes.get("output_mean_var", False)) in ("False", "0")
        and tape_name(array) is not None  # MXNet loses what its functions give to an array that is marked itself
        and not any(is_wanted(one) or tape_name(one) is not None for one in others)
    )


@functools.cache
def _function() -> type:
    mx = import_mxnet()

    class LayerNorm(mx.autograd.Function):  # type: ignore[misc, name-defined]
        """Layer norm over the last axis, after Ba, Kiros and Hinton, 2016 (arXiv:1607.06450).

        Of y = scale · x̂ + shift, where x̂ = (x − mean) / deviation, and q = scale · ∂L/∂y, the gradient is
        ∂L/∂x = (q − mean(q) − x̂ · mean(q · x̂)) / deviation.
        """

        def __init__(self, rows: Any, kept: tuple[Any, ...], needed: Needed) -> None:
            super().__init__()
            self._rows = rows
            self._kept: tuple[Any, ...] | None = kept
            self._needed = needed

        def forward(self, _array: Any) -> Any:
            rows, self._rows = self._rows, None
            return rows

        def backward(self, cotangent: Any) -> Any:
            assert self._kept is not None, "what a pullback needs is given up in the last"
            normed, mean, deviation, scale = (one.asnumpy() for one in self._kept)
            if self._needed.given_up:
                self._kept = None
            scaled = cotangent.asnumpy()
            normed -= mean
            normed /= deviation
            scaled *= scale
            along = np.einsum("...i,...i->...", scaled, normed)[..., None] / scaled.shape[-1]
            scaled -= scaled.mean(-1, keepdims=True)
            normed *= along
            scaled -= normed
            scaled /= deviation
            return mx.nd.from_numpy(scaled)

    return LayerNorm
