"""Points in Keras 3 by hand, on each of its backends: as there, at the output of a layer whose `call` is replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

import embgrad
from tests.benchmarks.points import POOLED, Gradients, Priced, code_of, loaded_bert, replaced, texts

Pass = Callable[[Callable[[str, Any], Any]], Any]


def bert(layers: int, dim: int) -> Priced:
    model = loaded_bert("keras", layers, dim)
    parts = {"word": model.token_embedding, "embeddings": model.embeddings_dropout}
    parts |= {"layer.0": model.transformer_layers[0], "layer.-1": model.transformer_layers[-1]}

    def by_hand(batch: embgrad.TokenBatch, points: Sequence[str]) -> Gradients:
        own = {point: parts[point] for point in points}

        def total(change: Callable[[str, Any], Any]) -> Any:
            inputs = {name: keras.ops.convert_to_tensor(value) for name, value in batch.to_keras_hub().items()}
            with replaced(own, change):
                return keras.ops.sum(model(inputs, training=False)["pooled_output"])

        shape = (*batch.shape, dim)
        return lambda: WAYS[keras.backend.backend()](model, total, points, shape)

    return Priced(model, texts, POOLED, by_hand, code_of(type(model).call))


MODES = {f"Keras 3 on {name}": bert for name in ("PyTorch", "TensorFlow", "JAX")}


def _by_torch(model: Any, total: Pass, points: Sequence[str], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    import torch

    reached: dict[str, Any] = {}

    def change(point: str, tensor: Any) -> Any:
        reached[point] = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
        return reached[point]

    model.requires_grad_(False)
    try:
        pulled = torch.autograd.grad(total(change), [reached[point] for point in points])
    finally:
        model.requires_grad_(True)
    return {point: gradient.numpy() for point, gradient in zip(points, pulled, strict=True)}


def _by_tensorflow(model: Any, total: Pass, points: Sequence[str], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    import tensorflow as tf

    reached: dict[str, Any] = {}
    with tf.GradientTape(watch_accessed_variables=False) as tape:

        def change(point: str, tensor: Any) -> Any:
            reached[point] = tensor
            tape.watch(tensor)
            return tensor

        objective = total(change)
    pulled = tape.gradient(objective, [reached[point] for point in points])
    return {point: gradient.numpy() for point, gradient in zip(points, pulled, strict=True)}


def _by_jax(model: Any, total: Pass, points: Sequence[str], shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    import jax
    import jax.numpy as jnp

    def of_zeros(zeros: Mapping[str, Any]) -> Any:
        return total(lambda point, tensor: tensor + zeros[point])

    pulled = jax.grad(of_zeros)(dict.fromkeys(points, jnp.zeros(shape)))
    return {point: np.asarray(gradient) for point, gradient in pulled.items()}


WAYS: Mapping[str, Callable[..., dict[str, np.ndarray]]] = {
    "torch": _by_torch,
    "tensorflow": _by_tensorflow,
    "jax": _by_jax,
}
