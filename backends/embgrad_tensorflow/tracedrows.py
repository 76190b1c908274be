"""Gradients of which few rows are not zero, in a graph that is being traced: where one position alone is read.

They are those of a slice that takes one position, and of an output of which the objective asks for some rows alone.

There are no values yet to find zeros in, and only what follows from these is known. Sizes that are not known yet are
taken to be those of an operation's result: should an operand turn out to have one row there for all, then rows are looked up
that it does not have, or put where it has none, which fails on a CPU, and the trace does not serve. That is sure where each
example has a row: that of the last of several lies behind all that such an operand has. So nothing of this is done for other
rows, nor where there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from embgrad_tensorflow.fewrows import REDUCING, ROWWISE, Compute, FewRows, Rows, sizes, taken

__all__ = ["TracedRows"]

#: Gives the gradient with respect to an operand from that of the result and both operands.
Way = Callable[[Any, Any, Any], Any]

#: For operations with two operands those of both; None where it is left to TensorFlow. Its own functions find out at each run
#: what was spread out.
WAYS: Final[Mapping[str, tuple[Way, Way | None]]] = {
    "AddV2": (lambda gradient, x, y: gradient, lambda gradient, x, y: gradient),
    "Mul": (lambda gradient, x, y: gradient * y, lambda gradient, x, y: x * gradient),
    "RealDiv": (lambda gradient, x, y: gradient / y, None),
    "SquaredDifference": (lambda gradient, x, y: 2.0 * gradient * (x - y), None),
    "Sub": (lambda gradient, x, y: gradient, lambda gradient, x, y: -gradient),
}


class TracedRows(FewRows):
    """What is known of the gradients of one pullback that is traced.

    Args:
        known: gradients of which it is known from the beginning which rows are not zero, one of each example.
    """

    names = ROWWISE | {"AddV2", "StridedSlice"}

    def __init__(self, known: Iterable[tuple[Any, Rows]] = ()) -> None:
        super().__init__()
        self._tensors: dict[int, tuple[Any, Rows]] = {}
        self._on_a_cpu = not tf.config.list_logical_devices("GPU")
        if self._on_a_cpu:
            for tensor, rows in known:
                self._know(tensor, rows)

    def gradients(
        self,
        name: str,
        attributes: Callable[[], Mapping[str, Any]],
        gradient: Any,
        operands: tuple[Sequence[Any], Sequence[Any] | None],
        skipped: frozenset[int],
        compute: Compute,
    ) -> Sequence[Any] | None:
        """See `FewRows.gradients`."""
        if name != "StridedSlice":
            without = name in WAYS and any(
                way is None for number, way in enumerate(WAYS[name]) if number not in skipped
            )
            return None if without else super().gradients(name, attributes, gradient, operands, skipped, compute)
        found = compute(gradient, *operands)
        place = _position(attributes(), operands[0])
        if place is not None and self._on_a_cpu:
            length = tf.shape(found[0])[:2]
            numbers = tf.range(length[0]) * length[1] + place
            self._know(found[0], Rows(numbers[:, None], tf.reshape(gradient, sizes((-1, gradient.shape[-1])))))
        return found

    def _know(self, tensor: Any, rows: Rows) -> None:
        self._tensors[id(tensor)] = (tensor, rows)

    def _rows(self, gradient: Any) -> Rows | None:
        if id(gradient) in self._tensors:
            return self._tensors[id(gradient)][1]
        if gradient.op.type != "AddN":
            return None
        parts = [self._tensors[id(one)][1] for one in gradient.op.inputs if id(one) in self._tensors]
        if len(parts) < len(gradient.op.inputs) or any(one.places is not parts[0].places for one in parts):
            return None
        found = Rows(parts[0].places, tf.add_n([one.values for one in parts]))
        self._know(gradient, found)
        return found

    def _computed(
        self,
        name: str,
        rows: Rows,
        operands: tuple[Sequence[Any], Sequence[Any] | None],
        widths: Sequence[int | None],
        skipped: frozenset[int],
        compute: Compute,
    ) -> Any:
        """See `FewRows._computed`."""
        if name in REDUCING:
            spread = tf.tile(rows.values, [1, widths[0]])
            return [spread / tf.cast(widths[0], spread.dtype) if name == "Mean" else spread, None]
        if name not in WAYS:
            return super()._computed(name, rows, operands, widths, skipped, compute)
        x, y = (
            one if width is None else taken(one, rows.places, width)
            for one, width in zip(operands[0], widths, strict=True)
        )
        dim, found = rows.values.shape[-1], []
        for number, (way, width) in enumerate(zip(WAYS[name], widths, strict=True)):
            one = None if number in skipped or way is None else way(rows.values, x, y)
            found.append(one if one is None or width == dim else tf.reduce_sum(one, -1, keepdims=True))
        return found

    def _spread(self, values: Any, rows: Rows, like: Any, width: int) -> Any:
        """See `FewRows._spread`."""
        lengths = tf.shape(like)[:-1]
        whole = tf.scatter_nd(rows.places, values, tf.concat([tf.reduce_prod(lengths, keepdims=True), [width]], 0))
        tensor = tf.reshape(whole, tf.concat([lengths, [width]], 0))
        tensor.set_shape((*like.shape[:-1], width))
        self._know(tensor, Rows(rows.places, values))
        return tensor


def _position(said: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    """The place p of a slice `tensor[:, p]` or `tensor[:, p, :]`; None of another."""
    tensor, *spec = inputs
    begin, end, strides = (None if one is None else tf.get_static_value(one) for one in spec)
    if tensor is None or tensor.shape.rank != 3 or tensor.shape[-1] is None or begin is None or end is None:
        return None
    whole = 0b101 if len(begin) == 3 else 0b1  # the axes that are taken whole, the first and the last
    one_position = len(begin) in (2, 3) and said.get("shrink_axis_mask") == 0b10 and begin[1] >= 0
    all_else = said.get("begin_mask", 0) & said.get("end_mask", 0) & whole == whole
    others = said.get("ellipsis_mask") or said.get("new_axis_mask") or strides is None or any(strides != 1)
    return int(begin[1]) if one_position and all_else and not others else None
