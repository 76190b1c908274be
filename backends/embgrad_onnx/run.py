"""One forward pass of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from embgrad.backend import (
    Call,
    Cotangents,
    ModelPass,
    PassRecorder,
    PointChanges,
    Pullback,
    Reached,
    Request,
    TokenBatch,
    compute_dtype,
)
from embgrad.errors import UnsupportedError
from embgrad.toolkit import copy_owned
from embgrad_onnx.inputs import NumpyArrays, feeds
from embgrad_onnx.lookup import Record, indices_of, tensors_of
from embgrad_onnx.modules import modules_of
from embgrad_onnx.sessions import compute
from embgrad_onnx.tap import Stretches, changed_places
from embgrad_onnx.walk import alone, source_of

__all__ = ["OnnxPass", "points"]


def points(model: Any, batch: TokenBatch, call: Call | None = None) -> Reached:
    """Return the points that a forward pass reaches."""
    return OnnxPass(model, batch, Request(call=call), PassRecorder(batch, None)).points()


def _like(array: np.ndarray, tensor: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(array, tensor.shape), tensor.dtype)


class OnnxPass(ModelPass):
    """A forward pass of a graph, see `ModelPass`.

    The lookups' indices are computed first, and the shapes at points where these are listed: onnxruntime then computes, of all
    tensors, what the request reads. Where values are changed it runs the graph in stretches.
    """

    def prepare(self) -> AbstractContextManager[None]:
        """Hold the model's lock."""
        return alone(self.model)

    def call(self) -> Any:
        """Compute what the graph returns, where an objective reads it, and the values at the requested points."""
        if self.request.call is not None:
            raise UnsupportedError(
                "an ONNX graph is called in one way only, by the names of its inputs: omit call=..., and give the batch as a "
                "dict with these names"
            )
        self.tensors = NumpyArrays()
        source = source_of(self.model)
        modules = modules_of(source)
        graph = modules.graph
        given, self.unused = feeds(graph, self.batch)
        indices = indices_of(graph)
        listed = tensors_of(modules) if self.recorder.everything else ()
        found, shapes = compute(source, graph, given, indices, listed)
        record = Record(modules, self.recorder)
        record.replay(found, shapes)
        returned = graph.outputs if self.request.objectives else ()
        changed = changed_places(record.places, {*self.request.override, *self.request.add})
        others = {key: place.tensor for key, place in record.places.items() if key not in changed}
        names = tuple(dict.fromkeys([*returned, *others.values()]))
        if changed:
            changes = PointChanges[Any](self.request, self.tensors.to_numpy, _like)
            stretches = Stretches(source, graph, changed, changes.value, names)
            values = stretches.run(given)
            self._values = stretches.values
        else:
            values = compute(source, graph, given, names)[0] if names else {}
            self._values = {}
        self._values |= {key: values[name] for key, name in others.items()}
        return {name: values[name] for name in returned}

    def activations(self, keys: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the values at points."""
        return {key: copy_owned(self._values[key]) for key in keys}

    def pull_back(self, cotangents: Cotangents, keys: Sequence[str]) -> Pullback:
        """Raise UnsupportedError: onnxruntime computes values."""
        raise UnsupportedError("an ONNX graph has no gradients: run the request with pullback=False")

    def compute_dtype(self, keys: Sequence[str], outputs: Sequence[Any], returned: Any) -> str:
        """Return the coarsest dtype of the points and the outputs that were read."""
        read = [str(self._values[key].dtype) for key in keys] + [str(output.dtype) for output in outputs]
        return compute_dtype(read, [str(value.dtype) for value in returned.values() if self.tensors.is_tensor(value)])
