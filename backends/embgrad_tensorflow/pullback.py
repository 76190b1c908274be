"""Pull cotangents back to the points and the variables of a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from embgrad.backend import Cotangents, ParameterValues, Request, TableRest
from embgrad.toolkit import coarsest, first, take_owned
from embgrad_tensorflow.lookup import Watcher
from embgrad_tensorflow.modules import is_floating
from embgrad_tensorflow.parameters import Parameters
from embgrad_tensorflow.tap import Taps, dense
from embgrad_tensorflow.walk import native_variable

__all__ = ["compute_dtype", "parameter_values", "pull_back", "rests", "sources"]


def sources(watcher: Watcher, keys: Sequence[str], parameters: Parameters | None, request: Request) -> dict[str, Any]:
    """Return the variables whose gradients are asked for, by name."""
    if parameters is None:
        return {}
    variables = dict(parameters.trainable) if request.parameters else {}
    if request.tables:
        for key in keys:
            name = parameters.name(watcher.handles.get(key))
            if name is not None:
                variables[name] = parameters.variable(name)
    return variables


def pull_back(
    taps: Taps, cotangents: Cotangents, marks: Sequence[Any], variables: Mapping[str, Any]
) -> list[np.ndarray | None]:
    """Return the gradient at each point and variable, None where the tape has no way to it."""
    taps.pulling()
    targets = [target for target, _ in cotangents]
    upstream = [tf.cast(tf.constant(entry), target.dtype) for target, entry in cotangents]
    wanted = [*marks, *map(native_variable, variables.values())]
    gradients = taps.tape.gradient(targets, wanted, output_gradients=upstream)
    # what was looked up in the rows again comes as IndexedSlices
    return [None if entry is None else take_owned(dense(entry).numpy()) for entry in gradients]


def rests(
    watcher: Watcher, keys: Sequence[str], parameters: Parameters, below: Mapping[str, np.ndarray | None]
) -> dict[str, TableRest]:
    """Return by point what reaches its table by other ways than the lookups asked for."""
    names = {key: parameters.name(watcher.handles.get(key)) for key in keys}
    return {key: TableRest(below[name], (name,)) for key, name in names.items() if name is not None}


def parameter_values(variable: Any, gradient: np.ndarray | None) -> ParameterValues:
    """Return a variable's gradient as the core takes it."""
    native = native_variable(variable)
    return ParameterValues(tuple(map(int, native.shape)), gradient, str(native.dtype.name))


def compute_dtype(
    watcher: Watcher, marks: Sequence[Any], outputs: Sequence[Any], returned: Any, variables: Mapping[str, Any]
) -> str:
    """Return the dtype of the first point or output, or the coarsest where it is cast on its way (mixed precision).

    A pass that reads nothing and returns no floats, as one that generates ids, has float32.
    """
    floating = first(returned, is_floating)
    tensors = [*marks, *outputs, *([] if floating is None else [floating])]
    read = [*tensors, *map(native_variable, variables.values())]
    dtypes = [*(tensor.dtype for tensor in read[:1]), *watcher.computing]
    return coarsest([dtype.name for dtype in dtypes] or ["float32"])
