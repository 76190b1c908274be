"""Tells which tensors are those of a graph that is traced, and may be left behind in the user's program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from embgrad.escaping import FUNCTIONS, Escaping, classes_of

__all__ = ["escaping_from"]

#: What is made of several tensors.
COMPOSITE: Final = (tf.RaggedTensor, tf.IndexedSlices, tf.SparseTensor)


def escaping_from(parts: Sequence[Any], modules: Sequence[Any], call: Callable[..., Any] | None) -> Escaping:
    """What a model may write a graph's tensors into, beside its own attributes, which are put back as a whole.

    Args:
        parts: the model's parts.
        modules: its modules.
        call: a function of the user's that calls it, or None.
    """
    given = [_python_of(one) for one in (*parts, call) if one is not None]
    objects = [*modules, *(one for one in given if type(one) not in FUNCTIONS)]
    members = [one for kind in classes_of(objects) for one in vars(kind).values()]
    inside = [_python_of(one) for one in members if isinstance(one, Function)]
    return Escaping(
        objects,
        [*(one for one in given if type(one) in FUNCTIONS), *inside],
        tf.Tensor,
        _is_of_a_graph,
    )


def _python_of(function: Any) -> Any:
    """What a `tf.function` was made from; all else as it is."""
    return function.python_function if isinstance(function, Function) else function


def _is_of_a_graph(value: Any) -> bool:
    kind: type = type(value)
    if issubclass(kind, tf.Tensor):
        return bool(tf.is_symbolic_tensor(value))
    if issubclass(kind, tf.TensorShape):
        return not value.is_fully_defined()
    return issubclass(kind, COMPOSITE) and any(map(_is_of_a_graph, tf.nest.flatten(value, expand_composites=True)))
