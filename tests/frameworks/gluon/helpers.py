"""Finite differences in float64, the reference of these tests, and the same net in two precisions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from embgrad_gluon import GluonBackend
from embgrad_gluon.importing import import_gluonnlp, import_mxnet

from embgrad import TokenBatch
from embgrad.backend import Callback, Request
from embgrad.results import Point

mx = import_mxnet()

ROWS, DIM = 13, 4


class Model(mx.gluon.HybridBlock):  # type: ignore[misc]
    """A table `words`, the given blocks, and a function of the model, F and the ids that computes with them."""

    def __init__(self, function: Callable[[Any, Any, Any], Any], **blocks: Any) -> None:
        super().__init__()
        self.words = mx.gluon.nn.Embedding(ROWS, DIM)
        for name, block in blocks.items():
            setattr(self, name, block)
        self.function = function

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return self.function(self, F, x)


def model(function: Callable[[Any, Any, Any], Any], **blocks: Any) -> Any:
    net = Model(function, **blocks)
    net.initialize()
    return net


def distinct_ids(examples: int = 2, positions: int = 5, seed: int = 0) -> np.ndarray:
    """Return distinct ids, so that a row of the table is one entry of the lookup."""
    return (
        np.random.default_rng(seed).permutation(np.arange(1, ROWS))[: examples * positions].reshape(examples, positions)
    )


def built(factory: Callable[[], Any], ids: np.ndarray, dtype: str) -> Any:
    """Return the net in a precision; its parameters are the same in each."""
    net = factory()
    net.initialize(mx.init.Zero())
    net(mx.nd.array(ids))  # the layers infer their sizes
    net.cast(dtype)
    randomise(net)
    return net


def randomise(net: Any, seed: int = 0) -> None:
    """Set values that every precision represents exactly, positive for variances."""
    random = np.random.default_rng(seed)
    for name, parameter in sorted(net._collect_params_with_prefix().items()):
        values = np.round(random.uniform(-0.7, 0.7, parameter.shape) * 2**20) / 2**20
        parameter.set_data(mx.nd.array(abs(values) + 0.5 if name.endswith("var") else values, dtype=parameter.dtype))


def small_bert(layers: int = 2, *, dropout: float = 0.1, decoder: bool = False) -> Any:
    """Return a BERTModel of gluonnlp with 20 words, 8 units and 12 positions."""
    bert = import_gluonnlp().model.bert
    encoder = bert.BERTEncoder(num_layers=layers, units=8, hidden_size=16, max_length=12, num_heads=2, dropout=dropout)
    sizes = {"vocab_size": 20, "token_type_vocab_size": 2, "units": 8, "embed_size": 8}
    net = bert.BERTModel(encoder, **sizes, use_decoder=decoder, use_classifier=False)
    net.initialize(mx.init.Normal(0.3))
    return net


def central_differences(value: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Return the gradient of a scalar function by central differences of each entry."""
    gradient = np.zeros(at.shape)
    for index in np.ndindex(*at.shape):
        moved = np.zeros_like(at)
        moved[index] = step
        gradient[index] = (value(at + moved) - value(at - moved)) / (2 * step)
    return gradient


def differences(
    net: Any, table: Any, ids: np.ndarray, cotangent: np.ndarray, *, step: float = 1e-6, dtype: str = "float64"
) -> np.ndarray:
    """Return ∂(cotangent · output)/∂e by central differences of the net's own forward pass, for distinct ids."""
    inputs = mx.nd.array(ids, dtype=dtype)
    before = table.data().asnumpy()

    def value(rows: np.ndarray) -> float:
        table.set_data(mx.nd.array(rows, dtype=dtype))
        return float((net(inputs).asnumpy().astype(np.float64) * cotangent).sum())

    gradient = central_differences(value, before, step)[ids]
    table.set_data(mx.nd.array(before, dtype=dtype))
    return gradient


def pulled_back(net: Any, ids: np.ndarray, cotangent: np.ndarray, *, training: bool = False) -> np.ndarray:
    """Return the backend's gradient at the lookup for a cotangent of the net's only output, in whatever shape it is."""
    request = Request(("word",), (Callback(lambda _: [{None: cotangent}]),), training)
    gradient = GluonBackend().run(net, TokenBatch(ids, convention="ids"), request).points["word"].gradients[0]
    assert gradient is not None
    return gradient


def lookups_of(net: Any, ids: np.ndarray) -> list[Point]:
    seen = GluonBackend().points(net, TokenBatch(ids, convention="ids"))
    return [point for point in seen if point.lookup is not None]


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(abs(found - expected).max() / max(abs(expected).max(), 1e-30))
