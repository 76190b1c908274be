"""Attention's gradient in few passes over its weights: of all tensors of a pass these are the largest, one number a pair."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_array_ops, gen_linalg_ops, gen_math_ops

from embgrad_tensorflow.following import DTYPES, Follower, is_constant
from embgrad_tensorflow.leangradients import by_rows
from embgrad_tensorflow.onehot import attribute

__all__ = ["Attentions"]


@dataclass(frozen=True, eq=False)
class _Made:
    """Scores, or their softmax.

    Attributes:
        steps: what the operations on the way from the source gave; the last are they.
        source: what they come from, before it was scaled.
        scale: does to a tensor what was done to it; constants may have been added.
    """

    steps: tuple[weakref.ref[Any], ...]
    source: Any
    scale: Callable[[Any], Any] = field(default=lambda tensor: tensor)

    def are(self, tensor: Any) -> bool:
        """Whether this tensor is them."""
        return self.steps[-1]() is tensor

    def then(self, tensor: Any) -> _Made:
        """What the next operation gave."""
        return replace(self, steps=(*self.steps, weakref.ref(tensor)))

    def is_by_way_of(self, tensors: Sequence[Any]) -> bool:
        """Whether one of these is a step."""
        return any(step() is tensor for step in self.steps for tensor in tensors)


@dataclass(frozen=True, eq=False)
class _Product:
    """The product of weights, (…, query, key), and values, (…, key, dim), in whatever order its axes are.

    Attributes:
        axis: that of its dim; `values_axis` is the values'.
        of_weights: gives the gradient with respect to the weights from that of the product, and the values.
        of_values: gives that with respect to the values from the weights, and that of the product.
    """

    axis: int
    values_axis: int
    of_weights: Callable[[Any, Any], Any]
    of_values: Callable[[Any, Any], Any]


class Attentions(Follower):
    """Follows attention through the operations of a forward pass, and gives the tapes its gradient as that of one operation.

    With P = softmax(x / c + mask) and O = P · V, the gradient of x is P ∘ (∂L/∂O · Vᵀ − s) / c, where s, the sum of each row of
    P ∘ ∂L/∂P, is also that of each row of O ∘ ∂L/∂O (Dao et al., 2022, arXiv:2205.14135, appendix B), which is as narrow as the
    values. As another column of these it is taken off within the product, and so is 1 / c multiplied: one pass over the
    weights is left of five. Where anything else comes between the softmax and the product, such as dropout in training, or a
    point at which gradients are read, the operations keep their own gradients.

    What a softmax was taken of is kept until the product, or another softmax, and no longer: TensorFlow would drop it.
    """

    def __init__(self, *, traced: bool = False) -> None:
        super().__init__(traced=traced)
        self._scores: _Made | None = None
        self._weights: _Made | None = None
        self.handlers = {
            "Add": self._add,
            "AddV2": self._add,
            "BatchMatMulV2": self._matrices,
            "Einsum": self._einsum,
            "Identity": self._pass_on,
            "MatMul": self._matrices,
            "Mul": self._multiply,
            "RealDiv": self._divide,
            "Softmax": self._soften,
            "Sub": self._subtract,
        }

    def stop(self) -> None:
        """See `Follower.stop`."""
        super().stop()
        self._scores = self._weights = None

    def forget(self, outputs: Sequence[Any]) -> None:
        """See `Follower.forget`."""
        super().forget(outputs)
        if self._scores is not None and self._scores.is_by_way_of(outputs):
            self._scores = None
        if self._weights is not None and self._weights.is_by_way_of(outputs):
            self._weights = None

    def _multiply(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        for source, factor in (inputs, inputs[::-1]):
            self._scaled(source, factor, gen_math_ops.mul, outputs[0])

    def _divide(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        self._scaled(inputs[0], inputs[1], gen_math_ops.real_div, outputs[0])

    def _scaled(self, source: Any, factor: Any, by: Callable[[Any, Any], Any], output: Any) -> None:
        """By a single number, which may be that of attention's scores."""
        if factor._shape_tuple() == () and self._is_wide(output) and is_constant(factor) and not is_constant(source):
            self._scores = _Made((weakref.ref(output),), source, lambda tensor: by(tensor, factor))

    def _add(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        for one, other in (inputs, inputs[::-1]):
            self._shifted(one, other, outputs[0])

    def _subtract(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        self._shifted(inputs[0], inputs[1], outputs[0])

    def _shifted(self, one: Any, other: Any, output: Any) -> None:
        """A mask, or a small number, is added."""
        scores = self._scores
        if scores is None or not scores.are(one) or is_constant(one) or not is_constant(other):
            return
        if output._shape_tuple() == one._shape_tuple():
            self._scores = scores.then(output)

    def _soften(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        source, scores, self._scores = inputs[0], self._scores, None
        self._weights = None
        if is_constant(source) or not self._is_wide(source):
            return
        found = scores if scores is not None and scores.are(source) else _Made((), source)
        self._weights = found.then(outputs[0])

    def _pass_on(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        """As dropout does in evaluation mode. `tf.custom_gradient` does so too, and has it forgotten, see `Follower.forget`."""
        if self._weights is not None and self._is_weights(inputs[0]):
            self._weights = self._weights.then(outputs[0])

    def _matrices(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        if not self._is_weights(inputs[0]):
            return
        single = name == "MatMul"
        if attribute(attrs, "transpose_a" if single else "adj_x"):
            return
        turned = bool(attribute(attrs, "transpose_b" if single else "adj_y"))
        if not (self._traced or _are_alike(*inputs)):  # in a trace, TensorFlow's sums find out what was spread out
            return

        def of_values(weights: Any, gradient: Any) -> Any:
            return tf.matmul(*((gradient, weights) if turned else (weights, gradient)), transpose_a=True)

        product = _Product(
            axis=-1,
            values_axis=-2 if turned else -1,
            of_weights=lambda gradient, values: tf.matmul(gradient, values, transpose_b=not turned),
            of_values=of_values,
        )
        self._complete(inputs, product, outputs[0])

    def _einsum(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        if len(inputs) != 2 or not any(map(self._is_weights, inputs)):
            return
        swapped = not self._is_weights(inputs[0])
        product = _of_equation(tf.compat.as_str(attribute(attrs, "equation")), swapped)
        if product is not None:
            self._complete(inputs[::-1] if swapped else inputs, product, outputs[0])

    def _complete(self, inputs: Sequence[Any], product: _Product, output: Any) -> None:
        """The weights have met the values."""
        (weights, values), held = inputs, self._weights
        self._weights = None
        rank = values.shape.rank
        if held is None or rank is None:
            return
        scale, with_values = held.scale, not is_constant(values)
        spread_out = [held.source] if self._traced else []  # else it would be kept

        def backward(gradient: Any) -> list[Any]:
            taken_off = gen_math_ops.neg(tf.reduce_sum(gen_math_ops.mul(gradient, output), product.axis, keepdims=True))
            wider = scale(tf.concat([gradient, taken_off], product.axis))
            beside = _with_ones(values, product.values_axis % rank)
            through = _summed_like(product.of_weights(wider, beside), weights)
            (pulled,) = by_rows("Softmax", through, [weights], lambda one, of, _: [gen_math_ops.mul(one, of[0])])
            found = [_summed_like(pulled, one) for one in spread_out] or [pulled]
            if with_values:
                found.append(_summed_like(product.of_values(weights, gradient), values))
            return found

        self.give("Attention", output, [held.source, *([values] if with_values else [])], backward)

    def _is_weights(self, tensor: Any) -> bool:
        """Whether it is those, and a tape knows of it: it is told of what an operation gave only after we are."""
        return self._weights is not None and self._weights.are(tensor) and not is_constant(tensor)

    def _is_wide(self, tensor: Any) -> bool:
        """Whether it may hold the weights of an attention, or what they are made of."""
        return not self.stopped and tensor.dtype in DTYPES and (tensor.shape.rank or 0) > 1


def _of_equation(equation: str, swapped: bool) -> _Product | None:
    """The product that an Einsum is; None where it is no attention.

    Args:
        equation: of two operands.
        swapped: whether the weights are the second.
    """
    sides, _, result = equation.replace(" ", "").partition("->")
    labels = sides.split(",")
    weights, values = labels[::-1] if swapped else labels
    features = [one for one in result if one not in weights]
    if not all(one.isalpha() and len(set(one)) == len(one) for one in (weights, values, result)):
        return None
    if len(features) != 1 or features[0] not in values or weights[-1] in result or weights[-1] not in values:
        return None
    if not {*weights[:-1]} <= {*result} or not {*values} <= {*weights, features[0]}:
        return None
    of_weights, of_values = f"{result},{values}->{weights}", f"{weights},{result}->{values}"
    return _Product(
        axis=result.index(features[0]),
        values_axis=values.index(features[0]),
        of_weights=lambda gradient, values: gen_linalg_ops.einsum([gradient, values], of_weights),
        of_values=lambda weights, gradient: gen_linalg_ops.einsum([weights, gradient], of_values),
    )


def _are_alike(weights: Any, values: Any) -> bool:
    """Whether each matrix of the one meets one of the other."""
    return bool(weights._shape_tuple()[:-2] == values._shape_tuple()[:-2])


def _with_ones(values: Any, axis: int) -> Any:
    """Values with ones as another column."""
    first = (*[slice(None)] * axis, slice(0, 1))
    return tf.concat([values, gen_array_ops.ones_like(values[first])], axis)


def _summed_like(gradient: Any, operand: Any) -> Any:
    """The gradient with respect to an operand that may have been spread out."""
    shape = operand._shape_tuple()
    if gradient._shape_tuple() == shape and None not in shape:
        return gradient
    wanted = tf.shape(operand)
    axes, _ = gen_array_ops.broadcast_gradient_args(wanted, tf.shape(gradient))
    return tf.reshape(tf.reduce_sum(gradient, axes), wanted)
