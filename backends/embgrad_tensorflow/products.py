"""Products with weights of no module of their own are points by the names of the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import tensorflow as tf

from embgrad.backend import PassRecorder
from embgrad.toolkit import ModuleCalls, split_last_factor
from embgrad_tensorflow.modules import is_floating
from embgrad_tensorflow.onehot import ByTensor, OneHots
from embgrad_tensorflow.operations import PRODUCTS, SAME_TABLE, SLICES
from embgrad_tensorflow.walk import Tables

__all__ = ["PARTS", "READING", "Products"]

#: The operations whose results are parts of a weight, or the whole in another form.
PARTS: Final = ("Cast", "Identity", "Reshape", "Slice", "Split", "Squeeze", "StridedSlice", "Transpose", "Unpack")

#: The operations whose operands may be variables that were not read. Lookups by the others are found in passes without products.
READING: Final = frozenset({*PRODUCTS, *PARTS} - {*SAME_TABLE, *SLICES})


class Products:
    """The products of a forward pass with weights of no module.

    Args:
        read: returns the resource whose value a tensor is; None for another tensor.
        one_hots: the one-hot rows of the pass, whose products are lookups.
    """

    def __init__(
        self,
        watch: PassRecorder,
        tables: Tables,
        replace: Callable[[str, Any], Any],
        read: Callable[[Any], Any],
        one_hots: OneHots,
    ) -> None:
        self._watch = watch
        self._calls = ModuleCalls(watch, is_floating, replace)
        self._tables = tables
        self._read = read
        self._one_hots = one_hots
        self._parts: ByTensor[Any] = ByTensor()

    def follow(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Record the parts that an operation has made of a weight, which need not be its first operand."""
        source = next((handle for operand in inputs if (handle := self._handle(operand)) is not None), None)
        if source is not None:
            for output in outputs:
                self._parts[output] = source

    def add_up(self, original: Callable[..., Any], equation: Any, *factors: Any, **kwargs: Any) -> Any:
        """Return an Einstein sum as `tf.einsum` does, in two steps where the last of several factors is a weight."""
        steps = split_last_factor(equation) if len(factors) > 2 and tf.executing_eagerly() else None
        last = factors[-1] if steps is None else _read_variables(factors[-1])
        if steps is None or self._path(last) is None:
            return original(equation, *factors, **kwargs)
        return original(steps[1], original(steps[0], *factors[:-1], **kwargs), last, **kwargs)

    def run(self, run: Callable[..., Any], context: Any, operation: str, name: Any, *args: Any) -> Any:
        """Return the result of an operation of `READING`; a product is recorded as a call of a module of the weight's name.

        Args:
            run: TensorFlow's function that runs operations; the other arguments are its own.
            args: the operands, and the names and values of the attributes.
        """
        if self._is_lookup(args):
            return run(context, operation, name, *args)
        args = tuple(map(_read_variables, args))  # TensorFlow would read them itself, where no callback sees it
        if operation not in PRODUCTS:
            return run(context, operation, name, *args)
        is_sum = operation == "Einsum"  # its factors are in a list
        factors, attributes = (args[0], args[1:]) if is_sum else (args[:2], args[2:])
        paths = [self._path(factor) for factor in factors]
        equation = attributes[1] if is_sum else None

        def product(factors: list[Any]) -> Any:
            return run(context, operation, name, *([factors] if is_sum else factors), *attributes)

        return self._calls.multiply(product, factors, paths, equation, tf.transpose)

    def _is_lookup(self, operands: Sequence[Any]) -> bool:
        factors = operands[0] if isinstance(operands[0], list) else operands
        return any(self._one_hots.indices(factor) is not None for factor in factors)

    def _path(self, factor: Any) -> str | None:
        """Return the path of a weight of no module, in which nothing was looked up; None for another factor."""
        handle = self._handle(factor)
        path = None if handle is None else self._tables.loose(handle)
        looked_up = path is not None and any(lookup.path == self._tables.path(handle) for lookup in self._watch.lookups)
        return None if looked_up else path

    def _handle(self, operand: Any) -> Any:
        handle = self._read(operand)
        return self._parts.get(operand) if handle is None else handle


def _read_variables(operand: Any) -> Any:
    """Return the values of an operand, or of several in a list, that are variables of TensorFlow or Keras 3."""
    if isinstance(operand, list):
        return list(map(_read_variables, operand))
    is_variable = isinstance(operand, tf.Variable) or hasattr(operand, "__tf_tensor__")
    return tf.convert_to_tensor(operand) if is_variable else operand
