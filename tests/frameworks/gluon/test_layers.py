"""Layers between the lookup and the output, each in float64 and float32 against finite differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from tests.frameworks.gluon.helpers import DIM, ROWS, built, differences, distinct_ids, mx, pulled_back, relative

nn, rnn = mx.gluon.nn, mx.gluon.rnn


class Through(mx.gluon.HybridBlock):
    """Embedding → a layer, or a function of F and the rows → as it is."""

    def __init__(self, layer: Any = None, function: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.layer = layer
        self.function = function

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = self.embedding(x)
        return self.function(F, rows) if self.function is not None else self.layer(rows)


class Cells(mx.gluon.Block):
    """A recurrent cell, unrolled."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.cell = cell

    def forward(self, x: Any) -> Any:
        rows = self.embedding(x)
        return self.cell.unroll(x.shape[1], rows, layout="NTC", merge_outputs=True)[0]


def beside_hard_sigmoid(F: Any, x: Any) -> Any:
    return F.sin(F.hard_sigmoid(x) + x)


def over_channels(layer: Any) -> Callable[[], Any]:
    """The layer along the positions, with the vectors as channels."""

    def make() -> Any:
        net = nn.HybridSequential()
        net.add(nn.HybridLambda(lambda F, e: F.transpose(e, axes=(0, 2, 1))), layer())
        return Through(net)

    return make


def as_image(layer: Any) -> Callable[[], Any]:
    """The layer over positions and vector entries as a plane."""

    def make() -> Any:
        net = nn.HybridSequential()
        net.add(nn.HybridLambda(lambda F, e: F.expand_dims(e, axis=1)), layer())
        return Through(net)

    return make


def plain(layer: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: Through(layer())


def through(function: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: Through(function=function)


def attention(F: Any, e: Any) -> Any:
    scores = F.batch_dot(e, e, transpose_b=True) / DIM**0.5
    return F.batch_dot(F.softmax(scores, axis=-1), e)


def lengths(F: Any, e: Any) -> Any:
    return F.slice_axis(F.sum(F.ones_like(e), axis=(1, 2)), axis=0, begin=0, end=None) * 0 + 3


LAYERS: dict[str, Callable[[], Any]] = {
    "dense": plain(lambda: nn.Dense(3)),
    "dense by position": plain(lambda: nn.Dense(3, flatten=False, activation="tanh")),
    "lstm": plain(lambda: rnn.LSTM(3, layout="NTC")),
    "lstm of two layers, both ways": plain(lambda: rnn.LSTM(3, num_layers=2, bidirectional=True, layout="NTC")),
    "gru": plain(lambda: rnn.GRU(3, layout="NTC")),
    "gru of two layers, both ways": plain(lambda: rnn.GRU(3, num_layers=2, bidirectional=True, layout="NTC")),
    "rnn": plain(lambda: rnn.RNN(3, activation="tanh", layout="NTC")),
    "rnn of two layers, both ways": plain(
        lambda: rnn.RNN(3, num_layers=2, bidirectional=True, activation="tanh", layout="NTC")
    ),
    "convolution": over_channels(lambda: nn.Conv1D(3, 3, padding=1, activation="relu")),
    "plane convolution": as_image(lambda: nn.Conv2D(2, (3, 2))),
    "max pooling": over_channels(lambda: nn.MaxPool1D(2, 1)),
    "padded max pooling": over_channels(lambda: nn.MaxPool1D(3, 2, padding=1, ceil_mode=True)),
    "global max pooling": over_channels(lambda: nn.GlobalMaxPool1D()),
    "average pooling without pads": over_channels(lambda: nn.AvgPool1D(3, 2, padding=1, count_include_pad=False)),
    "functional max pooling": through(lambda F, e: F.Pooling(e, kernel=(2,), pool_type="max", stride=(1,))),
    "first pooling": as_image(
        lambda: nn.HybridLambda(lambda F, x: F.Pooling_v1(x, kernel=(2, 2), pool_type="max", stride=(1, 1)))
    ),
    "batch norm": over_channels(lambda: nn.BatchNorm()),
    "batch norm over the last axis": plain(lambda: nn.BatchNorm(axis=-1)),
    "layer norm": plain(lambda: nn.LayerNorm()),
    "l2 normalisation": through(lambda F, e: F.L2Normalization(e)),
    "dropout": plain(lambda: nn.Dropout(0.5)),
    "attention": through(attention),
    "sequence mask": through(
        lambda F, e: F.SequenceMask(e * 2, lengths(F, e), use_sequence_length=True, axis=1, value=0.3)
    ),
    "maximum over positions": through(lambda F, e: F.max(e, axis=1)),
    "minimum over vectors": through(lambda F, e: F.min(e, axis=2)),
    "cumulative sum": through(
        lambda F, e: F.contrib.foreach(lambda row, total: (row + total, row + total), F.swapaxes(e, 0, 1), e[:, 0] * 0)[
            0
        ]
    ),
    "norm": through(lambda F, e: F.norm(e, axis=1)),
    "hard sigmoid": through(lambda F, e: F.hard_sigmoid(e)),
    "hard sigmoid beside another use": through(lambda F, e: F.sum(beside_hard_sigmoid(F, F.tanh(e)), axis=2)),
}

#: Computed in float32 inside MXNet, also in float64: finite differences need larger steps.
COARSE = {
    "selu": plain(lambda: nn.SELU()),
    "transposed convolution": over_channels(lambda: nn.Conv1DTranspose(3, 3, strides=2)),
    "prelu": plain(lambda: nn.PReLU()),
    "rnn with relu": plain(lambda: rnn.RNN(3, activation="relu", layout="NTC")),
}


#: Computed in float32 alone.
SINGLE = {
    "lstm cell": lambda: Cells(rnn.LSTMCell(3)),
    "gru cell": lambda: Cells(rnn.GRUCell(3)),
    "instance norm": over_channels(lambda: nn.InstanceNorm()),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradient_through_a_layer(name: str) -> None:
    check(LAYERS[name], tolerances={"float64": 1e-6, "float32": 2e-4})


@pytest.mark.parametrize("name", COARSE)
def test_gradient_through_a_layer_of_low_precision(name: str) -> None:
    check(COARSE[name], tolerances={"float64": 2e-3, "float32": 2e-3}, step=1e-3)


@pytest.mark.parametrize("name", SINGLE)
def test_gradient_through_a_layer_of_single_precision(name: str) -> None:
    check(SINGLE[name], tolerances={"float32": 5e-3}, step=1e-2)


@pytest.mark.parametrize("hybrid", [False, True])
def test_batch_norm_with_relu_agrees_with_the_two_in_sequence(hybrid: bool) -> None:
    """It is there for float32 alone, in which it has no slopes that tell where it is cut off."""
    ids, found = distinct_ids(), []
    for layers in ([nn.BatchNormReLU()], [nn.BatchNorm(), nn.Activation("relu")]):
        net = built(as_image(lambda layers=layers: in_turn(layers)), ids, "float32")
        shape = net(mx.nd.array(ids)).shape
        if hybrid:
            net.hybridize()
            net(mx.nd.array(ids))
        found.append(pulled_back(net, ids, np.random.default_rng(1).normal(size=shape), training=True))
    assert relative(*found) < 1e-6


def test_batch_norm_with_relu_in_evaluation_mode_is_refused() -> None:
    net = built(as_image(lambda: in_turn([nn.BatchNormReLU()])), distinct_ids(), "float32")
    with pytest.raises(embgrad.errors.UnsupportedError, match="Use BatchNorm and ReLU"):
        embgrad.gradients(net, distinct_ids(), embgrad.Sum())


def in_turn(layers: Any) -> Any:
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def check(factory: Callable[[], Any], tolerances: dict[str, float], step: float = 1e-6) -> None:
    """In evaluation mode, imperative and hybridised; the finite differences in the best precision that the layer has."""
    ids = distinct_ids()
    nets = {dtype: built(factory, ids, dtype) for dtype in tolerances}
    best, net = next(iter(nets.items()))
    cotangent = np.random.default_rng(1).normal(size=net(mx.nd.array(ids, dtype=best)).shape)
    expected = differences(net, net.embedding.weight, ids, cotangent, step=step, dtype=best)
    assert abs(expected).max() > 1e-3
    for dtype, net in nets.items():
        for hybrid in (False, True):
            if hybrid:
                net.hybridize()
            error = relative(pulled_back(net, ids, cotangent), expected)
            assert error < tolerances[dtype], f"{dtype}, hybridised {hybrid}: {error:.1e}"
