"""Gradients of Keras models by hand, on each Keras backend: additions of zeros at the points, of which the gradient is taken."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import keras
import numpy as np

from tests.zoo.hand import WORD, Case, Pulled, Unchecked, place_of
from tests.zoo.state import shallow

__all__ = ["KerasHand"]


class KerasHand:
    """The forward pass, the pullback of the Keras backend's own framework, and a model's state."""

    def outputs(self, case: Case) -> dict[str, np.ndarray]:
        return {name: keras.ops.convert_to_numpy(value) for name, value in _named(_call(case)).items()}

    def pull(
        self,
        case: Case,
        output: str,
        respond: Callable[[np.ndarray], Sequence[np.ndarray]],
        points: Sequence[str] = (WORD,),
        scale: np.ndarray | None = None,
    ) -> Pulled:
        reached: dict[str, Any] = {}
        with _points(case, reached, {}, scale):
            value = keras.ops.convert_to_numpy(_named(_call(case))[output])
        if WORD not in reached:
            raise Unchecked("no keras.layers.Embedding looks up the batch's ids")
        names = {point: _reached(point, reached) for point in points}
        zeros = [keras.ops.zeros_like(reached[name]) for name in names.values()]

        def forward(*added: Any) -> Any:
            with _points(case, {}, dict(zip(names.values(), added, strict=True)), scale):
                return _named(_call(case))[output]

        puts = [keras.ops.convert_to_tensor(put, dtype=str(value.dtype)) for put in respond(value)]
        pulled = [
            {
                point: np.zeros(zero.shape) if gradient is None else keras.ops.convert_to_numpy(gradient)
                for point, zero, gradient in zip(points, zeros, gradients, strict=True)
            }
            for gradients in _PULLBACKS[keras.backend.backend()](forward, zeros, puts)
        ]
        values = {point: keras.ops.convert_to_numpy(reached[name]) for point, name in names.items()}
        return Pulled(values, pulled, _last_layer(case, reached))

    def state(self, model: Any) -> dict[str, Any]:
        """Return the layers' attributes, and their weights' bits and flags."""
        return {
            layer.path or layer.name: {
                **{name: shallow(value, id) for name, value in vars(layer).items()},
                "values": [keras.ops.convert_to_numpy(weight).tobytes() for weight in layer.variables],
                "trained": [weight.trainable for weight in layer.variables],
            }
            for layer in model._flatten_layers()
        }


def _call(case: Case) -> Any:
    return case.model({name: keras.ops.convert_to_tensor(value) for name, value in case.batch.items()})


def _named(returned: Any) -> dict[str, Any]:
    if isinstance(returned, Mapping):
        return dict(returned)
    if isinstance(returned, (tuple, list)):
        return {str(number): value for number, value in enumerate(returned)}
    return {"": returned}


@contextlib.contextmanager
def _points(case: Case, reached: dict[str, Any], added: Mapping[str, Any], scale: np.ndarray | None) -> Iterator[None]:
    """Keep what the lookups of ids and each layer's calls return, and add to it, while the block runs."""
    lookup, called = keras.layers.Embedding.call, keras.layers.Layer.__call__

    def embedding(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        rows = lookup(self, inputs, *args, **kwargs)
        for name, ids in case.looked_up.items():
            columns = place_of(keras.ops.convert_to_numpy(inputs), ids)
            if columns is None or name in reached:
                continue
            if name == WORD and scale is not None:
                rows = rows * keras.ops.convert_to_tensor(scale[:, :, None], dtype=rows.dtype)
            reached[name] = rows
            return rows + added[name] if name in added else rows
        return rows

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        returned = called(self, *args, **kwargs)
        first, rest = (returned[0], returned[1:]) if isinstance(returned, tuple) else (returned, None)
        if not keras.ops.is_tensor(first):
            return returned
        path = self.path or self.name
        occurrence = sum(1 for key in reached if key.rpartition("#")[0] == path)
        name = f"{path}#{occurrence}"
        reached[name] = first
        if name not in added:
            return returned
        return first + added[name] if rest is None else (first + added[name], *rest)

    with (
        mock.patch.object(keras.layers.Embedding, "call", embedding),
        mock.patch.object(keras.layers.Layer, "__call__", call),
    ):
        yield


def _reached(point: str, reached: Mapping[str, Any]) -> str:
    """Return the key of a point: of a layer the one that shares most of the path's end, as Keras cuts paths at the beginning."""
    if point in reached:
        return point
    path, _, occurrence = point.partition("#")
    parts = path.replace(".", "/").split("/")
    for start in range(len(parts)):
        ending = f"{'/'.join(parts[start:])}#{occurrence or 0}"
        for name in reached:
            if name == ending or name.endswith(f"/{ending}"):
                return name
    raise Unchecked(f"no layer {point} was called")


def _last_layer(case: Case, reached: Mapping[str, Any]) -> str | None:
    """Return the path of the last call of layers of one class of keras-hub's; of an encoder and a decoder the encoder's."""
    shape = case.batch[case.ids].shape
    backbone = getattr(case.model, "backbone", case.model)
    classes: dict[str, list[str]] = {}
    for layer in backbone.layers:
        path = layer.path or layer.name
        calls = [value for name, value in reached.items() if name.rpartition("#")[0] == path]
        is_block = all(tuple(value.shape[:2]) == shape for value in calls)
        if is_block and not type(layer).__module__.startswith("keras.src"):
            classes.setdefault(type(layer).__name__, []).extend([path] * len(calls))
    repeated = [paths for paths in classes.values() if len(paths) > 1]
    return repeated[0][-1] if repeated else None


def _of_torch(forward: Callable[..., Any], zeros: list[Any], puts: list[Any]) -> list[list[Any]]:
    import torch

    leaves = [zero.detach().requires_grad_() for zero in zeros]
    with torch.enable_grad():
        value = forward(*leaves)
    return [list(torch.autograd.grad(value, leaves, put, retain_graph=True, allow_unused=True)) for put in puts]


def _of_tensorflow(forward: Callable[..., Any], zeros: list[Any], puts: list[Any]) -> list[list[Any]]:
    import tensorflow as tf

    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(zeros)
        value = forward(*zeros)
    return [[_dense(gradient) for gradient in tape.gradient(value, zeros, output_gradients=put)] for put in puts]


def _dense(gradient: Any) -> Any:
    import tensorflow as tf

    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _of_jax(forward: Callable[..., Any], zeros: list[Any], puts: list[Any]) -> list[list[Any]]:
    import jax

    _, pullback = jax.vjp(forward, *zeros)
    return [list(pullback(put)) for put in puts]


_PULLBACKS = {"torch": _of_torch, "tensorflow": _of_tensorflow, "jax": _of_jax}
