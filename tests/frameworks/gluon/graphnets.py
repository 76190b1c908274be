"""Nets that are hybridised or exported in the tests."""

from __future__ import annotations

from typing import Any

import numpy as np

import embgrad
from tests.frameworks.gluon.helpers import DIM, ROWS, mx, relative

nn, autograd, nd = mx.gluon.nn, mx.autograd, mx.nd
HybridBlock = mx.gluon.HybridBlock

OBJECTIVE = embgrad.Projection(np.array([0.7, -0.4, 0.2]))


class Layered(HybridBlock):
    """Embedding → layers over (example, dim, position) → the maximum over positions → Dense."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.layers = nn.HybridSequential()
        self.layers.add(*layers)
        self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.top(self.layers(F.swapaxes(self.embedding(x), 1, 2)))


class Positions(HybridBlock):
    """Positions are counted along what was looked up, and looked up in a table of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, DIM)
        self.places = nn.Embedding(7, DIM)
        self.top = nn.Dense(3)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = self.words(x)
        places = self.places(F.contrib.arange_like(rows, axis=1))
        return self.top(F.mean(F.tanh(F.broadcast_add(rows, F.expand_dims(places, 0))), axis=1))


class OnArrays(HybridBlock):
    """Its Python goes another way on arrays than on symbols."""

    def __init__(self, way: Any) -> None:
        super().__init__()
        self.embedding, self.way = nn.Embedding(ROWS, DIM), way

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.way(F, F.tanh(self.embedding(x)))


def gated(rows: Any) -> Any:
    """The gate has no gradient."""
    with autograd.pause():
        gate = rows.sigmoid()
    return (rows * gate).mean(axis=1)


def tolerance_of(net: Any) -> float:
    return 1e-12 if next(iter(net.collect_params().values())).dtype in ("float64", np.float64) else 2e-5


def expect_same(found: Any, expected: Any, tolerance: float) -> None:
    assert relative(found.values, expected.values) < tolerance
    assert relative(found.objective, expected.objective) < tolerance
    assert (found.activations == expected.activations).all()
