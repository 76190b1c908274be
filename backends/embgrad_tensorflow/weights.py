"""The weights of a model: its floating variables, each with a way to read it and to write it in place."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import tensorflow as tf

from embgrad.arrays import owned
from embgrad.backend import Weight
from embgrad.calling import as_parts
from embgrad.locks import model_lock
from embgrad_tensorflow.parameters import Parameters, native_variable
from embgrad_tensorflow.state import expect_eager, other_tapes_paused
from embgrad_tensorflow.walk import Node, handle_of, is_saved, walk

__all__ = ["alone", "checkpoint_name", "putter", "weights"]

#: What TensorFlow's BERT names otherwise than the checkpoint.
LAST_NAMES: Final = {"kernel": "weight", "embeddings": "weight", "gamma": "weight", "beta": "bias"}


def weights(model: Any) -> list[Weight]:
    """The floating variables by name, each once: the trainable ones first, in the model's order."""
    expect_eager()
    parts = as_parts(model)
    nodes = list(walk(parts))
    owners = {id(handle_of(node.value)): node for node in nodes if node.kind == "variable"}
    canonical = _canonical(nodes)
    found = []
    for name, variable in Parameters(parts).items():
        native = native_variable(variable)
        node = owners.get(id(handle_of(variable)))
        if native.dtype.is_floating and not (node is not None and _is_metric(node.owner)) and _has_value(native):
            found.append(_weight(name, node, native, canonical.get(id(handle_of(variable)))))
    return found


def alone(model: Any) -> AbstractContextManager[None]:
    """Meanwhile no other thread runs the model."""
    return model_lock(as_parts(model))


def putter(variable: Any) -> Callable[[np.ndarray], None]:
    """What takes values into a variable."""
    native = native_variable(variable)

    def put(value: np.ndarray) -> None:
        expect_eager()
        with other_tapes_paused():
            native.assign(tf.cast(tf.constant(value), native.dtype))

    return put


def checkpoint_name(name: str) -> tuple[str, bool]:
    """What a checkpoint calls a variable of a BERT, and whether it is held transposed.

    `.../bert/encoder/layer_._0/output/dense/kernel:0` is `encoder.layer.0.output.dense.weight`, transposed.
    """
    path = name.split("/bert/", 1)[1].removesuffix(":0")
    *modules, last = re.sub(r"layer_\._(\d+)", r"layer/\1", path).split("/")
    return ".".join([*modules, LAST_NAMES.get(last, last)]), last == "kernel"


def _weight(name: str, node: Node | None, native: Any, canonical: tuple[str, bool] | None) -> Weight:
    def get() -> np.ndarray:
        expect_eager()
        with other_tapes_paused():
            return owned(native.numpy())

    shape = tuple(map(int, native.shape))
    source, transposed = canonical or (None, False)
    owner = "" if node is None else _owner(node, native)
    return Weight(name, owner, shape, str(native.dtype.name), get, putter(native), source, transposed)


def _owner(node: Node, native: Any) -> str:
    """The path of the layer that holds a variable; in a saved model, which only lists them, the scope that it was made in."""
    if is_saved(node.owner) and "/" in native.name:
        return str(native.name).rpartition("/")[0]
    return node.owner_path


def _has_value(native: Any) -> bool:
    return bool(native.shape.is_fully_defined() and native.is_initialized())


def _is_metric(owner: Any) -> bool:
    """Whether it counts what a training loop reports, which is no part of the forward pass."""
    return any(base.__qualname__ == "Metric" for base in type(owner).__mro__)


def _canonical(nodes: Iterable[Node]) -> dict[int, tuple[str, bool]]:
    """By an encoder's variable's handle what a checkpoint calls it, where the model holds one BERT."""
    encoders = [node.value for node in nodes if node.kind == "module" and _is_bert(node.value)]
    if len(encoders) != 1:
        return {}
    return {id(handle_of(one)): checkpoint_name(one.name) for one in _named(encoders[0])}


def _named(encoder: Any) -> Iterator[Any]:
    return (one for one in encoder.weights if "/bert/" in one.name)


def _is_bert(module: Any) -> bool:
    return any(
        base.__module__.startswith("transformers.") and base.__qualname__ == "TFBertMainLayer"
        for base in type(module).__mro__
    )
