"""Models whose gradients are certified, and the certificate of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

DIM, CLASSES = 4, 3


IDS = np.array([[3, 5], [2, 9], [7, 1]])


PROJECTION = embgrad.Projection(np.random.default_rng(4).normal(size=CLASSES))


Wrong = Callable[[np.ndarray], np.ndarray]


def weights(dtype: str = "float64", **scales: float) -> dict[str, np.ndarray]:
    shapes = {"E": (12, DIM), "pos": (6, DIM), "W": (DIM, DIM), "H": (DIM, CLASSES)}
    return {
        name: (np.random.default_rng(seed).normal(size=shape) * scales.get(name, 1.0)).astype(dtype)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def classify(model: Any, x: Tensor) -> Tensor:
    return x.tanh().mean(1) @ model["H"]


def layered(model: Any, input_ids: np.ndarray, wrong: Wrong | None = None) -> Tensor:
    """Run two layers, and between them an operation that may have a wrong pullback."""

    def layer(x: Tensor) -> Tensor:
        return x + (x @ model["W"]).tanh()

    x = lookup(model["E"], input_ids) + lookup(model["pos"], np.arange(input_ids.shape[1])[None])
    x = model.module("layers.0", layer, x)
    if wrong is not None:
        x = Tensor(x.value, [(x, wrong)])
    return classify(model, model.module("layers.1", layer, x))


def linear(model: Any, input_ids: np.ndarray) -> Tensor:
    return lookup(model["E"], input_ids).mean(1) @ model["H"]


def centred(model: Any, input_ids: np.ndarray) -> Tensor:
    hidden = lookup(model["E"], input_ids).mean(1)
    return (hidden + hidden.mean(0) * -1.0).tanh() @ model["H"]


def certificate(
    forward: Any, objective: Any = PROJECTION, dtype: str = "float64", batch: Any = IDS, **options: Any
) -> Any:
    scales = options.pop("scales", {})
    model = ReferenceModel(forward, weights(dtype, **scales))
    result = embgrad.gradients(model, batch, objective, check=True, **options)
    return result.certificate if isinstance(result, embgrad.results.EmbeddingGradients) else result
