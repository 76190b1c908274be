"""Layer norm's gradient in a few passes over memory: a tape takes it through each operation that the norm is written in."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import gen_math_ops

from embgrad_tensorflow.bytensor import ByTensor
from embgrad_tensorflow.following import DTYPES, Follower, is_constant
from embgrad_tensorflow.leangradients import by_rows

__all__ = ["Norms"]


@dataclass(frozen=True, eq=False)
class _Mean:
    """The mean of a tensor x, or that times −1.

    Attributes:
        source: x.
        axes: over which it is taken, ascending.
        tensor: the mean.
        sign: 1 or −1.
        stopped: whether `tf.stop_gradient` has passed it on.
    """

    source: weakref.ref[Any]
    axes: tuple[int, ...]
    tensor: Any
    sign: int = 1
    stopped: bool = False

    def is_of(self, tensor: Any) -> bool:
        """Whether it is the mean of this tensor, with its gradient."""
        return self.source() is tensor and not self.stopped and self.sign == 1


@dataclass(frozen=True, eq=False)
class _Centred:
    """x − mean(x), or that times a constant."""

    mean: _Mean
    constant: Any = None


@dataclass(frozen=True, eq=False)
class _Squares:
    """(x − mean(x))², or x² where there is no mean."""

    source: weakref.ref[Any]
    mean: _Mean | None


@dataclass(frozen=True, eq=False)
class _Variance:
    """mean((x − mean(x))²), or mean(x²), and a constant."""

    source: weakref.ref[Any]
    axes: tuple[int, ...]
    mean: _Mean | None


@dataclass(frozen=True, eq=False)
class _Scale:
    """1 / √variance, and that times a constant.

    Attributes:
        variance: the variance.
        tensor: 1 / √variance; √variance where that is what is divided by.
        divides: whether it is.
        constant: the constant; None where there is none.
    """

    variance: _Variance
    tensor: Any
    divides: bool = False
    constant: Any = None

    def is_for(self, mean: _Mean) -> bool:
        """Whether it goes with this mean."""
        ours = self.variance
        return ours.mean is not None and ours.axes == mean.axes and ours.source() is mean.source() is not None


@dataclass(frozen=True, eq=False)
class _Scaled:
    """x · scale."""

    scale: _Scale


@dataclass(frozen=True, eq=False)
class _Shift:
    """sign · mean · scale, and a constant."""

    mean: _Mean
    scale: _Scale
    sign: int


class Norms(Follower):
    """Follows layer norms through the operations of a forward pass, and gives the tapes the gradient of each as that of one.

    With x̂ = (x − mean(x)) / √(variance + ε) as it is (Ba, Kiros and Hinton, 2016, arXiv:1607.06450), or x̂ = x / √(mean(x²) + ε)
    (Zhang and Sennrich, 2019, arXiv:1910.07467), in the orders of operations in which Keras 2 and 3, `tf.nn` and code by hand
    have them. A norm whose scale or shift has a gradient, whose statistics are stopped, or that is written otherwise, keeps
    its operations' own.
    """

    def __init__(self, *, traced: bool = False) -> None:
        super().__init__(traced=traced)
        self._known: ByTensor[Any] = ByTensor()
        self.handlers = {
            "Add": self._add,
            "AddV2": self._add,
            "Mean": self._mean,
            "Mul": self._multiply,
            "Neg": self._negate,
            "RealDiv": self._divide,
            "Rsqrt": self._root,
            "Sqrt": self._root,
            "Square": self._square,
            "SquaredDifference": self._squared_difference,
            "StopGradient": self._stop_gradient,
            "Sub": self._subtract,
        }

    def stop(self) -> None:
        """See `Follower.stop`."""
        super().stop()
        self._known.clear()

    def forget(self, outputs: Sequence[Any]) -> None:
        """See `Follower.forget`."""
        super().forget(outputs)
        if any(self._known.get(output) is not None for output in outputs):
            self._known.clear()  # what it is a part of is not looked for

    def _mean(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        source, axes = inputs[0], tf.get_static_value(inputs[1])
        rank = source.shape.rank
        if source.dtype not in DTYPES or not rank or axes is None or not attrs[attrs.index("keep_dims") + 1]:
            return
        over = tuple(sorted(int(axis) % rank for axis in axes.ravel()))
        squares = self._part(source)
        if not isinstance(squares, _Squares):
            self._know(outputs[0], _Mean(weakref.ref(source), over, outputs[0]))
        elif squares.mean is None or squares.mean.axes == over:
            self._know(outputs[0], _Variance(squares.source, over, squares.mean))

    def _stop_gradient(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        mean = self._known.get(inputs[0])  # nothing is recorded just now
        if isinstance(mean, _Mean):
            self._know(outputs[0], replace(mean, stopped=True))

    def _square(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        part = self._part(inputs[0])
        mean = part.mean if isinstance(part, _Centred) and part.constant is None else None
        self._know(outputs[0], _Squares(weakref.ref(inputs[0]) if mean is None else mean.source, mean))

    def _squared_difference(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        """Σ(x − mean) being 0, it is all one whether the mean that is taken off here has a gradient."""
        for source, other in (inputs, inputs[::-1]):
            mean = self._part(other)
            if isinstance(mean, _Mean) and replace(mean, stopped=False).is_of(source):
                self._know(outputs[0], _Squares(mean.source, mean))

    def _negate(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        part = self._part(inputs[0])
        if isinstance(part, (_Mean, _Shift)):
            self._know(outputs[0], replace(part, sign=-part.sign))

    def _root(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        variance = self._part(inputs[0])
        if isinstance(variance, _Variance):
            self._know(outputs[0], _Scale(variance, outputs[0], divides=name == "Sqrt"))

    def _add(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        for one, other in (inputs, inputs[::-1]):
            part = self._part(one)
            if isinstance(part, (_Variance, _Shift)) and _is_known(other):
                if isinstance(part, _Shift) or outputs[0].shape == one.shape:
                    self._know(outputs[0], part)
            elif isinstance(part, _Scaled):
                self._shifted(part, self._part(other), 1, outputs[0])

    def _subtract(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        first, second = map(self._part, inputs)
        if isinstance(second, _Mean) and second.is_of(inputs[0]):
            self._know(outputs[0], _Centred(second))
        elif isinstance(second, _Shift) and isinstance(first, _Scaled):
            self._shifted(first, second, -1, outputs[0])
        elif isinstance(second, _Shift) and _is_known(inputs[0]):
            self._know(outputs[0], replace(second, sign=-second.sign))
        elif isinstance(first, _Shift) and _is_known(inputs[1]):
            self._know(outputs[0], first)

    def _multiply(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        for one, other in (inputs, inputs[::-1]):
            scale, part = self._part(other), self._part(one)
            if isinstance(part, _Centred) and part.constant is None and scale is None and _is_known(other):
                self._know(outputs[0], replace(part, constant=other))
            if not isinstance(scale, _Scale) or scale.divides:
                continue
            if scale.variance.source() is one and scale.variance.mean is None:
                self._complete(one, None, scale, outputs[0])
            elif scale.variance.source() is one:
                self._know(outputs[0], _Scaled(scale))
            elif isinstance(part, _Centred):
                self._centred(part, scale, outputs[0])
            elif isinstance(part, _Mean) and not part.stopped and scale.is_for(part):
                self._know(outputs[0], _Shift(part, scale, part.sign))
            elif part is None and scale.constant is None and _is_known(one):
                self._know(outputs[0], replace(scale, constant=one))

    def _divide(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        part, scale = map(self._part, inputs)
        if not isinstance(scale, _Scale) or not scale.divides:
            return
        if scale.variance.source() is inputs[0] and scale.variance.mean is None:
            self._complete(inputs[0], None, scale, outputs[0])
        elif isinstance(part, _Centred):
            self._centred(part, scale, outputs[0])

    def _centred(self, centred: _Centred, scale: _Scale, output: Any) -> None:
        """(x − mean) · scale."""
        if scale.is_for(centred.mean) and (centred.constant is None or scale.constant is None):
            whole = scale if centred.constant is None else replace(scale, constant=centred.constant)
            self._complete(centred.mean.source(), centred.mean, whole, output)

    def _shifted(self, scaled: _Scaled, shift: Any, sign: int, output: Any) -> None:
        """x · scale − mean · scale."""
        if isinstance(shift, _Shift) and shift.scale is scaled.scale and shift.sign * sign == -1:
            self._complete(shift.mean.source(), shift.mean, scaled.scale, output)

    def _complete(self, source: Any, mean: _Mean | None, scale: _Scale, output: Any) -> None:
        """The norm's last operation has run: what it gave comes from x at once, for all tapes."""
        statistics = [scale.tensor] if mean is None else [mean.tensor, scale.tensor]
        if source is None or output.shape != source.shape:
            return
        constants = [] if scale.constant is None else [scale.constant]
        operands, over = [source, *statistics, *constants], list(scale.variance.axes)
        is_by_rows = over == [source.shape.rank - 1]
        axes = [-1] if is_by_rows else over  # of some rows, too

        def compute(gradient: Any, operands: Sequence[Any], _: Any) -> Sequence[Any]:
            return [_gradient(gradient, operands, axes, scale, mean is not None), *[None] * (len(operands) - 1)]

        def backward(gradient: Any) -> Sequence[Any]:
            found = (
                by_rows("LayerNorm", gradient, operands, compute) if is_by_rows else compute(gradient, operands, None)
            )
            return found[:1]

        self.give("LayerNorm", output, [source], backward)

    def _part(self, tensor: Any) -> Any:
        """What a tensor is in a norm; None where it is nothing, or not recorded, as all but a mean that is stopped has to be."""
        part = self._known.get(tensor)
        if part is None or is_constant(tensor) != (isinstance(part, _Mean) and part.stopped):
            return None
        return part

    def _know(self, tensor: Any, part: Any) -> None:
        if not self.stopped:
            self._known[tensor] = part


def _is_known(constant: Any) -> bool:
    """Whether it is a constant, of which it is known what it spreads out."""
    return is_constant(constant) and constant.shape.is_fully_defined()


def _gradient(gradient: Any, operands: Sequence[Any], axes: list[int], scale: _Scale, centred: bool) -> Any:
    """Of y = constant · x̂ and q = constant · ∂L/∂y: (q − mean(q) − x̂ · mean(q · x̂)) / √(variance + ε); without mean(q) where x
    is not centred.

    Args:
        gradient: ∂L/∂y, (…, dim).
        operands: x, its mean if it is centred, what the scale's tensor is, and the constant if there is one.
        axes: over which the means are taken.
        scale: tells what the scale's tensor is.
        centred: whether x is.
    """
    source, *statistics = operands
    divided = gen_math_ops.real_div if scale.divides else gen_math_ops.mul
    by = statistics[1 if centred else 0]
    normed = divided(gen_math_ops.sub(source, statistics[0]) if centred else source, by)
    scaled = gradient if scale.constant is None else gen_math_ops.mul(gradient, statistics[-1])
    along = gen_math_ops.mul(normed, gen_math_ops.mean(gen_math_ops.mul(scaled, normed), axes, True))
    if centred:
        scaled = gen_math_ops.sub(scaled, gen_math_ops.mean(scaled, axes, True))
    return divided(gen_math_ops.sub(scaled, along), by)
