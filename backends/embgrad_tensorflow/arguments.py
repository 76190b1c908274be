"""Tells the arguments of a call of a model apart: which are ids, by the names of the model's parameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from embgrad.backend.arguments import integer_arguments
from embgrad.keras_inputs import MODES, is_keras
from embgrad.structures import first

__all__ = ["integers", "is_symbolic", "like_evaluation"]


def integers(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arguments that are integers, as NumPy, by the parameters' names, or by their keys in a dict of inputs."""
    named = _bound(model, args, kwargs)
    given = dict(named.arguments) if named is not None else dict(kwargs)
    if named is None:
        given |= {f"argument {number}": value for number, value in enumerate(args)}
    declared = tf.nest.flatten(getattr(model, "inputs", None) or []) if is_keras(model) else []
    return integer_arguments(given, lambda name, value: _whole(value), [one.name for one in declared])


def like_evaluation(
    model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of a call in evaluation mode: those that say the mode say that."""
    named = _bound(model, args, kwargs)
    for mode in MODES:
        if mode in kwargs:
            kwargs = {**kwargs, mode: False}
        elif named is not None and mode in named.arguments and mode in named.signature.parameters:
            args = list(args)
            args[list(named.signature.parameters).index(mode)] = False
    return args, kwargs


def is_symbolic(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether Keras is told what a model gives for such inputs, and computes nothing."""
    return first((tuple(args), dict(kwargs)), lambda one: type(one).__name__ == "KerasTensor") is not None


def _bound(model: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments | None:
    """The arguments by parameter; None where the signature does not say."""
    try:
        return inspect.signature(_target(model)).bind(*args, **kwargs)
    except (TypeError, ValueError):  # the call itself says what is wrong with it, or takes more than it declares
        return None


def _target(model: Any) -> Any:
    if is_keras(model):
        return model.call
    own = getattr(model.__call__, "python_function", None)
    return model.__call__ if own is None else own


def _whole(value: Any) -> np.ndarray | None:
    if isinstance(value, (tf.Tensor, np.ndarray)) and np.dtype(_dtype(value)).kind in "iu":
        return np.array(value)
    return None


def _dtype(value: Any) -> Any:
    return value.dtype.as_numpy_dtype if isinstance(value, tf.Tensor) else value.dtype
