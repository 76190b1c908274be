"""Gradients of which only few rows are not zero: what each row gives by itself is computed for those, and is zero elsewhere.

An objective that reads one position of each example, as a pooled output does, has such gradients from the last attention on,
and TensorFlow multiplies their zeros with whole matrices. A row of zeros gives zeros here whatever it is multiplied by; an
infinite number there, on which the objective does not depend, makes no NaN.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_array_ops

from embgrad_tensorflow.bytensor import ByTensor

__all__ = ["REDUCING", "ROWWISE", "Compute", "FewRows", "Rows", "sizes", "taken"]

#: Gradients with fewer entries are not looked through: that would take as long as it saves.
LEAST: Final = 1 << 16

#: Of so many rows one may be other than zero.
FEW: Final = 4

#: So many entries are looked at first: of a gradient that has few rows, most are zero.
SAMPLES: Final = 32

#: Operations with one operand that give each row by that of the operand alone.
UNARY: Final = frozenset({"Erf", "Erfc", "Neg", "Relu", "Rsqrt", "Sigmoid", "Softmax", "Sqrt", "Square", "Tanh"})

#: Those with two.
BINARY: Final = frozenset({"Mul", "RealDiv", "SquaredDifference", "Sub"})

#: Those that reduce rows.
REDUCING: Final = frozenset({"Mean", "Sum"})

#: Those that compute nothing, and may leave the rows as they are.
PASSING: Final = frozenset({"Reshape", "Transpose"})

#: Those with a matrix; with one for each example rows are not each by itself.
PRODUCTS: Final = frozenset({"BatchMatMulV2", "MatMul"})

ROWWISE: Final = UNARY | BINARY | REDUCING | PASSING | PRODUCTS

#: Gives the gradients with respect to an operation's operands from that of its result, the operands and the results.
Compute = Callable[[Any, Sequence[Any], Sequence[Any] | None], Sequence[Any]]

Shape = tuple[Any, ...]


@dataclass(frozen=True)
class Rows:
    """The rows of a tensor that are not zero, its axes but the last counted as one.

    Attributes:
        places: their numbers, of shape (row, 1).
        values: what they hold, of shape (row, dim).
    """

    places: Any
    values: Any


class FewRows:
    """What is known of the gradients of one pullback.

    Attributes:
        names: the operations whose gradients may be computed for some rows alone.
    """

    names = ROWWISE | {"GatherNd"}

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Rows]] = {}
        self._full: ByTensor[bool] = ByTensor()

    def gradients(
        self,
        name: str,
        attributes: Callable[[], Mapping[str, Any]],
        gradient: Any,
        operands: tuple[Sequence[Any], Sequence[Any] | None],
        skipped: frozenset[int],
        compute: Compute,
    ) -> Sequence[Any] | None:
        """The gradients with respect to an operation's operands; None where this saves nothing, or is not known to be the same.

        Args:
            name: the operation's, one of `names`.
            attributes: tells its attributes.
            gradient: that of its only result.
            operands: its operands and its results, None for what its gradient does not depend on.
            skipped: the operands whose gradients nobody asked for.
            compute: computes them as ever.
        """
        if name == "GatherNd":
            return self._gathered(gradient, operands, compute)
        rows = self._rows(gradient)
        shape = gradient._shape_tuple()
        if rows is None or not shape or shape[-1] is None:
            return None
        if name in PASSING:
            return self._passed(name, rows, gradient, operands, compute)
        inputs, outputs = operands
        widths = _widths(name, attributes(), shape, inputs, skipped)
        if widths is None:
            return None
        found = self._computed(name, rows, (inputs, outputs), widths, skipped, compute)
        found = found if isinstance(found, (list, tuple)) else [found]  # as functions for a single operand give it
        return [
            None
            if number in skipped or width is None or one is None
            else self._spread(one, rows, gradient if operand is None else operand, width)
            for number, (one, operand, width) in enumerate(zip(found, inputs, widths, strict=True))
        ]

    def went_on(self, gradient: Any, found: Any) -> None:
        """Gradients that come of one that has been looked through in vain are not looked through again.

        Args:
            gradient: that of an operation's result.
            found: those with respect to its operands, None for others.
        """
        if self._full.get(gradient):
            for one in found if isinstance(found, (list, tuple)) else [found]:
                if isinstance(one, tf.Tensor):
                    self._full[one] = True

    def _computed(
        self,
        name: str,
        rows: Rows,
        operands: tuple[Sequence[Any], Sequence[Any] | None],
        widths: Sequence[int | None],
        skipped: frozenset[int],
        compute: Compute,
    ) -> Any:
        """The gradients with respect to the operands' rows; `widths` are their lengths."""
        inputs, outputs = operands
        few = [
            one if width is None or one is None else taken(one, rows.places, width)
            for one, width in zip(inputs, widths, strict=True)
        ]
        if name in REDUCING:
            few[1] = tf.constant([1])
        dim = rows.values.shape[-1]
        return compute(rows.values, few, None if outputs is None else [taken(one, rows.places, dim) for one in outputs])

    def _gathered(
        self, gradient: Any, operands: tuple[Sequence[Any], Sequence[Any] | None], compute: Compute
    ) -> Sequence[Any]:
        """Of rows that were taken out of a tensor, as an objective takes those that it reads: the others are zero."""
        found = compute(gradient, *operands)
        whole, numbers = found[0], operands[0][1]
        shape: Shape = whole._shape_tuple() if isinstance(whole, tf.Tensor) else ()
        if len(shape) == 3 and numbers._shape_tuple()[1:] == (2,) and self._may_have_few(whole):
            places = numbers[:, :1] * tf.constant(shape[1], numbers.dtype) + numbers[:, 1:]
            if FEW * len(gradient) <= shape[0] * shape[1]:
                self._know(whole, Rows(tf.cast(places, tf.int32), gradient))
        return found

    def _passed(
        self,
        name: str,
        rows: Rows,
        gradient: Any,
        operands: tuple[Sequence[Any], Sequence[Any] | None],
        compute: Compute,
    ) -> Sequence[Any]:
        """The gradients where rows stay rows: where they keep their length, and stay in order."""
        inputs, outputs = operands
        found = compute(gradient, inputs, outputs)
        shape = gradient._shape_tuple()
        length = (found[0] if inputs[0] is None else inputs[0])._shape_tuple()
        order = tf.get_static_value(inputs[1]) if name == "Transpose" else np.arange(len(shape))
        if length and length[-1] == shape[-1] and order is not None and (order == np.arange(len(shape))).all():
            self._know(found[0], rows)
        return found

    def _spread(self, values: Any, rows: Rows, like: Any, width: int) -> Any:
        """A tensor of another one's shape, of another width, that holds these rows, and zeros."""
        shape = (*like._shape_tuple()[:-1], width)
        whole = gen_array_ops.scatter_nd(rows.places, values, sizes((math.prod(shape[:-1]), width)))
        tensor = gen_array_ops.reshape(whole, sizes(shape))
        self._know(tensor, Rows(rows.places, values))
        return tensor

    @staticmethod
    def _may_have_few(gradient: Any) -> bool:
        """Whether it pays to know."""
        shape = gradient._shape_tuple()
        return math.prod(shape[:-1]) >= FEW and math.prod(shape) >= LEAST and "CPU" in gradient.backing_device

    def _know(self, tensor: Any, rows: Rows) -> None:
        key = id(tensor)
        self._known[key] = (weakref.ref(tensor, lambda _: self._known.pop(key, None)), rows)

    def _rows(self, gradient: Any) -> Rows | None:
        """The rows of a gradient that are not zero, if these are few."""
        if id(gradient) in self._known:
            reference, rows = self._known[id(gradient)]
            if reference() is gradient:
                return rows
        if self._full.get(gradient) or not self._may_have_few(gradient):
            return None
        shape = gradient._shape_tuple()
        count = math.prod(shape[:-1])
        entries = np.asarray(gradient).reshape(count, shape[-1])  # shares the memory
        if not _may_be_few(entries):
            self._full[gradient] = True
            return None
        places = np.flatnonzero(entries.any(axis=1))
        if not 0 < FEW * len(places) <= count:
            return None
        numbers = tf.constant(places[:, None], tf.int32)
        found = Rows(numbers, taken(gradient, numbers, shape[-1]))
        self._know(gradient, found)
        return found


def _may_be_few(entries: np.ndarray) -> bool:
    """Told by some entries, each of another row and column."""
    count, dim = entries.shape
    numbers = np.arange(SAMPLES)
    # an odd step, or examples of a length that is a power of two would show the same position only
    some = entries[numbers * (count // SAMPLES | 1) % count, numbers * 37 % dim]
    return bool(2 * np.count_nonzero(some) <= SAMPLES)


def _widths(
    name: str, said: Mapping[str, Any], shape: Shape, inputs: Sequence[Any], skipped: frozenset[int]
) -> list[int | None] | None:
    """For each operand the length of its rows, None for one that has none; None where the rows are not each by itself.

    Args:
        name: the operation's.
        said: its attributes.
        shape: that of its result; like the operands' with None for what is not known while a graph is traced.
        inputs: its operands.
        skipped: those whose gradients nobody asked for.
    """
    shapes: list[Any] = [None if one is None else one._shape_tuple() for one in inputs]
    first = shapes[0]
    if name in UNARY:
        return [shape[-1]] if first is None or _are_alike(first, shape) else None
    if not first and name in REDUCING | PRODUCTS:
        return None
    if name in PRODUCTS:
        turned = said.get("transpose_a") or said.get("adj_x"), said.get("transpose_b") or said.get("adj_y")
        fits = not turned[0] and 1 in skipped and shapes[1] is not None and len(shapes[1]) == 2
        width = shapes[1][1 if turned[1] else 0] if fits else None
        return None if width is None else [width, None]
    if name in REDUCING:
        axes: Any = None if inputs[1] is None else tf.get_static_value(inputs[1])
        fits = axes is not None and bool(said.get("keep_dims")) and _are_alike(first[:-1], shape[:-1])
        by_rows = fits and {int(axis) % len(shape) for axis in axes.ravel()} == {len(shape) - 1}
        return [first[-1], None] if by_rows and first[-1] is not None else None
    found: list[int | None] = []
    for number, one in enumerate(shapes):
        if one and one[-1] is not None and _are_alike(one[:-1], shape[:-1]):
            found.append(one[-1])
        elif one is not None and len(one) < 2 and number in skipped:
            found.append(None)
        else:
            return None
    return found


def _are_alike(one: Shape, other: Shape) -> bool:
    """Whether two shapes are the same, as far as they are known."""
    if len(one) != len(other):
        return False
    return all(size == of or (None in (size, of) and 1 not in (size, of)) for size, of in zip(one, other, strict=True))


def taken(tensor: Any, places: Any, width: int) -> Any:
    """Some rows of a tensor, (row, width)."""
    if tensor is None:
        return None
    return gen_array_ops.gather_nd(gen_array_ops.reshape(tensor, sizes((-1, width))), places)


def sizes(shape: Sequence[int]) -> Any:
    """A shape as an operation takes it."""
    return tf.constant(shape, tf.int32)
