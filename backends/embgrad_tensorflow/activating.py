"""The gradient of activation functions that multiply a tensor by a function of itself: one tensor is kept for it, not several."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager import record

from embgrad_tensorflow.bytensor import ByTensor
from embgrad_tensorflow.following import DTYPES, Follower, is_constant
from embgrad_tensorflow.leangradients import by_rows

__all__ = ["Activations"]

#: So many operations are followed from a tensor on: an activation function takes ten.
MOST: Final = 32

#: A number, or a tensor of one, and the tensor that it multiplies; None stands for one of ones.
Slope = tuple[Any, Any]

#: Gives an operation's derivative with respect to an operand from its operands and its result.
Partial = Callable[[Sequence[Any], Any], Slope]

#: Gives what stands for a tensor: itself, or some of its rows.
Of = Callable[[Any], Any]

#: By operation its derivatives with respect to each operand; None where only a number may stand there.
PARTIALS: Final[Mapping[str, Sequence[Partial | None]]] = {
    "Add": (lambda given, gave: (1.0, None), lambda given, gave: (1.0, None)),
    "AddV2": (lambda given, gave: (1.0, None), lambda given, gave: (1.0, None)),
    "Erf": (lambda given, gave: (2 / math.sqrt(math.pi), tf.exp(-tf.square(given[0]))),),
    "Erfc": (lambda given, gave: (-2 / math.sqrt(math.pi), tf.exp(-tf.square(given[0]))),),
    "Exp": (lambda given, gave: (1.0, gave),),
    "Mul": (lambda given, gave: _multiplied(given[1]), lambda given, gave: _multiplied(given[0])),
    "Neg": (lambda given, gave: (-1.0, None),),
    "Pow": (lambda given, gave: (given[1], tf.pow(given[0], given[1] - 1)), None),
    "RealDiv": (lambda given, gave: _divided(given[1]), lambda given, gave: (-1.0, gave / given[1])),
    "Sigmoid": (lambda given, gave: (1.0, gave * (1.0 - gave)),),
    "Softplus": (lambda given, gave: (1.0, tf.sigmoid(given[0])),),
    "Square": (lambda given, gave: (2.0, given[0]),),
    "Sub": (lambda given, gave: (1.0, None), lambda given, gave: (-1.0, None)),
    "Tanh": (lambda given, gave: (1.0, 1.0 - tf.square(gave)),),
}

#: Those that keep both operands for their gradient.
GATES: Final = frozenset({"Mul", "RealDiv"})


@dataclass(frozen=True, eq=False)
class _Function:
    """A function of each entry of a tensor by itself.

    Attributes:
        source: that tensor.
        partials: the derivatives of the last operation on the way from it; none where this is the tensor itself.
        given: that operation's operands, those that are numbers as `_number` has them.
        gave: its result.
        made: by operand what function of the source it is; None of a number.
        steps: how many operations there are on the way, counted by each way that there is.
    """

    source: Any
    partials: Sequence[Partial | None] = ()
    given: Sequence[Any] = ()
    gave: Any = None
    made: Sequence[_Function | None] = ()
    steps: int = 0

    def slope(self, of: Of) -> Slope:
        """The derivative."""
        if not self.made:
            return 1.0, None
        given = [one if made is None else of(one) for one, made in zip(self.given, self.made, strict=True)]
        parts = [
            _times(partial(given, of(self.gave)), made.slope(of))
            for partial, made in zip(self.partials, self.made, strict=True)
            if partial is not None and made is not None
        ]
        return parts[0] if len(parts) == 1 else (1.0, _value(parts[0]) + _value(parts[1]))

    def tensors(self) -> list[Any]:
        """What the derivative may be made of."""
        if not self.made:
            return [self.source]
        return [self.gave, *(tensor for made in self.made if made is not None for tensor in made.tensors())]


class Activations(Follower):
    """Follows functions of each entry by itself through the operations of a pass that is traced; where one is multiplied by
    another of the same tensor, or divided, it gives the tapes the gradient of what they give as that of one operation.

    So are GELU (Hendrycks and Gimpel, 2016, arXiv:1606.08415), SiLU (Elfwing et al., 2017, arXiv:1702.03118) and Mish written.
    For a product's own gradient both factors are kept, and what these were made of, each as large as the widest layer. With the
    derivative y′ as one tensor, ∂L/∂x is ∂L/∂y ∘ y′: a graph computes that as soon as it has x, and keeps nothing else.
    """

    def __init__(self) -> None:
        super().__init__(traced=True)
        self._known: ByTensor[_Function] = ByTensor()
        self._completed: list[_Function] = []
        self.handlers = dict.fromkeys(PARTIALS, self._followed)

    def stop(self) -> None:
        """See `Follower.stop`."""
        super().stop()
        self._known.clear()

    def forget(self, outputs: Sequence[Any]) -> None:
        """See `Follower.forget`."""
        by_way = [
            one.gave
            for one in self._completed
            if any(tensor is output for tensor in one.tensors() for output in outputs)
        ]
        super().forget([*outputs, *by_way])
        if any(self._known.get(output) is not None for output in outputs):
            self._known.clear()  # what it is a part of is not looked for

    def passed(self) -> None:
        """See `Follower.passed`."""
        super().passed()
        self._completed.clear()

    def _followed(self, name: str, inputs: Any, attrs: Any, outputs: Any) -> None:
        if self.stopped or outputs[0].dtype not in DTYPES:
            return
        numbers = [_number(one) for one in inputs]
        made = [
            None if number is not None else self._function(one) for one, number in zip(inputs, numbers, strict=True)
        ]
        functions = [one for one in made if one is not None]
        if not functions or len(functions) < numbers.count(None):
            return
        steps, partials = 1 + sum(one.steps for one in functions), PARTIALS[name]
        of_one = all(one.source is functions[0].source for one in functions)
        numbers_only = any(partial is None and one is not None for partial, one in zip(partials, made, strict=True))
        if steps > MOST or numbers_only or not of_one:
            return
        given = [one if number is None else number for one, number in zip(inputs, numbers, strict=True)]
        found = _Function(functions[0].source, partials, given, outputs[0], made, steps)
        self._known[outputs[0]] = found
        if name in GATES and len(functions) > 1:
            self._complete(found)

    def _complete(self, function: _Function) -> None:
        """A function has been multiplied by another of the same tensor, or divided."""
        tensors = list({id(one): one for one in function.tensors()}.values())
        with record.stop_recording():
            whole = _value(function.slope(lambda tensor: tensor))  # where some rows are enough, the graph drops it

        def compute(gradient: Any, operands: Sequence[Any], _: Any) -> Sequence[Any]:
            rows = {id(tensor): one for tensor, one in zip(tensors, operands, strict=True)}
            are_whole = operands[0] is tensors[0]
            slope = whole if are_whole else _value(function.slope(lambda tensor: rows[id(tensor)]))
            return [gradient * slope, *[None] * (len(tensors) - 1)]

        def backward(gradient: Any) -> Sequence[Any]:
            return by_rows("Activation", gradient, tensors, compute)[:1]

        self._completed.append(function)
        self.give("Activation", function.gave, [function.source], backward)

    def _function(self, tensor: Any) -> _Function | None:
        """What function of which tensor it is, of itself if of no other; None where a tape does not know of it."""
        return None if is_constant(tensor) else self._known.get(tensor) or _Function(tensor)


def _number(tensor: Any) -> Any:
    """The number that a constant of no axes is, or that, where it is known only when the graph is run; None of others."""
    if tensor.shape.rank != 0 or not is_constant(tensor):
        return None
    known = tf.get_static_value(tensor)
    return tensor if known is None else float(known)


def _multiplied(other: Any) -> Slope:
    """The derivative of a product with respect to the one operand."""
    return (other, None) if _is_number(other) else (1.0, other)


def _divided(by: Any) -> Slope:
    """The derivative of a quotient with respect to what is divided."""
    return (1.0 / by, None) if _is_number(by) else (1.0, tf.math.reciprocal(by))


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or value.shape.rank == 0


def _times(one: Slope, other: Slope) -> Slope:
    tensors = [tensor for _, tensor in (one, other) if tensor is not None]
    return one[0] * other[0], tensors[0] * tensors[1] if len(tensors) == 2 else tensors[0] if tensors else None


def _value(slope: Slope) -> Any:
    number, tensor = slope
    if tensor is None:
        return number
    return tensor if isinstance(number, float) and number == 1.0 else number * tensor
