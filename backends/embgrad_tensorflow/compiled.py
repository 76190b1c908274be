"""Tells whether a compiled function holds a pass through a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import tensorflow as tf

from embgrad_tensorflow.graphs import function_calls
from embgrad_tensorflow.walk import handle_of, walk

__all__ = ["function_calls", "runs_model"]

#: Operations that a forward pass makes with a model's variables, and an update of them does not.
FORWARD: Final = frozenset(
    {"BatchMatMulV2", "BatchMatMulV3", "Conv1D", "Conv2D", "Einsum", "MatMul", "ResourceGather", "ResourceGatherNd"}
)


def runs_model(function: Any, model: Any) -> bool:
    """Whether a ConcreteFunction computes with a model's variables, and does not only write to them."""
    resources = {id(one) for one in function.captured_inputs if one.dtype == tf.resource}
    if not resources or not any(name in FORWARD for name in _operations(function)):
        return False
    return any(id(handle_of(node.value)) in resources for node in walk([model]) if node.kind == "variable")


def _operations(function: Any) -> Iterator[str]:
    definition = function.graph.as_graph_def()
    yield from (node.op for node in definition.node)
    for inner in definition.library.function:
        yield from (node.op for node in inner.node_def)
