"""Keeps the gradients that a model's author gave to parts of a compiled function (`tf.custom_gradient`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import ops
from tensorflow.python.saved_model import function_deserialization

from embgrad.errors import UnsupportedError

__all__ = ["CustomGradient"]


@dataclass(frozen=True)
class CustomGradient:
    """A gradient that stands in for an operation's own.

    Attributes:
        where: the operation's name.
        function: a ConcreteFunction of the results' gradients and of what it captured; None where it is not at hand.
        takes: for each result whether the function takes its gradient.
        captured: the slots of the values of the forward pass that the function reads.
        constants: what else it captured: for each captured input a value, or None for the next of `captured`.
        why: why the function is not at hand.
    """

    where: str
    function: Any
    takes: tuple[bool, ...]
    captured: tuple[int, ...]
    constants: tuple[Any, ...]
    why: str = ""

    @classmethod
    def find(
        cls,
        node: Any,
        where: str,
        dtypes: Sequence[Any],
        slot: Callable[[str, int], int | None],
        restored: bool,
    ) -> CustomGradient:
        """The gradient that an operation names.

        Args:
            node: the operation's definition.
            where: its name.
            dtypes: those of its results.
            slot: gives the slot of a node's result, by the node's name and the number of the result.
            restored: whether the operation is of a saved model.
        """
        takes = tuple(dtype.is_floating for dtype in dtypes)
        try:
            registered = ops.gradient_registry.lookup(node.attr["_gradient_op_type"].s.decode())
            if not _is_meant(registered, node, restored):
                raise LookupError
            function = _traced(registered, dtypes)
        except LookupError:
            return cls(where, None, takes, (), (), "was not saved with the model")
        except Exception as error:  # it is the author's own code, and may never be needed
            return cls(where, None, takes, (), (), f"cannot be run by itself ({str(error).strip().splitlines()[0]})")
        captured, constants = [], []
        for value in function.captured_inputs:
            found = None if isinstance(value, ops.EagerTensor) else slot(value.op.name, value.value_index)
            if found is None and not isinstance(value, ops.EagerTensor):
                return cls(where, None, takes, (), (), f"reads {value.name!r}, which is not of the forward pass")
            constants.append(value if found is None else None)
            captured += [] if found is None else [found]
        return cls(where, function, takes, tuple(captured), tuple(constants))

    def record(self, operation: str, inputs: Sequence[Any], outputs: Sequence[Any], values: Sequence[Any]) -> None:
        """Tell the tapes that this is the operation's gradient.

        Args:
            operation: the operation's type.
            inputs: its operands.
            outputs: its results.
            values: those of the slots in `captured`.
        """

        def backward(*gradients: Any) -> list[Any]:
            return self._pull_back(gradients, values, len(inputs))

        record.record_operation(operation, list(outputs), list(inputs), backward)

    def _pull_back(self, gradients: Sequence[Any], values: Sequence[Any], count: int) -> list[Any]:
        if self.function is None:
            raise UnsupportedError(
                f"the operation {self.where!r} of the saved model has a gradient of its author's own (tf.custom_gradient), and "
                f"it {self.why}: expected tf.saved_model.SaveOptions(experimental_custom_gradients=True) when the model was "
                "saved, and no variables inside; give the model as Python code"
            )
        given = [one for one, taken in zip(gradients, self.takes, strict=True) if taken]
        rest = iter(values)
        captures = [next(rest) if constant is None else constant for constant in self.constants]
        pulled = list(self.function._call_flat(given, captures))
        return [*pulled, *[None] * (count - len(pulled))]


def _is_meant(gradient: Any, node: Any, restored: bool) -> bool:
    """Whether a registered gradient is the operation's own, and not one that happens to have the same name here.

    The names are numbers that each process gives out anew. Those that come with a saved model are renamed when it is loaded.
    """
    if gradient.__module__ == function_deserialization.__name__:
        return True
    if restored:
        return False
    inner = inspect.getclosurevars(gradient).nonlocals.get("tape_grad_fn")
    results = inspect.getclosurevars(inner).nonlocals.get("result") if inner is not None else None
    names = [one.op.name for one in tf.nest.flatten(results) if isinstance(one, tf.Tensor)]
    return bool(names) and names == [name.split(":")[0] for name in node.input[: len(names)]]


def _traced(gradient: Any, dtypes: Sequence[Any]) -> Any:
    """A registered gradient function as a ConcreteFunction of the gradients that are of floating point."""

    def pull_back(*given: Any) -> Any:
        floating = iter(given)
        return gradient(None, *[next(floating) if dtype.is_floating else None for dtype in dtypes])

    specs = [tf.TensorSpec(None, dtype) for dtype in dtypes if dtype.is_floating]
    return tf.function(pull_back, autograph=False).get_concrete_function(*specs)
